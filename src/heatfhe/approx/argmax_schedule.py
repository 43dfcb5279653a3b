# SPDX-License-Identifier: Apache-2.0
"""The argmax's schedule from real logits: seeds, counts, divisors and domains in the fewest levels that hold leaders.

Past the first round only a row's leader matters to the search: rounds keep the shape of a row (up to its size), so
what an exact normaliser does to shapes is computed once, and every trial is arithmetic on one number per row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from heatfhe.approx import _check
from heatfhe.approx.argmax import ArgmaxRound, ArgmaxSchedule, cutmax, inverse_deviation, raise_to
from heatfhe.approx.argmax_settle import LOOSE, below, fit_settle, tied_sum
from heatfhe.approx.inverse_sqrt import ChordSeed, fit_inverse_sqrt
from heatfhe.approx.reciprocal import ReciprocalFit
from heatfhe.approx.remez import Array
from heatfhe.errors import ConfigError

# The paper's 9, 3, 3, 3, 7 with its 9 as two threes: the same sharpening, 1701, in fewer levels. A first power of 9
# leaves variances over a range of 1e8, which refresh noise of 1e-7 drowns; after threes it is 1e5 (docs/log.md).
POWERS = (3, 3, 3, 3, 3, 7)
FLOOR = 1e-2  # smallest leader aimed at, after the last round and after any
_NEAR = 0.97  # a root is nearly exact when it holds the leaders this close to where the exact one does
_LEAD = 1.25  # a leader must enter the first power this much larger than the most negative entry
_MOST_ROOT_LEVELS = 24
_WHOLE = 1024  # rows of up to this many entries are kept as they are
_TAIL = 64  # entries kept as they are at both ends of a long row; groups grow by a twentieth of their rank from there


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows in short (see shorten): values, and how many entries each column stands for."""

    values: Array
    weights: Array
    size: int

    def mean(self, v: Array) -> Array:
        return self.total(v) / self.size

    def total(self, v: Array) -> Array:
        return np.asarray(v @ self.weights)[:, None]


