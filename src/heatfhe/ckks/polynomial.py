# SPDX-License-Identifier: Apache-2.0
"""Chebyshev series on ciphertexts by Paterson-Stockmeyer, every sum at one exactly tracked scale."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.ring import After, Ciphertext, at_scale
from heatfhe.errors import OutOfLevelsError


def divide_chebyshev(p: NDArray[np.float64], g: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(q, r) with p = q T_g + r, deg r < g, for deg p < 2 g: T_(g+i) = 2 T_g T_i - T_(g-i)."""
    q = 2 * p[g:].copy()
    q[0] = p[g]
    r = p[:g].copy()
    for i in range(1, len(p) - g):
        r[g - i] -= p[g + i]
    return q, r


class ChebyshevEvaluator:
    """Evaluates series in T_k(x) for one ciphertext x whose levels are nested (those of EvalMod).

    Domain  slots of x in [-1, 1].
    Bound   rounding of the coefficients, 2^-50 relative, and the noise of each product.
    Depth   ceil(log2(degree + 1)).
    Source  Paterson, Stockmeyer 1973; the split that keeps the depth, Bossuat et al., ePrint 2020/1203.
    """

    def __init__(self, evaluator: Evaluator, x: Ciphertext, scales: dict[int, float]) -> None:
        self._e, self._scales = evaluator, scales
        self._basis = {1: x}

    def basis(self, k: int) -> Ciphertext:
        """T_k(x): powers of two by doubling, T_3 = T_1 (2 T_2 - 1)."""
        if k not in self._basis:
            e = self._e
            if k == 3:
                two = self.basis(2)
                factor = e.add_constant(e.add(two, two), -1.0)
                self._basis[3] = e.multiply(e.restrict(self.basis(1), two.level), factor)
            else:
                self._basis[k] = double_angle(e, self.basis(k // 2), 1.0)
        return self._basis[k]

    def evaluate(self, p: NDArray[np.float64], level: int, scale: float) -> Ciphertext:
        """The series p at exactly this level and scale."""
        e = self._e
        ratio = e.ring.ratio(level + 1, level)
        pairs: list[tuple[Ciphertext, Ciphertext]] = []
        while not self._simple(p, level):
            g = 1 << (len(p) - 1).bit_length() - 1
            power = self.basis(g)
            if power.level <= level:
                raise OutOfLevelsError(f"polynomial: T_{g} is at level {power.level}, needed above level {level}")
            q, p = divide_chebyshev(p, g)
            pairs.append(
                (self.evaluate(q, level + 1, scale * float(ratio) / power.scale), e.restrict(power, level + 1))
            )
        terms = self._terms(p, level + 1, scale, ratio)
        after = After(constant=round(Fraction(float(p[0])) * Fraction(scale)))
        if pairs:
            out = e.multiply_sum(pairs, terms, after)
        else:
            out = e.combine(terms, scale * float(ratio), after)
        return at_scale(out, scale)

    def _simple(self, p: NDArray[np.float64], level: int) -> bool:
        """Whether p is a linear combination of T_1 .. T_3 that are still above the level."""
        degree = len(p) - 1
        return degree <= 3 and all(self.basis(k).level > level for k in range(1, degree + 1))

    def _terms(self, p: NDArray[np.float64], level: int, scale: float, ratio: Fraction) -> list[tuple[Ciphertext, int]]:
        out = []
        for k in range(1, len(p)):
            t = self.basis(k)
            factor = round(Fraction(float(p[k])) * Fraction(scale) * ratio / Fraction(t.scale))
            out.append((self._e.restrict(t, level), factor))
        return out


def double_angle(evaluator: Evaluator, x: Ciphertext, constant: float) -> Ciphertext:
    """2 x^2 - constant."""
    scale = evaluator.ring.scale_below(x.scale * x.scale, x.level)
    return evaluator.multiply_sum([(x, x)], after=After(True, round(Fraction(-constant) * Fraction(scale))))
