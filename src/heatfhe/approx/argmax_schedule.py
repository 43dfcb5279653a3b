# SPDX-License-Identifier: Apache-2.0
"""The argmax's schedule from real logits: seeds, counts, divisors and domains, measured round after round."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from heatfhe.approx import _check
from heatfhe.approx.argmax import ArgmaxRound, ArgmaxSchedule, cutmax, inverse_deviation, raise_to
from heatfhe.approx.inverse_sqrt import ChordSeed, fit_inverse_sqrt
from heatfhe.approx.reciprocal import ReciprocalFit
from heatfhe.approx.remez import Array
from heatfhe.errors import ConfigError

POWERS = (9, 3, 3, 3, 7)  # the paper's
_NEAR = 0.97  # a root is nearly exact when it holds the leaders this close to where the exact one does
_LEAD = 1.25  # a leader must enter a round this much larger than the most negative entry
_MOST_ROOT_LEVELS = 24
_TAIL = 64  # entries kept as they are at both ends of a long row; groups grow by a twentieth of their rank from there


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows in short: both tails entry by entry, the middle as means of neighbours with their number as weight."""

    values: Array
    weights: Array
    size: int

    def mean(self, v: Array) -> Array:
        return self.total(v) / self.size

    def total(self, v: Array) -> Array:
        s: Array = (v * self.weights).sum(axis=-1, keepdims=True)
        return s


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """Rows between two rounds, and how far under and over the leaders here one not seen may be, as factors."""

    x: Array
    under: float
    over: float


_Run: TypeAlias = "tuple[tuple[ArgmaxRound, _State], ...]"  # rounds, each with what leaves it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aim:
    """What every round is fitted for."""

    powers: tuple[int, ...]
    margin: float
    headroom: float
    newton_levels: int
    solver: str


def calibrate_schedule(
    logits: Any,
    powers: Sequence[int] = POWERS,
    *,
    floor: float = 1e-2,
    round_floor: float = 1e-5,
    margin: float = 1.2,
    headroom: float = 0.95,
    newton_levels: int = 2,
    solver: str = "plain",
    final_tolerance: float | None = 1e-3,
) -> ArgmaxSchedule:
    """The schedule in the fewest levels found that keeps every row's leader at the floor or above.

    Each round's inverse root is a chord or a rational seed, whichever holds the leaders closest together at its levels;
    levels are given back, or traded between rounds, as long as the leaders stay up. Divisors let the largest leader
    enter at `headroom`; a round whose most negative entry could win gets a shift. final_tolerance None leaves the last
    division out.

    Domain  logits of shape (rows, size), finite, no row constant; on rows not seen, a leader may lie `margin` times
            as many deviations out as the furthest seen.
    Bound   on these rows, the leader leaves the last round at `floor` or above and every round at `round_floor` or
            above, and the argmax is kept; both are checked by running the schedule.
    Depth   none: a calibration; the result states its levels.
    Source  Avitan et al. 2025; the paper, encrypted argmax. The search and the shift are ours.
    """
    rows = _shorten(logits)
    _check.tolerance(floor)
    if not margin >= 1.0:
        raise ConfigError(f"a margin is at least 1, got {margin:g}")
    if not 0.0 < headroom <= 1.0:
        raise ConfigError(f"headroom lies in (0, 1], got {headroom:g}")
    if not powers:
        raise ConfigError("an argmax schedule needs at least one power")
    aim = _Aim(
        powers=tuple(int(p) for p in powers),
        margin=margin,
        headroom=headroom,
        newton_levels=newton_levels,
        solver=solver,
    )
    rounds = _search(rows, aim, floor, round_floor)
    schedule = ArgmaxSchedule(rounds=rounds)
    if final_tolerance is not None:
        sums = rows.total(cutmax(rows.values, schedule, mean=rows.mean, size=rows.size, total=rows.total))
        slack = margin ** aim.powers[-1]
        final = ReciprocalFit(lo=float(sums.min()) / slack, hi=max(1.0, float(sums.max())) * slack, solver=solver)
        schedule = ArgmaxSchedule(rounds=rounds, final=final, final_count=final.smallest_count(final_tolerance))
    hot = cutmax(rows.values, schedule, mean=rows.mean, size=rows.size, total=rows.total)
    lost = int((hot.argmax(axis=-1) != rows.values.argmax(axis=-1)).sum())
    if lost:
        raise ConfigError(
            f"the argmax is lost in {lost} of {len(hot)} calibration rows; use larger powers or fewer near ties"
        )
    return schedule