@dataclass(frozen=True, slots=True, eq=False)
class _Shapes:
    """What the rows that enter a round look like, leaders brought to 1: the leader over the mean, and the variance."""

    top: Array
    variance: Array

    @property
    def deviations(self) -> Array:
        """How many deviations each leader lies from the mean."""
        return np.asarray(self.top / np.sqrt(self.variance))


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Leaders between two rounds: those seen, those of weaker rows not seen, and how far over them one may be."""

    leaders: Array
    over: float
    shapes: tuple[_Shapes, ...]


_Run: TypeAlias = "tuple[tuple[ArgmaxRound, _State], ...]"  # rounds, each with what leaves it


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Aim:
    """What every round is fitted for, and the rounds made so far, by what entered them and the levels of their root."""

    rows: _Rows
    powers: tuple[int, ...]
    margin: float
    headroom: float
    newton_levels: int
    solver: str
    made: dict[tuple[int, int | None], tuple[ArgmaxRound, _State]] = field(default_factory=dict)


def fit_schedule(
    logits: Any,
    *,
    weights: Any = None,
    powers: Sequence[int] = POWERS,
    floor: float | None = None,
    round_floor: float | None = None,
    margin: float = 1.2,
    headroom: float = 0.95,
    newton_levels: int = 2,
    solver: str = "plain",
    final_tolerance: float | None = 1e-3,
    settle: int = 0,
) -> ArgmaxSchedule:
    """The schedule in the fewest levels found that keeps every row's leader at the floor or above.

    Each round's inverse root is a chord or a rational seed, whichever holds the leaders closest together at its levels;
    levels are given back, or traded between rounds, as long as the leaders stay up. Divisors let the largest leader
    enter at `headroom`; a first round whose most negative entry could win gets a shift. A floor that is given and
    cannot be met is refused; without one it is FLOOR, or half of what an exact normaliser leaves where that is less.
    final_tolerance is the last division's; None leaves it out. ``settle`` rounds follow it (fit_settle), each of which
    doubles the sharpening. ``weights`` are those of shorten.

    Domain  logits of shape (rows, size), finite, no row constant; on rows not seen, a leader may lie `margin` times
            as many deviations out as the furthest seen, or as few as the least far over sqrt(margin) in every round.
    Bound   on these rows, the leader leaves the last round at `floor` or above and every round at `round_floor` or
            above. A round's smallest leader l lets the next variance span l^-2, which times a refresh's relative noise
            must stay well under one.
    Depth   none: a calibration; the result states its levels.
    Source  Avitan et al. 2025; the paper, encrypted argmax. The search and the shift are ours.
    """
    rows = _checked(logits, weights)
    for given in (floor, round_floor):
        if given is not None:
            _check.tolerance(given)
    if not margin >= 1.0:
        raise ConfigError(f"argmax: a margin is at least 1, got {margin:g}")
    if not 0.0 < headroom <= 1.0:
        raise ConfigError(f"argmax: headroom lies in (0, 1], got {headroom:g}")
    if not powers:
        raise ConfigError("an argmax schedule needs at least one power")
    aim = _Aim(
        rows=rows,
        powers=tuple(int(p) for p in powers),
        margin=margin,
        headroom=headroom,
        newton_levels=newton_levels,
        solver=solver,
    )
    run = _search(aim, floor, round_floor)
    rounds = tuple(r for r, _ in run)
    _check.count("settle", settle)
    if final_tolerance is None:
        if settle:
            raise ConfigError(f"argmax: {settle} settling rounds need the last division; give a final_tolerance")
        return ArgmaxSchedule(rounds=rounds)
    sums = cutmax(rows.values, ArgmaxSchedule(rounds=rounds), mean=rows.mean, size=rows.size, total=rows.total)
    lo, hi = _final_domain(run, aim, rows.total(sums))
    if settle:
        lo = min(lo, tied_sum(rows.size, rounds[-1].divisor, rounds[-1].power) / margin)
    final = ReciprocalFit(lo=lo, hi=hi, solver=below(solver) if settle else solver)
    return ArgmaxSchedule(
        rounds=rounds,
        final=final,
        final_count=final.smallest_count(LOOSE if settle else final_tolerance),
        settle=fit_settle(settle, solver=solver, tolerance=final_tolerance),
    )


def shorten(rows: Array) -> tuple[Array, Array]:
    """Long rows of logits in short: both tails entry by entry, the middle as means of neighbours; and their numbers.

    Domain  shape (rows, size); up to 1024 entries they come back as they are, longer ones sorted.
    Bound   sums are exact; means of powers up to 9 agree to 2 % on rows like a language model's.
    Depth   none: calibration only.
    Source  ours.
    """
    size = rows.shape[1]
    if size <= _WHOLE:
        return rows, np.ones(size)
    half = size // 2
    ranks = [*range(_TAIL), *np.geomspace(_TAIL, half, int(20.0 * math.log(half / _TAIL)) + 2).astype(int)]
    starts = np.unique(np.concatenate([ranks[:-1], [half], size - np.array(ranks[:-1])[1:]]))
    held = np.diff(np.append(starts, size)).astype(np.float64)
    return np.add.reduceat(np.sort(rows, axis=1), starts, axis=1) / held, held


def _checked(logits: Any, weights: Any) -> _Rows:
    x = np.asarray(logits, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < 2:
        raise ConfigError(f"argmax: needs logits of shape (rows, size), size at least 2; got {x.shape}")
    if not np.isfinite(x).all():
        raise ConfigError("argmax: the logits hold an infinity or a NaN; check the weights, or drop those rows")
    if (x.max(axis=1) - x.min(axis=1) == 0.0).any():
        raise ConfigError("argmax: the logits hold a constant row, which has no largest entry; drop it")
    short, held = shorten(x) if weights is None else (x, np.asarray(weights, dtype=np.float64))
    return _Rows(short, held, int(held.sum()))


def _search(aim: _Aim, floor: float | None, round_floor: float | None) -> _Run:
    """Start near the exact normaliser; give levels back, or trade them between rounds, while the leaders stay up."""
    run = _run(aim, [None] * len(aim.powers), ())
    floor, round_floor = _floors(run, aim.powers, floor, round_floor)
    price = _price(run, aim)
    while True:
        best: tuple[tuple[int, float], _Run] | None = None
        for first, levels in _moves([r.root_levels for r, _ in run]):
            tried = _run(aim, levels[first:], run[:first])
            leaders = [float(state.leaders.min()) for _, state in tried]
            if leaders[-1] < floor or min(leaders) < round_floor:
                continue
            key = _price(tried, aim), -leaders[-1]
            if best is None or key < best[0]:
                best = key, tried
        if best is None or best[0][0] >= price:
            return run
        price, run = best[0][0], best[1]


def _floors(run: _Run, powers: tuple[int, ...], floor: float | None, round_floor: float | None) -> tuple[float, float]:
    """The floors to keep, given what a nearly exact normaliser leaves; refuses given ones out of reach."""
    leaders = [r.leader for r, _ in run]
    last, least = leaders[-1], min(leaders)
    if (floor is not None and last < floor) or (round_floor is not None and least < round_floor):
        raise ConfigError(
            f"argmax: powers {powers} leave a leader of {last:.2g} at the end and {least:.2g} after round "
            f"{leaders.index(least) + 1} however exact the normaliser; put smaller powers first, or lower the floors "
            f"({floor or FLOOR:g} at the end, {round_floor or FLOOR:g} after a round)"
        )
    unseen = [float(state.leaders.min()) for _, state in run]
    return min(floor or FLOOR, unseen[-1] / 2.0), min(round_floor or FLOOR, min(unseen) / 2.0)


def _moves(levels: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Neighbours of these levels that spend less: up to three fewer in one round, some of them moved to another."""
    for t, less, u in product(range(len(levels)), (1, 2, 3), range(len(levels))):
        for more in range(less) if u != t else (0,):
            moved = list(levels)
            moved[t] -= less
            moved[u] += more
            if moved[t] >= 1 and (more or u == t):
                yield min(t, u) if more else t, moved


