# SPDX-License-Identifier: Apache-2.0
"""A near one-hot row at the largest entry: rounds of standardise and raise to an odd power (CutMax)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import Plain, T
from heatfhe.approx.inverse_sqrt import ChordSeed, InverseSqrtFit, chord_inverse_sqrt, inverse_sqrt
from heatfhe.approx.reciprocal import ReciprocalFit, reciprocal
from heatfhe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxRound:
    """One round: x <- ((x - mean) / (divisor sqrt(variance)) + shift)^power.

    seed is a chord, or a rational seed with its goldschmidt_count, on the domain of the variance. `leader` is the
    smallest leader that left the round when it was calibrated, relative to 1.
    """

    power: int
    divisor: float
    seed: ChordSeed | InverseSqrtFit
    newton_count: int
    goldschmidt_count: int = 0
    newton_levels: int = 2
    shift: float = 0.0
    leader: float = 1.0

    def __post_init__(self) -> None:
        _check.count("a round's power", self.power, floor=1)
        if self.power % 2 == 0:
            raise ConfigError(f"a round's power is odd, so that signs are kept; got {self.power}")
        _check.positive("a round's divisor", self.divisor)
        _check.count("newton_count", self.newton_count)
        _check.count("goldschmidt_count", self.goldschmidt_count)
        _check.one_of("newton_levels", self.newton_levels, (2, 3))
        _check.finite("a round", (self.shift, self.leader))

    @property
    def lo(self) -> float:
        """Lower end of the variance's domain."""
        return self.seed.lo

    @property
    def hi(self) -> float:
        """Upper end of the variance's domain."""
        return self.seed.hi

    @property
    def levels(self) -> int:
        """Levels of the round: mean 1, square 1, inverse root, apply 1, power."""
        return 3 + self.root_levels + power_depth(self.power)

    @property
    def root_levels(self) -> int:
        """Levels of the inverse root."""
        if isinstance(self.seed, ChordSeed):
            return 1 + self.newton_levels * self.newton_count
        return self.seed.levels(self.goldschmidt_count, self.newton_count, self.newton_levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxSchedule:
    """The rounds in order, and the division by the row's sum that ends them (absent: the leader's size is left)."""

    rounds: tuple[ArgmaxRound, ...]
    final: ReciprocalFit | None = None
    final_count: int = 0

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ConfigError("an argmax schedule needs at least one round")
        _check.count("final_count", self.final_count)

    @property
    def levels(self) -> int:
        """Levels from the logits to the row, with sums that cost none."""
        last = 0 if self.final is None else 3 + self.final_count if self.final_count else 2
        return sum(r.levels for r in self.rounds) + last

    @property
    def sharpening(self) -> int:
        """The product of the powers: runner-up over leader is raised to it."""
        return math.prod(r.power for r in self.rounds)


def cutmax(
    x: T,
    schedule: ArgmaxSchedule,
    *,
    mean: Callable[[T], T],
    size: int,
    total: Callable[[T], T] | None = None,
    occupied: Plain = 1.0,
    alike: Callable[[T, ArgmaxRound], tuple[T, int]] | None = None,
) -> T:
    """A row near 1 at its largest entry and near 0 elsewhere; near ties share.

    mean(x) is the mean over `size` entries at every real entry and zero in padding (a sum times a mask over size: one
    level). total(x) is the plain sum everywhere, free of levels; without it, size times the mean is used. occupied is
    the mask of real entries, needed with padding where a round has a shift. alike(spread, round) may give a multiple of
    the spread, and which one: an encrypted spread is in every slot with an error of that slot's own, which the later
    powers raise like a difference between two words; the sum of all slots has one error for all.

    Domain  variances inside every round's domain; the leader further from the mean than the most negative entry.
    Bound   runner-up / leader = rho^sharpening, rho their ratio after the first centring and shift.
    Depth   schedule.levels with total; one more per round, and for the final division, without it.
    Source  Avitan et al. 2025 (CutMax); the paper, encrypted argmax.
    """
    for r in schedule.rounds:
        centred: T = x - mean(x)
        square: T = centred * centred
        spread = mean(square) if total is None else total(square)
        scale = 1.0 if total is None else float(size)
        if alike is not None:
            spread, times = alike(spread, r)
            scale *= times
        y: T = centred * inverse_deviation(spread, r, scale)
        if r.shift != 0.0:
            y = y + r.shift * occupied
        x = raise_to(y, r.power)
    if schedule.final is None:
        return x
    scale = float(size) if total is None else 1.0
    share = reciprocal(mean(x) if total is None else total(x), schedule.final, schedule.final_count, scale=scale)
    near: T = x * share  # not as the division's numerator: noise on a whole row would stay in all its entries
    return near


def inverse_deviation(spread: T, r: ArgmaxRound, scale: float) -> T:
    """1 / (divisor sqrt(spread / scale)): scale and divisor move into the seed's constants.

    Domain  r.lo <= spread / scale <= r.hi.
    Bound   the round's inverse root's; an error common to a row leaves its order alone.
    Depth   r.root_levels.
    Source  the paper, encrypted argmax (chord); the rational seed is ours.
    """
    gain = math.sqrt(scale) / r.divisor
    if isinstance(r.seed, ChordSeed):
        chord = ChordSeed(lo=scale * r.seed.lo, hi=scale * r.seed.hi, kind=r.seed.kind)
        return chord_inverse_sqrt(spread, chord, r.newton_count, gain=gain, newton_levels=r.newton_levels)
    return inverse_sqrt(
        spread, r.seed.scaled(scale), r.goldschmidt_count, r.newton_count, gain=gain, newton_levels=r.newton_levels
    )


def raise_to(y: T, power: int) -> T:
    """y^power.

    Domain  any y, power >= 1.
    Bound   exact, rounding aside.
    Depth   ceil(log2(power)).
    Source  the largest power of two below, times the rest.
    """
    _check.count("a power", power, floor=1)
    squares = [y]
    for _ in range(power.bit_length() - 1):
        squares.append(squares[-1] * squares[-1])
    chosen = [square for i, square in enumerate(squares) if power >> i & 1]
    return reduce(lambda rest, square: square * rest, chosen)


def power_depth(power: int) -> int:
    """Levels of raise_to."""
    return (power - 1).bit_length()
