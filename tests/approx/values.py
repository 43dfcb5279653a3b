# SPDX-License-Identifier: Apache-2.0
"""Operands for the tests: one that knows only + - * and keeps a tally, as a tracer would."""

from __future__ import annotations

from typing import Any

import numpy as np


class Traced:
    """A value with its level; counts products of two unknowns. It has no other operation than + - *."""

    __array_ufunc__ = None

    def __init__(self, value: Any, spent: int = 0, tally: dict[str, int] | None = None) -> None:
        self.value, self.spent = np.asarray(value, dtype=np.float64), spent
        self.tally = {"products": 0, "plain": 0} if tally is None else tally

    def _lift(self, other: Any) -> Traced:
        return other if isinstance(other, Traced) else Traced(other, 0, self.tally)

    def __add__(self, other: Any) -> Traced:
        o = self._lift(other)
        return Traced(self.value + o.value, max(self.spent, o.spent), self.tally)

    def __sub__(self, other: Any) -> Traced:
        o = self._lift(other)
        return Traced(self.value - o.value, max(self.spent, o.spent), self.tally)

    def __rsub__(self, other: float) -> Traced:
        assert isinstance(other, float), "a plaintext vector must stand on the right"
        return Traced(other - self.value, self.spent, self.tally)

    def __radd__(self, other: float) -> Traced:
        assert isinstance(other, float), "a plaintext vector must stand on the right"
        return self + other

    def __mul__(self, other: Any) -> Traced:
        o = self._lift(other)
        self.tally["products" if isinstance(other, Traced) else "plain"] += 1
        return Traced(self.value * o.value, max(self.spent, o.spent) + 1, self.tally)

    def __rmul__(self, other: float) -> Traced:
        assert isinstance(other, float), "a plaintext vector must stand on the right"
        return self * other
