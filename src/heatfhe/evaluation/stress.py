# SPDX-License-Identifier: Apache-2.0
"""Stress: does a circuit hold on whatever a user types? Windows that leave a domain, that diverge, that choose faintly.

Shapes: W windows, P positions, V vocabulary. The same code watches a circuit in numpy and a prepared model in torch,
which on a GPU does hundreds of long windows a minute.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import cutmax
from heatfhe.circuit import Circuit
from heatfhe.errors import DataError
from heatfhe.files import existing, plain
from heatfhe.odd import HARD, KINDS, Hard, Rows, Tap, hard_tokens, odd_rows, some_of
from heatfhe.progress import SILENT, Reporter
from heatfhe.records import FAINT_LEADER, Calibration

if TYPE_CHECKING:
    from heatfhe.sites import Prepared

Run = Callable[[Rows, Tap], Any]
HEADERS = ("text", "windows", "diverge", "leave a domain", "first at", "excess there", "faint", "smallest leader")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStress:
    """A value that left its domain: in how many windows, and how far at most, in widths of the domain."""

    name: str
    windows: int
    excess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stress:
    """What one kind of text did to a circuit.

    ``outside`` counts windows that left a domain somewhere, ``sites`` says where, the furthest first; ``first`` is the
    one that most windows left before any other: what comes after it may be its victim. ``diverged`` counts windows
    whose logits were lost. Of the others ``smallest_leader`` is the smallest leader of a near one-hot row
    (nan without an argmax), and ``faint`` counts windows with one below half.
    """

    kind: str
    windows: int
    positions: int
    outside: int
    diverged: int
    faint: int
    smallest_leader: float
    sites: tuple[SiteStress, ...]
    first: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; a number that does not exist is null."""
        sites = [[s.name, s.windows, s.excess] for s in self.sites]
        return existing(plain(self) | {"sites": sites})

    def row(self) -> tuple[Any, ...]:
        """A row under HEADERS."""
        where = next(((s.name, s.excess) for s in self.sites if s.name == self.first), ("-", 0.0))
        return (self.kind, self.windows, self.diverged, self.outside, *where, self.faint, self.smallest_leader)


def stress_rows(
    text: Rows | None,
    vocabulary: int,
    positions: int,
    count: int,
    *,
    seed: int = 0,
    kinds: Sequence[str] = KINDS,
    hard: Hard | None = None,
    without: Sequence[int] = (),
) -> dict[str, Rows]:
    """``count`` odd windows of each kind; where there is no text there is nothing to shuffle or to change.

    None holds a token of ``without``, which a recipe's ``odd_without`` names.
    """
    usable = kinds if text is not None else [kind for kind in kinds if kind in ("random", "repeated", HARD)]
    like = np.zeros((1, positions), dtype=np.int64) if text is None else text
    return {kind: odd_rows([kind], count, like, vocabulary, seed, hard=hard, without=without) for kind in usable}


def text_rows(name: str, tokens: NDArray[Any], positions: int, count: int) -> Rows:
    """At most ``count`` windows of a text, evenly spaced."""
    windows = len(tokens) // positions
    if windows < 1:
        raise DataError(
            f"{name} holds {len(tokens)} tokens, a window of this stress has {positions}; give more text, or "
            "--positions"
        )
    return some_of(np.asarray(tokens[: windows * positions], dtype=np.int64).reshape(windows, positions), count)


def stress_circuit(
    circuit: Circuit, rows: Mapping[str, Rows], *, batch: int = 8, reporter: Reporter = SILENT
) -> list[Stress]:
    """Run a circuit, in float64, on windows (W, P) of every kind."""

    def run(tokens: Rows, tap: Tap) -> Any:
        with np.errstate(over="ignore", invalid="ignore"):
            return circuit.run(tokens, tap=tap)

    return [_stressed(kind, run, circuit.calibration, part, batch, reporter) for kind, part in rows.items()]


def stress_prepared(
    prepared: Prepared, rows: Mapping[str, Rows], *, batch: int = 8, reporter: Reporter = SILENT
) -> list[Stress]:
    """The same of a prepared model as it would be deployed, in its own precision and on its own device."""
    calibration = prepared.calibration
    if calibration is None:
        raise DataError("a model without constants cannot be stressed; calibrate or train it first")

    def run(tokens: Rows, tap: Tap) -> Any:
        with prepared.tapped(tap):
            return prepared.logits(tokens, mode="deployed")

    return [_stressed(kind, run, calibration, part, batch, reporter) for kind, part in rows.items()]


def hard_of_circuit(circuit: Circuit, *, reporter: Reporter = SILENT) -> Hard:
    """The tokens that a circuit bears worst when they are repeated, those of a nat above the usual one included."""
    return _hard(lambda tokens, tap: circuit.run(tokens, tap=tap), circuit.shape.vocabulary, circuit.room, 64, reporter)


