# SPDX-License-Identifier: Apache-2.0
"""Drift by source: noise in one refreshed value of a plan at a time, ranked by the KL it alone causes.

Shapes: R rows, W windows, P positions. A row is one value made noisy under one seed, and many rows run as one batch.
What attention rows lose on their way through a softmax is seen in one more run, in which every value is noisy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Conversation, Noise, Runner
from heatfhe.errors import ConfigError
from heatfhe.evaluation.drift import ROOM_ON_GPU, SEEDS, checked_engine, clear_logits
from heatfhe.evaluation.fidelity import Fidelity, Scores
from heatfhe.evaluation.noise_rows import Chosen, NoiseByRow, row_inputs
from heatfhe.evaluation.values import Refreshed, attention_rows, chosen_values, refreshed_values
from heatfhe.files import existing, json_digest, plain, read_json, write_json
from heatfhe.planning import Plan, ProgramName, Step
from heatfhe.progress import SILENT, Reporter

Real = NDArray[np.float64]
Tokens = NDArray[np.int64]
KIND = "heatfhe-drift-part"
ROOM = 1 << 21  # numbers in one value of a batch of rows on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDrift:
    """What one refreshed value does when it alone is noisy."""

    value: Refreshed
    fidelity: Fidelity

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {**self.value.as_json(), "fidelity": self.fidelity.as_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """How far attention rows are from the clear run's after one part of their softmax, with every value noisy.

    The length of the difference by that of the row, per position the median over windows, heads and seeds; a row that
    is lost counts as infinitely far.
    """

    stage: str
    part: str
    by_position: tuple[float, ...]

    @property
    def last(self) -> float:
        """The median over the last quarter of the positions."""
        return float(np.median(self.by_position[-max(1, len(self.by_position) // 4) :]))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; an error that is not a number is null."""
        return existing(plain(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByValue:
    """One circuit's drift by source. ``values`` come in the order of their own KL, the largest first; ``together`` is
    the fidelity with all of them noisy at once, ``only`` what they were chosen by."""

    name: str
    params: str
    sigma: float
    seeds: tuple[int, ...]
    windows: int
    positions: int
    only: str | None
    together: Fidelity
    values: tuple[ValueDrift, ...]
    rows: tuple[RowError, ...]

    @property
    def summed(self) -> float:
        """The KL of all values, each alone: near that of all together while errors are small, since KL adds up then."""
        return float(np.nansum([v.fidelity.kl for v in self.values]))

    def by_operator(self) -> dict[str, float]:
        """The share of each operator in ``summed``, the largest first."""
        shares: dict[str, float] = {}
        for v in self.values:
            shares[v.value.operator] = shares.get(v.value.operator, 0.0) + float(np.nan_to_num(v.fidelity.kl))
        whole = sum(shares.values()) or 1.0
        return {k: s / whole for k, s in sorted(shares.items(), key=lambda item: -item[1])}

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        own = plain(self, ("name", "params", "sigma", "seeds", "windows", "positions", "only"))
        parts = {k: [v.as_json() for v in getattr(self, k)] for k in ("values", "rows")}
        return {**own, "together": self.together.as_json(), "summed_kl": self.summed, **parts}


def drift_by_value(
    plan: Plan,
    circuit: Circuit,
    windows: Tokens,
    *,
    noise: Noise,
    sigma: float,
    seeds: Sequence[int] = SEEDS,
    only: str | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    reporter: Reporter = SILENT,
) -> ByValue:
    """Every value that a plan refreshes, noisy alone, on windows (W, P + 1); ``only`` those of some families.

    With a ``folder`` what is done is kept there, under a name made from everything it depends on, and not done again.
    """
    if not seeds or min(seeds) < 0:
        raise ConfigError("noise needs at least one seed, of at least 0")
    values = refreshed_values(plan, circuit.calibration)
    chosen = [v for v in values if v.number in chosen_values(values, only)]
    clear, largest = clear_logits(plan, circuit, windows, reporter)
    kept = _Kept(folder, circuit.name, [plan.digest, _sha(windows), _probe(noise), list(seeds)])
    engine = checked_engine(plan, circuit, windows[:, :-1], clear, largest, device, reporter)
    work = _Work(plan, circuit, engine, windows, clear, largest, len(values))

    def rows_of(numbers: Sequence[int]) -> tuple[Chosen, ...]:
        return tuple(Chosen(noise, (n,), len(values), (seed, n)) for n in numbers for seed in seeds)

    todo = [v.number for v in chosen if kept.read(f"value-{v.number}") is None]
    room = ROOM if device == "cpu" else ROOM_ON_GPU
    size = max(1, room // (len(seeds) * len(windows) * plan.params.slots))
    parts = [todo[i : i + size] for i in range(0, len(todo), size)]
    name = f"together-{only or 'all'}"
    task, positions = circuit.name, windows.shape[1] - 1
    reporter.start(task, (len(parts) + (kept.read(name) is None)) * positions)
    if kept.read(name) is None:
        numbers = [v.number for v in chosen]
        all_noisy = [Chosen(noise, numbers, len(values), (seed, len(values))) for seed in seeds]
        watched = attention_rows(plan.program(ProgramName.LOGITS))
        scores, errors = work.run([Chosen(noise, (), len(values)), *all_noisy], watched, reporter, task)
        body = {"fidelity": _joined(scores[1:]).as_json(), "rows": [e.as_json() for e in errors]}
        kept.write(name, body)
    for part in parts:
        scores, _ = work.run(rows_of(part), {}, reporter, task)
        for i, number in enumerate(part):
            kept.write(f"value-{number}", _joined(scores[i * len(seeds) : (i + 1) * len(seeds)]).as_json())
    reporter.done(task)
    found = [ValueDrift(value=v, fidelity=_fidelity(kept.read(f"value-{v.number}"))) for v in chosen]
    body = kept.read(name)
    return ByValue(
        name=circuit.name, params=plan.params.name, sigma=sigma, seeds=tuple(seeds), windows=len(windows),
        positions=positions, only=only, together=_fidelity(body["fidelity"]),
        values=tuple(sorted(found, key=_own_kl, reverse=True)),
        rows=tuple(RowError(**{**row, "by_position": _numbers(row["by_position"], np.inf)}) for row in body["rows"]),
    )  # fmt: skip


def _own_kl(v: ValueDrift) -> float:
    """What values are ranked by; one that collapses every window has no KL and comes first."""
    return float(np.nan_to_num(v.fidelity.kl, nan=np.inf))


@dataclass(frozen=True, slots=True)
class _Work:
    """Everything that every batch of rows shares."""

    plan: Plan
    circuit: Circuit
    engine: ClearEngine
    windows: Tokens
    clear: Real
    largest: float
    total: int

    def run(
        self, noises: Sequence[Chosen], watched: Mapping[str, Any], reporter: Reporter, task: str
    ) -> tuple[list[Scores], list[RowError]]:
        """Scores (W, P) of each row, and the errors of the attention rows watched, against row 0."""
        self.engine.noise = NoiseByRow(tuple(noises))
        runner = _Watching(self.plan, self.engine, self.plan.source(self.circuit), watched=watched)
        talk = Conversation(runner)
        columns: list[list[Scores]] = [[] for _ in noises]
        for position, x in enumerate(row_inputs(self.plan, self.circuit, self.engine, self.windows[:, :-1])):
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                parts = talk.logits(x)
                logits = self.plan.packing.unpack_vocabulary([self.engine.read(p) for p in parts])
            target = self.windows[:, position + 1]
            found = Scores.of_rows(self.clear[:, position], logits, target, largest=self.largest)
            for scores, held in zip(found, columns, strict=True):
                held.append(scores)
            if any(n.asked != (position + 1) * self.total for n in noises):
                raise ConfigError("the program did not refresh what its steps say; plan again")
            reporter.advance(task, position=position)
        errors = [
            RowError(stage=stage, part=part, by_position=tuple(float(e) for e in found))
            for (stage, part), found in runner.errors.items()
        ]
        return [Scores.stack(held) for held in columns], errors


@dataclass
class _Watching(Runner):
    """A runner that compares attention rows with row 0 of the same value, as the next step uses them."""

    watched: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict)
    errors: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def _step(self, i: int, step: Step, program: str, values: dict[int, Any], position: int) -> None:
        super()._step(i, step, program, values, position)
        for stage, rows in self.watched.items():
            for part, number in rows:
                if stage == step.name and number in step.results:
                    seen = self.engine.read(values[number])
                    self.errors.setdefault((stage, part), []).append(self._error(seen))

    def _error(self, seen: Real) -> float:
        """Of slots (R, W, n), a head in every Hp-th; row 0 is the clear run's."""
        p = self.plan.packing
        heads = seen.real.reshape(*seen.shape[:-1], -1, p.Hp)[..., : self.plan.shape.heads]
        size = np.sqrt((heads[:1] ** 2).sum(axis=-2))
        apart = np.sqrt(((heads[1:] - heads[:1]) ** 2).sum(axis=-2))
        return float(np.median(np.where(np.isnan(apart / size), np.inf, apart / size)))


class _Kept:
    """Finished parts by name: in a folder, or in memory alone."""

    def __init__(self, folder: Path | None, name: str, depends_on: Sequence[Any]) -> None:
        self._mark = json_digest(list(depends_on))
        self._folder = None if folder is None else folder / f"{name}-{self._mark[:12]}"
        self._memory: dict[str, Any] = {}

    def read(self, part: str) -> Any:
        """What was written, or None."""
        if part not in self._memory and self._folder is not None and (self._folder / f"{part}.json").exists():
            self._memory[part] = read_json(self._folder / f"{part}.json", KIND, (1,))["part"]
        return self._memory.get(part)

    def write(self, part: str, body: Any) -> None:
        """Keep it, whole or not at all."""
        self._memory[part] = body
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / f"{part}.json", KIND, 1, {"mark": self._mark, "part": body})


def _joined(scores: Sequence[Scores]) -> Fidelity:
    return Scores.stack(scores, axis=0).fidelity()


def _fidelity(body: Mapping[str, Any]) -> Fidelity:
    """Inverse of its as_json, in which a number that does not exist is null."""
    known: dict[str, Any] = {k: np.nan if v is None else v for k, v in body.items()}
    return Fidelity(**known | {k: _numbers(known[k]) for k in ("kl_by_position", "top1_by_position")})


def _numbers(values: Sequence[float | None], absent: float = np.nan) -> tuple[float, ...]:
    return tuple(absent if v is None else float(v) for v in values)


def _sha(windows: Tokens) -> str:
    return hashlib.sha256(np.ascontiguousarray(windows).tobytes()).hexdigest()


def _probe(noise: Noise) -> list[float]:
    """What identifies a noise: what it does."""
    slots = np.linspace(-1.0, 1.0, 8)
    return [float(v) for bound in (1.0, 16.0) for v in noise(slots, bound, np.random.default_rng(0))]
