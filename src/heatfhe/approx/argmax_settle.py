# SPDX-License-Identifier: Apache-2.0
"""Settling rounds of the argmax: shares of a row are squared and divided by their sum, until one word holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heatfhe.approx import _check
from heatfhe.approx.reciprocal import BELOW, ReciprocalFit

POWER = 2  # the cheapest sharpening: a doubling in four levels, where a power of 3 takes seven and one of 4 nine
ALIKE = 4  # words that may share a row equally
MOST_SETTLE = 16  # rounds, doublings of the sharpening: logits 1e-6 apart end apart
LOOSE = 0.1  # error of every division but the last: the next one takes it away
ABOVE = 0.1  # what noise may add to a sum of powers, relative to a whole row


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """One round: x <- x^power / sum(x^power), the reciprocal on the domain of the sum."""

    power: int
    fit: ReciprocalFit
    count: int

    def __post_init__(self) -> None:
        _check.count("a settling round's power", self.power, floor=2)
        _check.count("a settling round's count", self.count, floor=1)


def fit_settle(rounds: int, *, solver: str = "plain", tolerance: float = 1e-3) -> tuple[Settle, ...]:
    """Settling rounds for rows of shares, all but the last with a loose division.

    Domain  rows of at least 1 - LOOSE and at most 1 in all, shared by up to ALIKE equal words, negative entries too
            small to count: a sum of powers lies in [(1 - LOOSE)^power ALIKE^(1 - power), 1], whatever the model.
    Bound   the last row adds up to 1 within the tolerance, those before within LOOSE and never to more than 1. Of a row
            shared by more words than ALIKE every round leaves less, and ever less: see docs/math/argmax.md.
    Depth   none: these are constants; ArgmaxSchedule states the levels.
    Source  ours: the division after CutMax (Avitan et al. 2025), repeated.
    """
    _check.count("settling rounds", rounds)
    _check.one_of("a settling round's solver", solver, ("plain", "relaxed"))
    lo, hi = (1.0 - LOOSE) ** POWER * ALIKE ** (1.0 - POWER), 1.0 + ABOVE
    loose = ReciprocalFit(lo=lo, hi=hi, solver=below(solver))
    last = ReciprocalFit(lo=lo, hi=hi, solver=solver)
    each = Settle(power=POWER, fit=loose, count=max(1, loose.smallest_count(LOOSE)))
    end = Settle(power=POWER, fit=last, count=max(1, last.smallest_count(tolerance)))
    return (each,) * (rounds - 1) + (end,) * min(rounds, 1)


def tied_sum(size: int, divisor: float, power: int) -> float:
    """The least sum that a round leaves of a row shared by up to ALIKE equal words, by an exact root.

    Below the first division's domain a row comes out small, and settling squares what it lacks: such a row would be
    lost. Calibration sees few ties, or none, so the domain must reach down to them without having seen one.

    Domain  rows of at least two entries.
    Bound   m words of one size and nothing else lie sqrt(size / m - 1) deviations out, as far as they can.
    Depth   none: this is a constant.
    Source  Samuelson's inequality, for m entries.
    """
    words = range(1, min(ALIKE, size - 1) + 1)
    return min(m * (math.sqrt(size / m - 1.0) / divisor) ** power for m in words)


def below(solver: str) -> str:
    """The solver of a division that another one follows: its result never exceeds the exact one."""
    return BELOW if solver == "relaxed" else solver
