# SPDX-License-Identifier: Apache-2.0
"""Public plaintexts by name: products of a number and named factors, so that constants fold before encoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from heatfhe.errors import ConfigError

Number: TypeAlias = "int | float"


@dataclass(frozen=True, slots=True)
class Public:
    """coefficient * product of factor^power. A factor is a vector or a scalar that a PlaintextSource knows by name.

    Supports * and / against numbers and its own kind: approximations fold their constants into it as into a float.
    """

    coefficient: float = 1.0
    factors: tuple[tuple[str, float], ...] = ()

    __array_ufunc__ = None

    @classmethod
    def named(cls, name: str) -> Public:
        """One factor by name."""
        return cls(1.0, ((name, 1.0),))

    def power(self, exponent: float) -> Public:
        """It raised to a power; its coefficient must be positive."""
        return Public(self.coefficient**exponent, tuple((n, p * exponent) for n, p in self.factors))

    def __mul__(self, other: Public | Number) -> Public:
        if not isinstance(other, Public):
            return Public(self.coefficient * float(other), self.factors)
        powers = dict(self.factors)
        for name, power in other.factors:
            powers[name] = powers.get(name, 0.0) + power
        left = tuple(sorted((n, p) for n, p in powers.items() if p))
        return Public(self.coefficient * other.coefficient, left)

    __rmul__ = __mul__

    def __neg__(self) -> Public:
        return Public(-self.coefficient, self.factors)

    def inverse(self) -> Public:
        """One over it."""
        return Public(1.0 / self.coefficient, tuple((n, -p) for n, p in self.factors))

    def __truediv__(self, other: Public | Number) -> Public:
        return self * (other.inverse() if isinstance(other, Public) else 1.0 / float(other))

    def __rtruediv__(self, other: Number) -> Public:
        return self.inverse() * other

    @property
    def key(self) -> str:
        """The one text form; parse is its inverse."""
        return "*".join([repr(self.coefficient), *(n if p == 1 else f"{n}^{p:g}" for n, p in self.factors)])

    @classmethod
    def parse(cls, key: str) -> Public:
        """Inverse of key."""
        number, *rest = key.split("*")
        factors = []
        try:
            for item in rest:
                name, _, power = item.partition("^")
                factors.append((name, float(power or 1)))
            return cls(float(number), tuple(factors))
        except ValueError as err:
            raise ConfigError(f"{key[:64]!r} is not a plaintext's key") from err

    def value(self, lookup: Callable[[str], Any]) -> Any:
        """The number or vector it stands for. A factor's positive powers of 0/1 vectors are taken as they stand."""
        out: Any = self.coefficient
        for name, power in self.factors:
            factor = lookup(name)
            out = out * (factor if power == 1 else np.power(factor, power))
        return out


def public(value: Public | Number) -> Public:
    """A number as a Public."""
    return value if isinstance(value, Public) else Public(float(value))