def _shorten(logits: Any) -> _Rows:
    x = np.asarray(logits, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < 3:
        raise ConfigError(f"argmax calibration needs logits of shape (rows, size), size at least 3; got {x.shape}")
    if not np.isfinite(x).all():
        raise ConfigError("argmax calibration logits hold an infinity or a NaN; drop those rows")
    if (x.max(axis=1) - x.min(axis=1) == 0.0).any():
        raise ConfigError("argmax calibration logits hold a constant row, which has no largest entry; drop it")
    size = x.shape[1]
    if size <= 1024:
        return _Rows(x, np.ones(size), size)
    x = np.sort(x, axis=1)
    half = size // 2
    ranks = [*range(_TAIL), *np.geomspace(_TAIL, half, int(20.0 * math.log(half / _TAIL)) + 2).astype(int)]
    starts = np.unique(np.concatenate([ranks[:-1], [half], size - np.array(ranks[:-1])[1:]]))
    weights = np.diff(np.append(starts, size)).astype(np.float64)
    return _Rows(np.add.reduceat(x, starts, axis=1) / weights, weights, size)


def _search(rows: _Rows, aim: _Aim, floor: float, round_floor: float) -> tuple[ArgmaxRound, ...]:
    """Start near the exact normaliser; give levels back, or trade them between rounds, while the leaders stay up."""
    start = _State(rows.values, aim.margin**-0.5, aim.margin)
    run = _run(rows, aim, [None] * len(aim.powers), (), start)
    _refuse_unreachable(run, aim, floor, round_floor)
    price = _price(run, aim)
    while True:
        best: tuple[tuple[int, float], _Run] | None = None
        for first, levels in _moves([r.root_levels for r, _ in run]):
            tried = _run(rows, aim, levels[first:], run[:first], run[first - 1][1] if first else start)
            leaders = [made.leader for made, _ in tried]
            if leaders[-1] < floor or min(leaders) < round_floor:
                continue
            key = _price(tried, aim), -leaders[-1]
            if best is None or key < best[0]:
                best = key, tried
        if best is None or best[0][0] >= price:
            return tuple(r for r, _ in run)
        price, run = best[0][0], best[1]


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
    lo = run[-1][0].leader / aim.margin ** aim.powers[-1]
    return sum(r.root_levels for r, _ in run) + ReciprocalFit(lo=lo, hi=1.0, solver=aim.solver).smallest_count(1e-3)


def _refuse_unreachable(run: _Run, aim: _Aim, floor: float, round_floor: float) -> None:
    leaders = [r.leader for r, _ in run]
    if leaders[-1] < floor or min(leaders) < round_floor:
        worst = leaders.index(min(leaders)) + 1
        raise ConfigError(
            f"powers {aim.powers} leave a leader of {leaders[-1]:.2g} at the end and {min(leaders):.2g} after round "
            f"{worst} however exact the normaliser; put smaller powers first, or lower the floors "
            f"({floor:g} at the end, {round_floor:g} after a round)"
        )


def _run(rows: _Rows, aim: _Aim, levels: Sequence[int | None], done: _Run, state: _State) -> _Run:
    """The rounds after the ones done, at these levels of inverse root, each fitted on what the last one leaves."""
    made = list(done)
    for most in levels:
        fitted, state = _round(rows, aim, state, aim.powers[len(made)], most)
        made.append((fitted, state))
    return tuple(made)


def _round(rows: _Rows, aim: _Aim, state: _State, power: int, most: int | None) -> tuple[ArgmaxRound, _State]:
    """One round and what leaves it: the best root of `most` levels, or the first that is nearly exact.

    The domain of the variance holds what the rows not seen may bring; it reaches as far up as they can, because above
    it the iterations diverge, while below it a leader only shrinks.
    """
    centred = state.x - rows.mean(state.x)
    variance, top = rows.mean(centred * centred), centred.max(axis=-1, keepdims=True)
    lo, hi = float(variance.min()) * state.under**2, float(variance.max()) * state.over**2
    kappa = 2.0 ** (math.ceil(4.0 * math.log2(hi / lo)) / 4.0)
    exact = top / np.sqrt(variance)
    wanted = _NEAR * float(exact.min() / exact.max())
    chosen: tuple[float, ArgmaxRound, Array] | None = None
    for levels in range(1, _MOST_ROOT_LEVELS + 1) if most is None else (most,):
        for candidate in _candidates(lo, kappa, power, levels, aim):
            root = inverse_deviation(variance, candidate, 1.0)
            leaders = top * root
            spread = float(leaders.min() / leaders.max())
            if chosen is None or spread > chosen[0]:
                chosen = spread, candidate, root
        if chosen is not None and chosen[0] >= wanted:
            break
    assert chosen is not None
    fitted, x = _place(chosen[1], centred * chosen[2], power, aim.headroom)
    return fitted, _unseen(rows, aim, fitted, exact, x)


def _unseen(rows: _Rows, aim: _Aim, r: ArgmaxRound, deviations: Array, x: Array) -> _State:
    """What leaves a round: the seen rows, and how far leaders can lie from theirs.

    A leader not seen stands at most `margin` times as many deviations out as the furthest seen, and never further than
    sqrt(size - 1); it meets the root's error where that is worst over the domain. Downwards the square root of the
    margin is allowed for.
    """
    v = np.geomspace(r.lo, r.hi, 257)
    root = np.sqrt(v) * inverse_deviation(v, r, 1.0)
    furthest = min(aim.margin * float(deviations.max()), math.sqrt(rows.size - 1.0))
    over = (furthest * float(root.max()) + r.shift) ** r.power / float(x.max())
    return _State(x, aim.margin ** (-0.5 * r.power), max(1.0, over))


def _candidates(lo: float, kappa: float, power: int, levels: int, aim: _Aim) -> Iterator[ArgmaxRound]:
    """Every inverse root of at most these levels that converges on the domain; the deepest of each kind suffices."""
    step = aim.newton_levels
    chord = ChordSeed(lo=lo, hi=lo * kappa)
    yield ArgmaxRound(power=power, divisor=1.0, seed=chord, newton_count=(levels - 1) // step, newton_levels=step)
    if levels < 3 or kappa > 1e9:
        return
    unit = fit_inverse_sqrt(1.0, kappa, solver=aim.solver, form="partial")  # the same for many lo: fitted once
    fit = unit.scaled(lo)
    for newton_count in range((levels - 3) // step + 1):
        count = levels - 2 - step * newton_count
        if math.isfinite(unit.error(count, newton_count)) and unit.seed_range(count)[0] > 0.0:
            yield ArgmaxRound(
                power=power,
                divisor=1.0,
                seed=fit,
                newton_count=newton_count,
                goldschmidt_count=count,
                newton_levels=step,
            )


def _place(candidate: ArgmaxRound, y: Array, power: int, headroom: float) -> tuple[ArgmaxRound, Array]:
    """Set shift and divisor for these standardised rows; the round, and the rows that leave it."""
    leader, lowest = y.max(axis=-1), -y.min(axis=-1)
    shift = max(0.0, float(((_LEAD * lowest - leader) / (1.0 + _LEAD)).max()))
    divisor = float((leader + shift).max()) / headroom
    out = raise_to(y / divisor + shift / divisor, power)
    fitted = ArgmaxRound(
        power=power,
        divisor=divisor,
        seed=candidate.seed,
        newton_count=candidate.newton_count,
        goldschmidt_count=candidate.goldschmidt_count,
        newton_levels=candidate.newton_levels,
        shift=shift / divisor,
        leader=float(out.max(axis=-1).min()),
    )
    return fitted, out
