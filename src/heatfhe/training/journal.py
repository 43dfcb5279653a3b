# SPDX-License-Identifier: Apache-2.0
"""What a run writes down as it goes: JSON lines always, TensorBoard when it is installed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heatfhe.errors import TrainingError
from heatfhe.files import atomic_write, existing, read_lines
from heatfhe.sites import Prepared


class Journal:
    """Appends one JSON object a line to ``log.jsonl``, and scalars and distributions to TensorBoard files beside it.

    A resumed run first drops the lines past its checkpoint, so that every update stands there once.
    """

    def __init__(self, folder: Path | None, *, after: int = 0, tensorboard: bool = True) -> None:
        self._path = None if folder is None else folder / "log.jsonl"
        self._writer: Any = None
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _truncate(self._path, after)
            if tensorboard:
                self._writer = _tensorboard(self._path.parent / "tensorboard", purge_step=after + 1)

    def write(self, kind: str, update: int, facts: Mapping[str, Any]) -> None:
        """One line: kind (update, validation, distributions, ...), the update counted over all phases, and facts.

        A number that is not finite becomes null.
        """
        if self._path is None:
            return
        try:
            with self._path.open("a") as f:
                f.write(_line(existing({"kind": kind, "step": update, **facts})))
        except OSError as err:
            raise TrainingError(
                f"{self._path}: cannot be written ({err}); free some space, start the same again"
            ) from err
        if self._writer is not None:
            for name, value in facts.items():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    self._writer.add_scalar(f"{kind}/{name}", value, update)

    def distributions(self, update: int, prepared: Prepared) -> None:
        """Every site's distribution, as probabilities from count 0 up; a histogram and a mode each in TensorBoard."""
        p = prepared.halting.probabilities().detach().cpu().double()
        rows = {s.name: [round(v, 6) for v in p[i, : s.max_count + 1].tolist()] for i, s in enumerate(prepared.sites)}
        modes = prepared.modes()
        self.write("distributions", update, {"p": rows, "modes": modes})
        if self._writer is not None:
            for name, row in rows.items():
                self._writer.add_histogram_raw(f"distributions/{name}", **_histogram(row), global_step=update)
                self._writer.add_scalar(f"modes/{name}", modes[name], update)

    def close(self) -> None:
        """Flush what is buffered."""
        if self._writer is not None:
            self._writer.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; a half-written last line is left out."""
    return read_lines(folder / "log.jsonl")


def _truncate(path: Path, after: int) -> None:
    if path.exists():
        kept = [line for line in read_log(path.parent) if line["step"] <= after] if after else []
        with atomic_write(path) as f:
            f.write("".join(map(_line, kept)).encode())


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def _histogram(row: Sequence[float]) -> dict[str, Any]:
    """A distribution over counts 0, 1, ... as TensorBoard's buckets, one around each count."""
    moments = [sum(k**power * p for k, p in enumerate(row)) for power in (0, 1, 2)]
    limits = [k + 0.5 for k in range(len(row))]
    return {
        **{"min": -0.5, "max": len(row) - 0.5, "num": moments[0], "sum": moments[1], "sum_squares": moments[2]},
        **{"bucket_limits": limits, "bucket_counts": list(row)},
    }


def _tensorboard(folder: Path, *, purge_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:  # tensorboard is an optional part of the train extra
        return None
    return SummaryWriter(str(folder), purge_step=purge_step)
