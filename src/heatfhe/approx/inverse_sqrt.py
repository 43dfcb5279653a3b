# SPDX-License-Identifier: Apache-2.0
"""1/sqrt(z) by Newton's iteration from a rational seed whose division is Goldschmidt's, or from a scaled chord.

Its bounds are proved in proofs/Iterators.v; docs/theory.md says which theorem stands behind which function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import T
from heatfhe.approx.reciprocal import SOLVERS, ReciprocalFit, divide, reciprocal
from heatfhe.approx.remez import rational_inverse_sqrt
from heatfhe.errors import ConfigError

FORMS = ("quotient", "partial")
CHORDS = ("newton", "minimax", "ends")
_NARROWEST = 1.2  # a narrower domain is fitted on this ratio: the error, 3e-9, is below any use already


@dataclass(frozen=True, slots=True, kw_only=True)
class RationalSeed:
    """P(z) / (z + c) with a cubic P (ascending coefficients), the best relative fit of 1/sqrt(z) on [lo, hi]."""

    p: tuple[float, float, float, float]
    c: float
    lo: float
    hi: float
    error: float

    def __post_init__(self) -> None:
        _check.positive_domain("a rational seed", self.lo, self.hi)
        _check.finite("a rational seed", (*self.p, self.c, self.error))
        if len(self.p) != 4:
            raise ConfigError(f"a rational seed has 4 numerator coefficients, got {len(self.p)}")
        if self.lo + self.c <= 0.0:
            raise ConfigError(
                f"the pole -c = {-self.c:g} of a rational seed must lie under lo = {self.lo:g}; fit it again"
            )

    @property
    def partial(self) -> tuple[float, float, float, float]:
        """a0, a1, a2, r with P(z) / (z + c) = a0 + a1 z + a2 z^2 + r / (z + c)."""
        p0, p1, p2, p3 = self.p
        a2 = p3
        a1 = p2 - self.c * a2
        a0 = p1 - self.c * a1
        return a0, a1, a2, p0 - self.c * a0

    def scaled(self, by: float) -> RationalSeed:
        """The seed of 1/sqrt(z) for z in [by lo, by hi]: the same fit in other units."""
        p0, p1, p2, p3 = (v * by ** (0.5 - k) for k, v in enumerate(self.p))
        return RationalSeed(p=(p0, p1, p2, p3), c=by * self.c, lo=by * self.lo, hi=by * self.hi, error=self.error)


@lru_cache(maxsize=1024)
def fit_rational_seed(lo: float, hi: float) -> RationalSeed:
    """The (3, 1) rational with the least relative error against 1/sqrt(z).

    Domain  0 < lo < hi, ratio up to 1e9; converges over that whole span in a few hundredths of a second.
    Bound   .error, the levelled error of the exchange; the pole lies below zero.
    Depth   none: a fit.
    Source  Remez 1934; Qu and Xu 2022 for its use as a seed.
    """
    _check.positive_domain("a rational seed", lo, hi)
    if hi / lo > 1e9:
        raise ConfigError(f"[{lo:g}, {hi:g}] spans a ratio of {hi / lo:.3g}, over 1e9; raise lo or lower hi")
    p, c, error = rational_inverse_sqrt(max(hi / lo, _NARROWEST))
    return RationalSeed(p=(p[0], p[1], p[2], p[3]), c=c, lo=1.0, hi=hi / lo, error=error).scaled(lo)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChordSeed:
    """a - b z, a multiple of the chord of 1/sqrt(z) through the ends of [lo, hi].

    Domain  0 < lo < hi.
    Bound   sqrt(z) (a - b z) runs from `low` at both ends up to `high`; Newton's iteration needs high < sqrt(3).
    Depth   1 level to apply.
    Source  the paper (chord-seeded cascade). kind "newton": scaled by sqrt(3 / (1 + R + R^2)), so that ends and top
            coincide after one iteration, usable on every domain; "minimax": by 2 / (1 + R), least relative error,
            usable under ratio 262.8; "ends": the chord itself, usable under 13.4.
    """

    lo: float
    hi: float
    kind: str = "newton"

    def __post_init__(self) -> None:
        _check.positive_domain("a chord seed", self.lo, self.hi)
        _check.one_of("a chord seed's kind", self.kind, CHORDS)

    @property
    def top(self) -> float:
        """R, the largest sqrt(z) times the unscaled chord; it is 1 at both ends."""
        s = math.sqrt(self.hi / self.lo)
        m = s * s + s + 1.0
        return 2.0 / 3.0 * math.sqrt(m / 3.0) * m / (s * (s + 1.0))

    @property
    def low(self) -> float:
        """sqrt(z) times the seed at both ends, its smallest value: the scale of the chord."""
        top = self.top
        return {"newton": math.sqrt(3.0 / (1.0 + top + top * top)), "minimax": 2.0 / (1.0 + top), "ends": 1.0}[
            self.kind
        ]

    @property
    def high(self) -> float:
        """The largest sqrt(z) times the seed."""
        return self.low * self.top

    @property
    def b(self) -> float:
        """Slope of the seed."""
        s = math.sqrt(self.hi / self.lo)
        return self.low / (math.sqrt(self.lo) * self.lo * s * (s + 1.0))

    @property
    def a(self) -> float:
        """Constant of the seed."""
        return self.low / math.sqrt(self.lo) + self.b * self.lo


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrtFit:
    """A rational seed on [lo, hi], how its division is solved, and in which form it is written.

    form "quotient" divides the cubic by z + c as the paper does; "partial" divides the polynomial part out first,
    which saves one level and damps the division's error at large z.
    """

    lo: float
    hi: float
    seed: RationalSeed
    solver: str = "plain"
    form: str = "quotient"

    def __post_init__(self) -> None:
        _check.positive_domain("an inverse square root", self.lo, self.hi)
        _check.one_of("an inverse square root's solver", self.solver, SOLVERS)
        _check.one_of("an inverse square root's form", self.form, FORMS)

    @property
    def denominator(self) -> ReciprocalFit:
        """The reciprocal's fit on [lo + c, hi + c]."""
        return ReciprocalFit(lo=self.lo + self.seed.c, hi=self.hi + self.seed.c, solver=self.solver)

    def scaled(self, by: float) -> InverseSqrtFit:
        """The same fit for z in [by lo, by hi]."""
        seed = self.seed.scaled(by)
        return InverseSqrtFit(lo=by * self.lo, hi=by * self.hi, seed=seed, solver=self.solver, form=self.form)

    def levels(self, goldschmidt_count: int, newton_count: int, newton_levels: int = 2) -> int:
        """Levels from z to the result."""
        return (3 if self.form == "quotient" else 2) + goldschmidt_count + newton_levels * newton_count

    def seed_range(self, goldschmidt_count: int) -> tuple[float, float]:
        """Smallest and largest sqrt(z) times the seeded value, measured over the domain."""
        return _seed_range(self, goldschmidt_count)

    def error(self, goldschmidt_count: int, newton_count: int) -> float:
        """Largest |1 - y sqrt(z)| after Newton's iterations, measured over the domain; inf where they diverge."""
        return _worst(self.seed_range(goldschmidt_count), newton_count)

    def smallest_newton_count(self, tolerance: float, goldschmidt_count: int, floor: int = 0) -> int:
        """The least Newton count, not under floor, that meets the tolerance after this Goldschmidt count."""
        _check.tolerance(tolerance)
        for count in range(floor, 65):
            if self.error(goldschmidt_count, count) <= tolerance:
                return count
        raise ConfigError(
            f"Newton's iteration does not reach {tolerance:g} on [{self.lo:g}, {self.hi:g}] from "
            f"{goldschmidt_count} Goldschmidt iterations; raise their count or narrow the domain"
        )

    def smallest_counts(self, tolerance: float, *, newton_levels: int = 2, floor: int = 1) -> tuple[int, int]:
        """The (goldschmidt, newton) counts that meet the tolerance in the fewest levels; ties to fewer Newton."""
        _check.tolerance(tolerance)
        _check.one_of("newton_levels", newton_levels, (2, 3))
        best: tuple[int, int, int] | None = None
        for goldschmidt_count in range(floor, self.denominator.smallest_count(1e-12, floor) + 1):
            for newton_count in range(65):
                levels = self.levels(goldschmidt_count, newton_count, newton_levels)
                if best is not None and levels > best[0]:
                    break
                if self.error(goldschmidt_count, newton_count) <= tolerance:
                    best = min(
                        best or (levels, newton_count, goldschmidt_count), (levels, newton_count, goldschmidt_count)
                    )
                    break
        if best is None:
            raise ConfigError(f"no counts reach {tolerance:g} on [{self.lo:g}, {self.hi:g}]; narrow the domain")
        return best[2], best[1]


