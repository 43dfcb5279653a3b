# SPDX-License-Identifier: Apache-2.0
"""A near one-hot row at the largest entry: rounds of standardise and raise to an odd power (CutMax), then settling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from heatfhe.approx import _check
from heatfhe.approx.argmax_settle import Settle
from heatfhe.approx.arithmetic import Plain, T
from heatfhe.approx.inverse_sqrt import ChordSeed, InverseSqrtFit, chord_inverse_sqrt, inverse_sqrt
from heatfhe.approx.reciprocal import ReciprocalFit, divide, reciprocal
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
    """The rounds in order, the division by the row's sum that ends them (absent: the leader's size is left), and the
    settling rounds after it, which need its shares."""

    rounds: tuple[ArgmaxRound, ...]
    final: ReciprocalFit | None = None
    final_count: int = 0
    settle: tuple[Settle, ...] = ()

    def __post_init__(self) -> None:
        if not self.rounds:
            raise ConfigError("an argmax schedule needs at least one round")
        _check.count("final_count", self.final_count)
        if self.settle and self.final is None:
            raise ConfigError("settling rounds raise the shares of a row: give the division that makes them, final")

    @property
    def divisions(self) -> tuple[tuple[int, ReciprocalFit, int], ...]:
        """Every division by a row's sum: the power just before it, its reciprocal and its count."""
        settle = [(s.power, s.fit, s.count) for s in self.settle]
        return () if self.final is None else ((1, self.final, self.final_count), *settle)

    @property
    def levels(self) -> int:
        """Levels from the logits to the row, with sums that cost none."""
        spent = [power_depth(power) + 2 + count for power, _, count in self.divisions]
        last = 1 if spent and self.divisions[-1][2] else 0
        return sum(r.levels for r in self.rounds) + sum(spent) + last

    @property
    def sharpening(self) -> int:
        """The product of the powers: runner-up over leader is raised to it."""
        return math.prod(r.power for r in self.rounds) * math.prod(s.power for s in self.settle)


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
    Depth   schedule.levels with total; one more per round, and for every division, without it.
    Source  Avitan et al. 2025 (CutMax); the paper, encrypted argmax. Settling is ours.
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
    return shares(x, schedule, mean, float(size)) if total is None else shares(x, schedule, total)


def shares(x: T, schedule: ArgmaxSchedule, total: Callable[[T], T], scale: float = 1.0) -> T:
    """What the rounds left, divided by its sum, scale * total(x); then, in every settling round, raised to its power
    and divided again.

    All divisions but the last carry the row as their numerator, which saves a level. Noise of a refresh on its many
    entries does not stay: a power follows.

    Domain  every sum inside its reciprocal's domain; below it a row comes out smaller, but never above 1 in all.
    Bound   a division is a factor common to the row: entries keep their order, and runner-up over leader is raised to
            the product of the powers; the result adds up to 1 within the last reciprocal's error.
    Depth   2 + count of every division and its power's, one more for the last.
    Source  Avitan et al. 2025 (the first division); settling is ours.
    """
    divisions = schedule.divisions
    for power, fit, count in divisions[:-1]:
        x = raise_to(x, power)
        x = divide(x, total(x), fit, count, scale=scale)
    for power, fit, count in divisions[-1:]:
        x = raise_to(x, power)
        x = x * reciprocal(total(x), fit, count, scale=scale)  # noise on the numerator's many entries would stay here
    return x


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