def _price(run: _Run, aim: _Aim) -> int:
    """Levels of the roots, and of the final division that the leaders' spread will need."""
    lo, hi = _final_domain(run, aim, np.ones(1))
    return sum(r.root_levels for r, _ in run) + ReciprocalFit(lo=lo, hi=hi, solver=aim.solver).smallest_count(1e-3)


def _final_domain(run: _Run, aim: _Aim, sums: Array) -> tuple[float, float]:
    """Ends of what the last division meets: from the weakest leader not seen to ties of the largest."""
    last, held = run[-1][1], sums[sums > 0.0]  # a row lost to its negative tail has no sum to divide by
    lo = min(float(held.min(initial=1.0)), float(last.leaders.min()))
    return lo / aim.margin, max(1.0, float(held.max(initial=1.0))) * last.over


def _run(aim: _Aim, levels: Sequence[int | None], done: _Run) -> _Run:
    """The rounds after the ones done, at these levels of inverse root, each fitted on what the last one leaves."""
    run = list(done)
    for most in levels:
        state = run[-1][1] if run else None
        key = id(state), most  # states live as long as the table does
        if key not in aim.made:
            aim.made[key] = _first_round(aim, most) if state is None else _later_round(aim, state, most, len(run))
        run.append(aim.made[key])
    return tuple(run)


def _first_round(aim: _Aim, most: int | None) -> tuple[ArgmaxRound, _State]:
    """The round on the logits themselves, shifted where a negative tail could win, and the shapes that leave it."""
    rows, weaker = aim.rows, math.sqrt(aim.margin)
    centred = rows.values - rows.mean(rows.values)
    variance = rows.mean(centred * centred)[:, 0]
    top, lowest = centred.max(axis=1), -centred.min(axis=1)
    ends = float(variance.min()) / aim.margin, float(variance.max()) * aim.margin**2
    candidate, root = _best_root(aim, ends, top, variance, aim.powers[0], most)
    shift = max(0.0, float((root * (_LEAD * lowest - top / weaker)).max()) / (1.0 + _LEAD))
    divisor = (float((root * top).max()) + shift) / aim.headroom
    out = raise_to((centred * root[:, None] + shift) / divisor, candidate.power)
    leaders = out.max(axis=1)
    unseen = raise_to((top * root / weaker + shift) / divisor, candidate.power)
    shapes = tuple(_shapes(rows, out / leaders[:, None], aim.powers[1:], aim.margin))
    fitted = replace(candidate, divisor=divisor, shift=shift / divisor, leader=float(leaders.min()))
    return fitted, _left(aim, fitted, top / np.sqrt(variance), np.concatenate([leaders, unseen]), shapes)


def _shapes(rows: _Rows, x: Array, powers: Sequence[int], margin: float) -> Iterator[_Shapes]:
    """Mean and variance of the rows before every later round, leaders brought to 1 each time; then the same of rows
    whose leaders stand fewer deviations out, by the square root of the margin."""
    for power in powers:
        centred = x - rows.mean(x)
        top, variance = centred.max(axis=1), rows.mean(centred * centred)[:, 0]
        yield _Shapes(np.concatenate([top, top]), np.concatenate([variance, margin * variance]))
        x = raise_to(centred / top[:, None], power)