def fit_inverse_sqrt(lo: float, hi: float, *, solver: str = "plain", form: str = "quotient") -> InverseSqrtFit:
    """The fit of 1/sqrt(z) on [lo, hi] with its rational seed computed.

    Domain  0 < lo < hi, ratio up to 1e9.
    Bound   .seed.error before the division's error; .error(counts) after everything.
    Depth   none: a fit.
    Source  fit_rational_seed.
    """
    return InverseSqrtFit(lo=lo, hi=hi, seed=fit_rational_seed(lo, hi), solver=solver, form=form)


def inverse_sqrt(
    z: T,
    fit: InverseSqrtFit,
    goldschmidt_count: int,
    newton_count: int,
    *,
    gain: float = 1.0,
    newton_levels: int = 2,
    solve: Callable[[Any, T], T] | None = None,
    polish: Callable[[T, T], T] | None = None,
) -> T:
    """gain / sqrt(z), the gain folded into the seed; solve and polish stand in for the plain solvers when given.

    solve(n, q) returns n / q on fit.denominator (n is an unknown in the quotient form, a number in the partial one);
    polish(z, y) improves y towards gain / sqrt(z).

    Domain  fit.lo <= z <= fit.hi.
    Bound   relative error fit.error(goldschmidt_count, newton_count), measured over the domain.
    Depth   3 + goldschmidt_count (quotient) or 2 + goldschmidt_count (partial), + newton_levels * newton_count.
    Source  Qu and Xu 2022; the paper, LayerNorm inverse square root. The partial form is ours.
    """
    q: T = z + fit.seed.c
    if fit.form == "quotient":
        p0, p1, p2, p3 = (gain * v for v in fit.seed.p)
        numerator: T = (z * p3 + p2) * (z * z) + (z * p1 + p0)
        y = divide(numerator, q, fit.denominator, goldschmidt_count) if solve is None else solve(numerator, q)
    else:
        a0, a1, a2, rest = (gain * v for v in fit.seed.partial)
        y = reciprocal(q, fit.denominator, goldschmidt_count, gain=rest) if solve is None else solve(rest, q)
        y = y + _square_term(z, a2) + (z * a1 + a0)
    if polish is not None:
        return polish(z, y)
    return newton(z, y, newton_count, gain=gain, levels=newton_levels)


