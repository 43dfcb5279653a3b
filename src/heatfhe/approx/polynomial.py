# SPDX-License-Identifier: Apache-2.0
"""Chebyshev series by Paterson and Stockmeyer's method at the least possible depth, with few products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import Plain, T, region
from heatfhe.errors import ConfigError


def depth(degree: int) -> int:
    """Levels a series of this degree costs, its coefficients included: ceil(log2(degree + 1))."""
    return degree.bit_length()


@dataclass(frozen=True, slots=True)
class Shape:
    """How a series of one degree is split: which T_j are made, and where each remainder is cut."""

    degree: int
    odd: bool
    powers: tuple[int, ...]
    cuts: tuple[tuple[int, int, int], ...]  # (degree, level it must come out at, T_g to divide by)

    @property
    def products(self) -> int:
        """Products of two unknowns: one per power, and one per cut whose quotient is not a constant."""
        return len(self.powers) + _count_cuts(self.degree, depth(self.degree), {c[:2]: c[2] for c in self.cuts})


def evaluate(coefficients: Sequence[float], t: T, *, mask: Plain | None = None, odd: bool = False) -> T:
    """The series sum_j c_j T_j(t), every coefficient (the constant one too) multiplied by the mask.

    Domain  -1 <= t <= 1; a Chebyshev series explodes outside.
    Bound   exact, rounding aside.
    Depth   ceil(log2(d + 1)) levels for degree d, with the fewest products over the leaf sizes searched.
    Source  Paterson and Stockmeyer 1973; T_a T_b = (T_{a+b} + T_{|a-b|}) / 2.
    """
    c = [float(v) for v in coefficients]
    _check.finite("a Chebyshev series", c)
    while len(c) > 1 and c[-1] == 0.0:
        c.pop()
    if not c:
        raise ConfigError("a Chebyshev series needs at least one coefficient")
    if odd and any(c[0::2]):
        raise ConfigError("odd=True, but an even coefficient is not zero; pass odd=False")
    factor = 1.0 if mask is None else mask
    if len(c) == 1:
        nothing: T = t - t
        return nothing if c[0] == 0.0 else nothing + c[0] * factor
    shape = plan(len(c) - 1, odd)
    with region(t, "polynomial"):
        powers = _powers(t, shape.powers)
        return _combine(c, depth(shape.degree), powers, {cut[:2]: cut[2] for cut in shape.cuts}, factor)


def _powers(t: T, wanted: Sequence[int]) -> dict[int, T]:
    """T_1 and the wanted T_j, each at level ceil(log2 j), from smaller ones already made."""
    made: dict[int, T] = {1: t}
    for j in wanted:
        a, b = _factors(j)
        product = made[a] * made[b]
        made[j] = product + product - (1.0 if a == b else made[a - b])
    return made


def _factors(j: int) -> tuple[int, int]:
    """The two indices T_j is made of: both halves of an even power of two, else the power of two below and the rest."""
    top = 1 << (j.bit_length() - 1)
    if top == j:
        return j // 2, j // 2
    rest = j - top
    return max(top, rest), min(top, rest)


def _combine(c: list[float], level: int, powers: dict[int, T], cuts: dict[tuple[int, int], int], mask: Plain) -> T:
    degree = len(c) - 1
    g = cuts.get((degree, level))
    if g is None:
        return _leaf(c, powers, mask)
    quotient, remainder = divide_by(c, g)
    low = _combine(remainder, level, powers, cuts, mask)
    if len(quotient) == 1:
        high: T = powers[g] * (quotient[0] * mask)
    else:
        high = _combine(quotient, level - 1, powers, cuts, mask) * powers[g]
    total: T = high + low
    return total


def _leaf(c: list[float], powers: dict[int, T], mask: Plain) -> T:
    total: T | None = None
    for j in range(len(c) - 1, 0, -1):
        if c[j] != 0.0:
            term: T = powers[j] * (c[j] * mask)
            total = term if total is None else total + term
    if total is None:  # all but the constant vanished
        total = powers[1] - powers[1]
    return total if c[0] == 0.0 else total + c[0] * mask


def divide_by(c: Sequence[float], g: int) -> tuple[list[float], list[float]]:
    """Quotient and remainder of a Chebyshev series by T_g, for g <= degree <= 2 g."""
    degree = len(c) - 1
    quotient = [c[g]] + [2.0 * c[g + k] for k in range(1, degree - g + 1)]
    remainder = list(c[:g])
    for k in range(1, degree - g + 1):
        remainder[g - k] -= c[g + k]
    return quotient, remainder


@lru_cache(maxsize=1024)
def plan(degree: int, odd: bool) -> Shape:
    """The split of a series of this degree with the fewest products that keeps the least depth."""
    best: Shape | None = None
    for size in range(degree.bit_length()):
        shape = _plan_with_leaves(degree, odd, 1 << size)
        if best is None or shape.products < best.products:
            best = shape
    assert best is not None
    return best


def _plan_with_leaves(degree: int, odd: bool, leaf: int) -> Shape:
    cuts: dict[tuple[int, int], int] = {}
    leaves: set[int] = set()
    _split(degree, depth(degree), leaf, cuts, leaves)
    need = set(cuts.values())
    for top in leaves:
        need.update(range(1, top + 1, 2) if odd else range(1, top + 1))
    made: set[int] = set()
    while need:
        j = need.pop()
        if j > 1 and j not in made:
            made.add(j)
            a, b = _factors(j)
            need.update((a, b, a - b))
    made.discard(0)
    return Shape(degree, odd, tuple(sorted(made)), tuple((m, v, g) for (m, v), g in sorted(cuts.items())))


def _split(m: int, level: int, leaf: int, cuts: dict[tuple[int, int], int], leaves: set[int]) -> int:
    """Record the cheapest cuts of a degree-m series that must come out at this level; return their products."""
    if m <= leaf and _leaf_depth(m) <= level:
        leaves.add(m)
        return 0
    g = 1 << (m.bit_length() - 1)
    if g == m and m // 2 >= 1 and m > 2:
        g = m // 2  # a power of two: halving keeps T_m from being needed
    cuts[(m, level)] = g
    high = 0 if m == g else 1 + _split(m - g, level - 1, leaf, cuts, leaves)
    return high + _split(g - 1, level, leaf, cuts, leaves)


def _leaf_depth(m: int) -> int:
    return (m - 1).bit_length() + 1 if m >= 1 else 0


def _count_cuts(m: int, level: int, cuts: dict[tuple[int, int], int]) -> int:
    g = cuts.get((m, level))
    if g is None:
        return 0
    high = 0 if m == g else 1 + _count_cuts(m - g, level - 1, cuts)
    return high + _count_cuts(g - 1, level, cuts)