def _later_round(aim: _Aim, state: _State, most: int | None, index: int) -> tuple[ArgmaxRound, _State]:
    """A round on what an earlier one left: the best root of `most` levels, or the first that is nearly exact.

    The domain of the variance holds what the rows not seen may bring; it reaches as far up as they can, because above
    it the iterations diverge, while below it a leader only shrinks.
    """
    shapes = state.shapes[index - 1]
    top, variance = state.leaders * shapes.top, state.leaders**2 * shapes.variance
    seen = len(aim.rows.values)
    ends = float(variance.min()), float(variance[:seen].max()) * state.over**2
    candidate, root = _best_root(aim, ends, top, variance, aim.powers[index], most)
    divisor = float((top * root).max()) / aim.headroom
    leaders = raise_to(top * root / divisor, candidate.power)
    fitted = replace(candidate, divisor=divisor, leader=float(leaders[:seen].min()))
    return fitted, _left(aim, fitted, shapes.deviations, leaders, state.shapes)


def _best_root(
    aim: _Aim, ends: tuple[float, float], top: Array, variance: Array, power: int, most: int | None
) -> tuple[ArgmaxRound, Array]:
    """The inverse root that holds the leaders closest together at its levels, and its values."""
    lo, hi = ends
    kappa = 2.0 ** (math.ceil(4.0 * math.log2(hi / lo)) / 4.0)
    unit, exact = variance / lo, top / np.sqrt(variance)
    wanted = _NEAR * float(exact.min() / exact.max())
    chosen: tuple[float, ArgmaxRound, Array] | None = None
    for levels in range(1, _MOST_ROOT_LEVELS + 1) if most is None else (most,):
        for candidate in _candidates(kappa, levels, aim.newton_levels, aim.solver):
            root = np.asarray(inverse_deviation(unit, candidate, 1.0))
            leaders = top * root
            spread = float(leaders.min() / leaders.max())
            if chosen is None or spread > chosen[0]:
                chosen = spread, candidate, root
        if chosen is not None and chosen[0] >= wanted:
            break
    assert chosen is not None
    seed = chosen[1].seed
    scaled = ChordSeed(lo=lo, hi=lo * kappa) if isinstance(seed, ChordSeed) else seed.scaled(lo)
    return replace(chosen[1], power=power, seed=scaled), chosen[2] / math.sqrt(lo)


@lru_cache(maxsize=8192)
def _candidates(kappa: float, levels: int, newton_levels: int, solver: str) -> tuple[ArgmaxRound, ...]:
    """Every inverse root on [1, kappa] of at most these levels that converges; the deepest of each kind suffices."""
    make = partial(ArgmaxRound, power=1, divisor=1.0, newton_levels=newton_levels)
    found = [make(seed=ChordSeed(lo=1.0, hi=kappa), newton_count=(levels - 1) // newton_levels)]
    if levels < 3 or kappa > 1e9:
        return tuple(found)
    fit = fit_inverse_sqrt(1.0, kappa, solver=solver, form="partial")
    for newton_count in range((levels - 3) // newton_levels + 1):
        count = levels - 2 - newton_levels * newton_count
        if math.isfinite(fit.error(count, newton_count)) and fit.seed_range(count)[0] > 0.0:
            found.append(make(seed=fit, newton_count=newton_count, goldschmidt_count=count))
    return tuple(found)


@lru_cache(maxsize=8192)
def _largest(kappa: float, chord: bool, counts: tuple[int, int], newton_levels: int, solver: str) -> float:
    """The most that an inverse root on [1, kappa] is over the exact one."""
    v = np.geomspace(1.0, kappa, 257)
    seed = ChordSeed(lo=1.0, hi=kappa) if chord else fit_inverse_sqrt(1.0, kappa, solver=solver, form="partial")
    goldschmidt, newton = counts
    unit = ArgmaxRound(
        power=1, divisor=1.0, seed=seed, goldschmidt_count=goldschmidt, newton_count=newton, newton_levels=newton_levels
    )
    return float((np.sqrt(v) * inverse_deviation(v, unit, 1.0)).max())


def _left(aim: _Aim, r: ArgmaxRound, deviations: Array, leaders: Array, shapes: tuple[_Shapes, ...]) -> _State:
    """What leaves a round: the leaders, and how far over them another can lie.

    A leader not seen stands at most `margin` times as many deviations out as the furthest seen, and never further than
    sqrt(size - 1); it meets the root's error where that is worst over the domain.
    """
    kappa = 2.0 ** (round(4.0 * math.log2(r.hi / r.lo)) / 4.0)
    counts = r.goldschmidt_count, r.newton_count
    root = _largest(kappa, isinstance(r.seed, ChordSeed), counts, aim.newton_levels, aim.solver) / r.divisor
    furthest = min(aim.margin * float(deviations.max()), math.sqrt(aim.rows.size - 1.0))
    over = (furthest * root + r.shift) ** r.power / float(leaders.max())
    return _State(leaders, max(1.0, over), shapes)
