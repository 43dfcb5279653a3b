# SPDX-License-Identifier: Apache-2.0
"""What a search has computed so far, a line an answer: replayed in order, it brings a killed search to its place."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.files import atomic_write, read_json, read_lines, write_json
from heatfhe.search.space import Counts

KIND, VERSION = "heatfhe-search", 1
Answer = Callable[[Counts], NDArray[np.float64]]


class Journal:
    """Answers of one search, in its folder: ``search.json`` says which search it is, ``answers.jsonl`` what it found.

    A search is a chain of questions, each determined by the answers before it. Asked again from the beginning it gets
    the recorded answers first, at once, and computes the next one that is missing. Without a folder nothing is kept.
    """

    def __init__(self, folder: Path | None, identity: Mapping[str, Any]) -> None:
        self._path = None if folder is None else folder / "answers.jsonl"
        self._recorded: list[dict[str, Any]] = []
        self.seconds = 0.0  # spent on computing, in this process and before it
        if folder is None or self._path is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        note = folder / "search.json"
        if note.exists():
            _check(folder, read_json(note, KIND, (VERSION,)), identity)
            if self._path.exists():
                self._recorded = read_lines(self._path)
        with atomic_write(self._path) as f:  # without a line that was half written
            f.write("".join(json.dumps(line) + "\n" for line in self._recorded).encode())
        if not note.exists():
            write_json(note, KIND, VERSION, identity)
        self._recorded.reverse()

    def answer(self, question: str, counts: Counts, compute: Answer) -> NDArray[np.float64]:
        """The recorded answer, a number for each candidate, or the one computed now."""
        asked = [[int(count) for count in row] for row in counts]
        if self._recorded:
            line = self._recorded.pop()
            if line.get("question") != question or line.get("candidates") != asked:
                raise ConfigError(
                    f"{self._path}: asks for other candidates at {question!r} than this release does (another pymoo "
                    "or numpy made it); finish it where it was begun, or give another folder with -o"
                )
            self.seconds += float(line["seconds"])
            return np.array([math.inf if v is None else v for v in line["answers"]], dtype=np.float64)
        began = time.monotonic()
        found = compute(counts) if len(counts) else np.empty(0)
        took = time.monotonic() - began
        self.seconds += took
        if self._path is not None:
            line = {
                "question": question,
                "candidates": asked,
                "answers": [float(v) if math.isfinite(v) else None for v in found],
                "seconds": round(took, 3),
            }
            with self._path.open("a") as f:
                f.write(json.dumps(line, allow_nan=False) + "\n")
                f.flush()
                os.fsync(f.fileno())
        return found


def _check(folder: Path, found: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse to go on with a search that was begun with other settings."""
    wanted = json.loads(json.dumps(dict(identity)))
    for name in sorted({*found, *wanted}):
        before, now = found.get(name), wanted.get(name)
        if before != now:
            raise ConfigError(
                f"{folder}: this search was begun with {name} {_shown(before)}, not {_shown(now)}; "
                "start it as it was begun, or give another folder with -o"
            )


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}..."
