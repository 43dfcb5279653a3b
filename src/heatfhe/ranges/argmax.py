# SPDX-License-Identifier: Apache-2.0
"""The argmax schedule from real logits: round by round, each fitted on the rows the rounds before it left."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import ArgmaxRound, ArgmaxSchedule, ReciprocalFit, cutmax, fit_inverse_sqrt
from heatfhe.errors import ConfigError
from heatfhe.records import ArgmaxCalibration

# Orders of one sharpening, 1701 in all, tried in turn. The paper's first power of 9 leaves variances over a range of
# 1e8, which costs eight Newton steps and is lost to refresh noise of 1e-7 (measured on the default model; docs/log.md);
# as two threes it is not. Where a row's most negative entries lie far out, the 9 puts them away at once.
ORDERS = ((3, 3, 3, 3, 3, 7), (9, 3, 3, 3, 7))
_ENTRY = 0.95  # the largest leader enters a power at this size
_NORMALISER = 5e-2  # relative error allowed to 1/sqrt(variance): common to the row, it only moves the leader's size
_FINAL = 1e-3  # relative error of the last division: how far from 1 a clear winner may end
_WIDEST = 1e8  # ratio of variances fitted at most; rows below come out small, not wrong
_AHEAD = 0.8  # the most negative entry may enter the first power at this fraction of the leader's size

_TOP, _BOTTOM, _GROUPS = 256, 128, 512  # what is kept of a long row: both tails, and the means of equal groups between

Rows = NDArray[np.float64]


def shorten(row: Rows) -> tuple[Rows, Rows]:
    """A long row of logits in short: its tails entry by entry, the middle as group means; and how many each stands for.

    Domain  one row; up to 1024 entries it comes back as it is.
    Bound   sums are exact; sums of squares miss the variance inside a group, under 1e-4 of the row's for smooth rows.
    Depth   none: calibration only.
    Source  ours.
    """
    if row.size <= 1024:
        return row, np.ones(row.size)
    ordered = np.sort(row)
    middle = np.array_split(ordered[_BOTTOM:-_TOP], _GROUPS)
    values = np.concatenate([ordered[:_BOTTOM], [g.mean() for g in middle], ordered[-_TOP:]])
    return values, np.concatenate([np.ones(_BOTTOM), [float(g.size) for g in middle], np.ones(_TOP)])


def fit_argmax(
    logits: Sequence[NDArray[np.floating]] | NDArray[np.floating],
    *,
    weights: Rows | None = None,
    powers: Sequence[int] | None = None,
    margin: float = 1.2,
    solver: str = "plain",
) -> ArgmaxCalibration:
    """A schedule for rows like these; ``weights`` says how many logits each column stands for (see ``shorten``).

    Without ``powers`` it is the first of ORDERS that keeps the leader of every row, or the one that keeps most.

    Every round's divisor makes the largest leader enter its power at 0.95; its inverse root has the rational seed of
    the norms (a chord cannot hold the leader up over the range of variances a power of 9 leaves). Where some row's most
    negative entry rivals its leader, the first round is shifted upwards, which costs sharpness and nothing else.

    Domain  at least one row of at least two entries, finite.
    Bound   near_ties is the fraction of rows whose runner-up ends above a tenth of the leader.
    Depth   schedule.levels.
    Source  Avitan et al. 2025 (CutMax); the paper, encrypted argmax.
    """
    rows = np.asarray(logits, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 2:
        raise ConfigError(f"argmax: needs rows of at least two logits, got shape {rows.shape}; observe some sequences")
    if not np.isfinite(rows).all():
        raise ConfigError("argmax: the logits hold non-finite values; check the weights")
    held = np.ones(rows.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    best: tuple[float, ArgmaxCalibration] | None = None
    for order in ORDERS if powers is None else (tuple(powers),):
        made = _fit_order(rows, held, order, margin, solver)
        with np.errstate(over="ignore", invalid="ignore"):
            ends = np.nan_to_num(_apply(rows, held, made.schedule), nan=0.0)
        kept = float(np.mean(ends.argmax(axis=-1) == rows.argmax(axis=-1)))
        if best is None or kept > best[0]:
            best = kept, made
        if kept == 1.0:
            break
    assert best is not None
    return best[1]


def _fit_order(rows: Rows, held: Rows, powers: Sequence[int], margin: float, solver: str) -> ArgmaxCalibration:
    """A schedule with these powers: every round fitted on the rows the rounds before it leave."""
    rounds: list[ArgmaxRound] = []
    smallest = 1.0
    x = rows
    before: int | None = None
    for power in powers:
        made = _fit_round(x, held, power, before, margin, solver)
        rounds.append(made)
        smallest = min(smallest, made.leader)
        x = _apply(x, held, ArgmaxSchedule(rounds=(made,)))
        before = power
    totals = x @ held
    lo = max(float(totals.min()) / margin, float(totals.max()) / _WIDEST)
    final = ReciprocalFit(lo=lo, hi=float(totals.max()) * margin, solver=solver)
    schedule = ArgmaxSchedule(rounds=tuple(rounds), final=final, final_count=final.smallest_count(_FINAL, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        two = np.sort(_apply(rows, held, schedule), axis=-1)[:, -2:]
        ties = float(np.mean(two[:, 0] > 0.1 * two[:, 1]))
    return ArgmaxCalibration(schedule=schedule, near_ties=ties, smallest_leader=smallest)


def _fit_round(x: Rows, held: Rows, power: int, before: int | None, margin: float, solver: str) -> ArgmaxRound:
    """One round on the rows x that a round of power ``before`` left (None: the logits themselves)."""
    size = held.sum()
    centred = x - (x @ held)[:, None] / size
    variance = (centred**2) @ held / size
    if not variance.max() > 0.0:
        raise ConfigError("argmax: a round's rows are all constant; nothing can be told apart")
    hi = float(variance.max()) * margin
    if before is not None:  # a four-way tie of the largest leaders has the largest variance a round should meet
        hi = max(hi, 4.0 * _ENTRY ** (2 * before) / size)
    lo = max(float(variance.min()) / margin, hi / _WIDEST)
    standard = centred / np.sqrt(np.maximum(variance, lo))[:, None]
    leader, depth = standard.max(axis=-1), -standard.min(axis=-1)
    largest, shift = float(leader.max()) * math.sqrt(margin), 0.0
    if before is None:
        shift = max(0.0, float(((depth - _AHEAD * leader) / (1.0 + _AHEAD)).max()))
    else:  # after a power a leader cannot pass sqrt(V - 1) standard deviations (Samuelson): no margin beyond
        largest = min(largest, math.sqrt(size - 1.0))
    divisor = (largest + shift) / _ENTRY
    fit = fit_inverse_sqrt(lo, hi, solver=solver, form="partial")
    goldschmidt, newton = fit.smallest_counts(_NORMALISER)
    return ArgmaxRound(
        power=power,
        divisor=divisor,
        seed=fit,
        newton_count=newton,
        goldschmidt_count=goldschmidt,
        shift=shift / divisor,
        leader=float(((leader + shift) / divisor).min() ** power),
    )


def _apply(x: Rows, held: Rows, schedule: ArgmaxSchedule) -> Rows:
    size = held.sum()
    return np.asarray(cutmax(x, schedule, mean=lambda v: (v @ held)[:, None] / size, size=int(size)))