def hard_of_prepared(prepared: Prepared, *, batch: int = 512, reporter: Reporter = SILENT) -> Hard:
    """The same of a prepared model as it would be deployed."""

    def run(tokens: Rows, tap: Tap) -> Any:
        with prepared.tapped(tap):
            return prepared.logits(tokens, mode="deployed")

    shape = prepared.architecture.shape
    return _hard(run, shape.vocabulary, shape.context - len(prepared.config.prefix), batch, reporter)


def _hard(run: Run, vocabulary: int, context: int, batch: int, reporter: Reporter) -> Hard:
    with np.errstate(over="ignore", invalid="ignore"):
        return hard_tokens(run, vocabulary, context, held=1.0, batch=batch, reporter=reporter)


def _stressed(kind: str, run: Run, known: Calibration, rows: Rows, batch: int, reporter: Reporter) -> Stress:
    domains = known.domains()
    excess: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    wild: list[NDArray[np.bool_]] = []
    leaders: list[NDArray[np.float64]] = []
    task = f"stress, {kind}"
    reporter.start(task, -(-len(rows) // batch))
    for start in range(0, len(rows), batch):
        seen: dict[str, Any] = {}

        def tap(name: str, value: Any, seen: dict[str, Any] = seen) -> Any:
            if name in domains:
                found = _excess(name, value, *domains[name], public=len(known.prefix))
                seen[name] = found if name not in seen else np.maximum(seen[name], found)
            return value

        logits = run(rows[start : start + batch], tap)
        for name, found in seen.items():
            excess[name].append(found)
        wild.append(_numpy(known.diverged(logits).any(-1)))
        leaders.append(_leaders(known, logits))
        reporter.advance(task, diverging=int(np.concatenate(wild).sum()))
    reporter.done(task)
    by_site = {name: np.concatenate(parts) for name, parts in excess.items()}
    diverged, leader = np.concatenate(wild), np.concatenate(leaders)
    left = np.stack([far > 0 for far in by_site.values()])  # (sites in depth order, W)
    firsts = left.argmax(axis=0)[left.any(axis=0)]
    sites = [
        SiteStress(name=name, windows=int((far > 0).sum()), excess=float(far.max())) for name, far in by_site.items()
    ]
    return Stress(
        kind=kind,
        windows=len(rows),
        positions=rows.shape[1],
        outside=len(firsts),
        first=list(by_site)[np.bincount(firsts).argmax()] if len(firsts) else "",
        diverged=int(diverged.sum()),
        faint=int((leader[~diverged] < FAINT_LEADER).sum()),
        smallest_leader=float(leader[~diverged].min()) if not diverged.all() else 0.0,
        sites=tuple(sorted((s for s in sites if s.windows), key=lambda s: -s.excess)),
    )


def _excess(name: str, value: Any, lo: float, hi: float, *, public: int) -> NDArray[np.float64]:
    """How far each window's values leave [lo, hi], in its widths: 0 inside, infinite where a value is not finite."""
    part, rows = name.rpartition("/")[2], value.shape[-2]
    if part == "scores":  # masked ones are never read
        keep: Any = np.tri(rows, public + rows, public, dtype=np.bool_)
        keep = keep if isinstance(value, np.ndarray) else value.new_tensor(keep) > 0
        middle = 0.5 * (lo + hi)
        value = np.where(keep, value, middle) if isinstance(value, np.ndarray) else value.where(keep, middle)
    elif part in ("sum", "sum2"):
        length = np.arange(public + 1.0, public + rows + 1.0)[:, None]
        value = value / (length if isinstance(value, np.ndarray) else value.new_tensor(length))
    flat = value.reshape(len(value), -1)
    ends = (flat.min(axis=1), flat.max(axis=1)) if isinstance(value, np.ndarray) else (flat.amin(1), flat.amax(1))
    least, most = (_numpy(end).astype(np.float64) for end in ends)
    with np.errstate(invalid="ignore"):
        far = np.maximum(np.maximum(most - hi, lo - least), 0.0) / (hi - lo)
    return np.asarray(np.nan_to_num(far, nan=math.inf, posinf=math.inf))


def _leaders(known: Calibration, logits: Any) -> NDArray[np.float64]:
    """The smallest leader of each window's near one-hot rows; 0 where a row is not finite."""
    if known.argmax is None:
        return np.full(len(logits), math.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        rows = cutmax(
            logits,
            known.argmax.schedule,
            mean=lambda v: v.mean(axis=-1, keepdims=True),
            size=logits.shape[-1],
        )
        top = _numpy(rows.max(-1) if isinstance(rows, np.ndarray) else rows.amax(-1)).astype(np.float64)
    return np.asarray(np.where(np.isfinite(top), top, 0.0).min(axis=-1))


def _numpy(value: Any) -> NDArray[Any]:
    return np.asarray(value if isinstance(value, np.ndarray) else value.cpu())