def _square_term(z: T, a: float) -> T:
    """a z^2 as the square of sqrt(|a|) z: two levels, and no value far above the result."""
    root = z * math.sqrt(abs(a))
    square: T = root * root
    return square if a >= 0.0 else square - (square + square)


def newton(z: T, y: T, count: int, *, gain: float = 1.0, levels: int = 2) -> T:
    """count of Newton's iterations of y towards gain / sqrt(z).

    Domain  0 < y sqrt(z) / gain < sqrt(3); at sqrt(3) the iteration falls to zero.
    Bound   with y sqrt(z) / gain = 1 - e, one iteration leaves exactly e^2 (3 - e) / 2.
    Depth   levels * count below y, for z at least one level shallower than y.
    Source  Newton's method for y^-2 = z / gain^2; the paper. The 2-level form is y' = 1.5 y - (z y / 2) y^2.
    """
    _check.one_of("levels of a Newton iteration", levels, (2, 3))
    if count == 0:
        return y
    half: T = z * (0.5 / (gain * gain))
    for _ in range(count):
        y = _newton_from_half(half, y, levels)
    return y


def _newton_from_half(half: T, y: T, levels: int) -> T:
    square: T = y * y
    if levels == 2:
        shallow: T = y * 1.5 - (half * y) * square
        return shallow
    deep: T = y * (1.5 - half * square)
    return deep


def chord_inverse_sqrt(z: T, seed: ChordSeed, newton_count: int, *, gain: float = 1.0, newton_levels: int = 2) -> T:
    """gain / sqrt(z) from a chord.

    Domain  seed.lo <= z <= seed.hi.
    Bound   Newton's map applied newton_count times to [seed.low, seed.high].
    Depth   1 + newton_levels * newton_count.
    Source  the paper, encrypted argmax.
    """
    y: T = z * (-gain * seed.b) + gain * seed.a
    return newton(z, y, newton_count, gain=gain, levels=newton_levels)


@lru_cache(maxsize=8192)
def _seed_range(fit: InverseSqrtFit, goldschmidt_count: int) -> tuple[float, float]:
    z = np.geomspace(fit.lo, fit.hi, 8001)
    u = np.sqrt(z) * inverse_sqrt(z, fit, goldschmidt_count, 0)
    return float(u.min()), float(u.max())


def _worst(u: Sequence[float], count: int) -> float:
    """Largest |1 - u'| of Newton's map over an interval of u: at an end, the map rising up to 1 and falling after."""
    low, high = u
    if low <= 0.0 or high >= math.sqrt(3.0):
        return math.inf if count else max(abs(1.0 - low), abs(1.0 - high))
    for _ in range(count):
        ends = low * (3.0 - low * low) / 2.0, high * (3.0 - high * high) / 2.0
        low, high = min(ends), (1.0 if low <= 1.0 <= high else max(ends))
    return max(abs(1.0 - low), abs(1.0 - high))
