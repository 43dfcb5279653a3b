# SPDX-License-Identifier: Apache-2.0
"""1/d and n/d by Goldschmidt's iteration from the best linear seed, plain or relaxed.

Its bounds are proved in proofs/Iterators.v; docs/theory.md says which theorem stands behind which function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import Plain, T
from heatfhe.errors import ConfigError

SOLVERS = ("plain", "relaxed")
BELOW = "below"  # the relaxed one for a factor that cancels later
WIDEST = 1e150  # of hi / lo: its square is still a double
_MOST = 64  # past kappa 1e16 the seed error rounds to 1 in doubles; at 1e16 and tolerance 1e-15 a plain count is 56


@dataclass(frozen=True, slots=True, kw_only=True)
class ReciprocalFit:
    """The seed alpha - beta d of 1/d on [lo, hi] and what the iteration makes of it.

    Domain  lo <= d <= hi <= WIDEST lo; the iteration still converges on all of (0, lo + hi) and diverges above it.
    Bound   seed_error = 1 / T_2((k + 1) / (k - 1)) with k = hi / lo, the least any linear seed can have.
    Depth   none: these are constants.
    Source  Goldschmidt 1964; the seed is the scaled Chebyshev polynomial T_2. Relaxed: re-centred after each
            iteration, which reaches the Chebyshev optimum 1 / T_{2^(count+1)}; it is not the paper's recurrence.
            Below: the relaxed result divided by 1 + e, e what it may exceed 1/d by at its count; since 1 + e is the
            last re-centring's own factor, that is to leave it out (at count 1 nothing but the plain iteration is left).
            It then never exceeds 1/d: 0 < d y <= 1 on all of (0, lo + hi), at every count, and (1 - e) / (1 + e) <=
            d y on the domain. For a softmax's first reciprocal, whose common factor the second one removes.
    """

    lo: float
    hi: float
    solver: str = "plain"

    def __post_init__(self) -> None:
        _check.positive_domain("a reciprocal", self.lo, self.hi)
        if self.hi > WIDEST * self.lo:
            raise ConfigError(
                f"[{self.lo:g}, {self.hi:g}] is too wide for a reciprocal: it may span a ratio of {WIDEST:g} at most"
            )
        _check.one_of("a reciprocal's solver", self.solver, (*SOLVERS, BELOW))

    @property
    def beta(self) -> float:
        """Slope of the seed."""
        k = self.hi / self.lo
        return 8.0 / (k * k + 6.0 * k + 1.0) / self.lo / self.lo

    @property
    def alpha(self) -> float:
        """Constant of the seed."""
        return self.beta * (self.lo + self.hi)

    @property
    def seed_error(self) -> float:
        """Largest |1 - d (alpha - beta d)| on the domain."""
        k = self.hi / self.lo
        return (k - 1.0) ** 2 / (k * k + 6.0 * k + 1.0)

    def errors(self, count: int) -> tuple[float, ...]:
        """Largest |1 - d y_i| on the domain for i = 0..count; from below, before the division by 1 + e."""
        _check.count("count", count)
        e = [self.seed_error]
        for _ in range(count):
            square = e[-1] * e[-1]
            e.append(square if self.solver == "plain" else square / (2.0 - square))
        return tuple(e)

    def error(self, count: int) -> float:
        """Largest |1 - d y| on the domain after count iterations: 2 e / (1 + e) from below."""
        e = self.errors(count)[-1]
        return 2.0 * e / (1.0 + e) if self.solver == BELOW else e

    def shares(self, count: int) -> tuple[float, ...]:
        """What each relaxed state y_0..y_count is multiplied by as a result: 1 / (1 + e_i) from below, else 1."""
        return tuple(1.0 / (1.0 + e) if self.solver == BELOW else 1.0 for e in self.errors(count))

    def smallest_count(self, tolerance: float, floor: int = 0) -> int:
        """The least count, not under floor, whose error is within the tolerance."""
        _check.tolerance(tolerance)
        for count in range(floor, _MOST + 1):
            if self.error(count) <= tolerance:
                return count
        raise ConfigError(
            f"[{self.lo:g}, {self.hi:g}] is too wide for a reciprocal to {tolerance:g} in {_MOST} iterations"
        )

    def schedule(self, count: int) -> tuple[float, ...]:
        """The scales s_0..s_count that let the relaxed iteration run as F = 2 s_i - D at no extra level.

        State i of a loop planned for count iterations is s_i times too large; all are 1 for the plain solver, and the
        last is 1 for the relaxed one, 1 / (1 + e) from below: neither costs anything.
        """
        return _schedule(self, count)

    def largest(self, count: int, least: float = math.inf) -> float:
        """No result on the domain, or for what lies between ``least`` and it, exceeds this after count iterations.

        Domain  any count.
        Bound   (1 + error) / lo, as 1 - d y is no larger than the error (1 / lo from below); and the seed's alpha times
                what every iteration can at most multiply by, 2 s_i: the smaller where so few do not reach 1 / lo.
        Depth   none: this is a constant.
        Source  d > 0 in f = 2 s_i - d.
        """
        s = self.schedule(count)
        reach = s[0] * self.alpha * math.prod(2.0 * x for x in s[:count])
        return min((1.0 if self.solver == BELOW else 1.0 + self.error(count)) / min(self.lo, least), reach)

    def overshoot(self, count: int) -> float:
        """No numerator on its way through ``divide`` is more than this many times its quotient.

        Domain  any count.
        Bound   the largest s_i (1 + e_i), as |1 - d y_i| <= e_i of states s_i times too large: 2 at most where plain.
        Depth   none: this is a constant.
        Source  the errors above.
        """
        return max(s * (1.0 + e) for s, e in zip(self.schedule(count), self.errors(count), strict=True))


@lru_cache(maxsize=4096)
def _schedule(fit: ReciprocalFit, count: int) -> tuple[float, ...]:
    if fit.solver == "plain":
        return (1.0,) * (count + 1)
    s = [fit.shares(count)[-1]]
    for e in reversed(fit.errors(count)[:-1]):
        s.append(math.sqrt(2.0 / (2.0 - e * e) * s[-1]))
    return tuple(reversed(s))


def goldschmidt(n: T, d: T, count: int, schedule: Sequence[float] | None = None, *, ahead: int = 0) -> T:
    """n / d by repeated n, d <- n f, d f with f = 2 s_i - d.

    ``ahead`` iterations, the first ones, multiply by f / 2: n comes 2**ahead times as large and d half as large. The
    result is the same to the bit (powers of two round nothing), but n never starts small, which counts where errors are
    absolute, as they are under encryption.

    Domain  0 < d < 2 (the caller scales; with a schedule, d and n come multiplied by s_0); 0 <= ahead <= count.
    Bound   relative error exactly |1 - d|**(2**count) without a schedule, rounding aside.
    Depth   count levels: n and d descend together, 2 - d is free; n may be as deep as d.
    Source  Goldschmidt 1964; the paper, memory-efficient gradients.
    """
    for i in range(count):
        top = 1.0 if schedule is None else schedule[i]
        f = (top if i < ahead else 2.0 * top) - d
        n = n * f
        if i + 1 < count:
            d = d * f if i >= ahead else (d * f) * (2 if i + 1 < ahead else 4)
    return n


def reciprocal(d: T, fit: ReciprocalFit, count: int, *, scale: Plain = 1.0, gain: Plain = 1.0, ahead: int = 0) -> T:
    """gain / (scale d), with scale and gain folded into the seed's constants; ``ahead`` as in goldschmidt.

    Domain  fit.lo <= scale d <= fit.hi; 0 <= ahead <= count.
    Bound   |1 - scale d y / gain| <= fit.error(count).
    Depth   2 + count levels for count >= 1, 1 for count = 0.
    Source  Goldschmidt 1964 from the minimax linear seed.
    """
    s = fit.schedule(count)
    top, slope = s[0] * fit.alpha, -s[0] * fit.beta
    if not 0 <= ahead <= count:
        raise ConfigError(f"a numerator is carried ahead for 0 to {count} iterations, not {ahead}")
    lead = gain * float(1 << ahead)
    n: T = d * (slope * scale * lead) + top * lead
    if count == 0:
        return n
    if ahead:
        half: T = d * (slope * scale * scale * 0.5) + top * scale * 0.5
        scaled: T = d * half
    else:
        scaled = d * _seed_for_denominator(d, n, scale, gain, top, slope)
    return goldschmidt(n, scaled, count, s, ahead=ahead)


def divide(num: T, d: T, fit: ReciprocalFit, count: int, *, scale: Plain = 1.0) -> T:
    """num / (scale d), the numerator riding along with the iteration.

    Domain  fit.lo <= scale d <= fit.hi.
    Bound   relative error <= fit.error(count).
    Depth   2 + count levels below d; num may be one level deeper than d at no cost.
    Source  Goldschmidt 1964 from the minimax linear seed.
    """
    s = fit.schedule(count)
    top, slope = s[0] * fit.alpha, -s[0] * fit.beta
    seed: T = d * (slope * scale) + top
    n: T = num * seed
    if count == 0:
        return n
    scaled: T = d * _seed_for_denominator(d, seed, scale, 1.0, top, slope)
    return goldschmidt(n, scaled, count, s)


def _seed_for_denominator(d: T, seed: T, scale: Plain, gain: Plain, top: float, slope: float) -> T:
    """scale times the seed: the numerator's own where scale and gain agree, else a second one from the same d."""
    if isinstance(scale, (int, float)) and isinstance(gain, (int, float)) and scale == gain:
        return seed
    other: T = d * (slope * scale * scale) + top * scale
    return other
