# SPDX-License-Identifier: Apache-2.0
"""Public plaintexts as values: a number, a power of the row length and at most one slot vector, multiplied.

A plan holds these values and no weights; a source (``planning.source``) makes the numbers. In a plan file each is one
key, such as ``0.5*causal*rows^-0.5``: ``Public.key`` writes it and ``Public.parse`` alone reads it. The vectors are in
``planning.vectors`` and, of many tokens, in ``planning.blocks``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, Union

import numpy as np

from heatfhe.errors import ConfigError
from heatfhe.planning.blocks import Known, Order, Relative, Rows, Share, Shift, Store, Turned
from heatfhe.planning.vectors import Bias, Diagonal, Front, Mask, Position, Skew, Turn
from heatfhe.planning.weights import Embedding, parse_weight

Number: TypeAlias = "int | float"
STEEPEST = 64.0  # power of the row length
Factor = Union[
    Mask, Turn, Skew, Position, Bias, Diagonal, Front, Rows, Shift, Order, Store, Share, Turned, Relative, Known
]  # fmt: skip
_NUMBERED: Mapping[str, type[Shift] | type[Order] | type[Store] | type[Share]] = {
    "shift": Shift, "order": Order, "store": Store, "share": Share,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Public:
    """coefficient * (row length)^rows * vector.

    Supports * and / against numbers and its own kind: approximations fold their constants into it as into a float.
    """

    coefficient: float = 1.0
    rows: float = 0.0
    vector: Factor | None = None

    __array_ufunc__ = None

    @classmethod
    def of(cls, vector: Factor) -> Public:
        """A vector as it is."""
        return cls(vector=vector)

    @property
    def moves(self) -> bool:
        """Whether it depends on the position."""
        return bool(self.rows) or (self.vector is not None and self.vector.moves)

    def power(self, exponent: float) -> Public:
        """It raised to a power: a positive number and a row length, no vector."""
        if self.vector is not None:
            raise ConfigError(f"{self.key}: a slot vector has no powers")
        return Public(self.coefficient**exponent, self.rows * exponent)

    def __mul__(self, other: Public | Number) -> Public:
        if not isinstance(other, Public):
            return Public(self.coefficient * float(other), self.rows, self.vector)
        if self.vector is not None and other.vector is not None:
            raise ConfigError(f"{self.key} and {other.key}: a plaintext holds one slot vector")
        vector = other.vector if self.vector is None else self.vector
        return Public(self.coefficient * other.coefficient, self.rows + other.rows, vector)

    __rmul__ = __mul__

    def __neg__(self) -> Public:
        return Public(-self.coefficient, self.rows, self.vector)

    def inverse(self) -> Public:
        """One over it."""
        return Public(1.0 / self.coefficient) * Public(rows=self.rows, vector=self.vector).power(-1.0)

    def __truediv__(self, other: Public | Number) -> Public:
        return self * (other.inverse() if isinstance(other, Public) else 1.0 / float(other))

    def __rtruediv__(self, other: Number) -> Public:
        return self.inverse() * other

    def value(self, rows: Any, vector: Any = 1.0) -> Any:
        """What it stands for, given the row length and its vector."""
        out = self.coefficient * vector if self.vector is not None else self.coefficient
        if not self.rows:
            return out
        return out * (rows if self.rows == 1 else np.power(rows, self.rows))

    @property
    def key(self) -> str:
        """The one text form; parse is its inverse."""
        short = f"{self.rows:g}"
        length = "rows" if self.rows == 1 else f"rows^{short if float(short) == self.rows else repr(self.rows)}"
        names = ([length] if self.rows else []) + ([] if self.vector is None else [self.vector.key])
        return "*".join([repr(self.coefficient), *sorted(names)])

    @classmethod
    def parse(cls, key: str) -> Public:
        """Inverse of key; refuses everything that no value is written as."""
        try:
            number, *names = key.split("*")
            out = cls(float(number))
            for name in names:
                base, _, power = name.partition("^")
                out = out * (cls(rows=float(power or 1)) if base == "rows" else cls.of(_factor(name)))
        except (ValueError, ConfigError) as err:
            raise ConfigError(f"{key[:64]!r} is not a plaintext's key") from err
        if not (math.isfinite(out.coefficient) and abs(out.rows) <= STEEPEST and out.key == key):
            raise ConfigError(f"{key[:64]!r} is not a plaintext's key")
        return out


def public(value: Public | Number) -> Public:
    """A number as a Public."""
    return value if isinstance(value, Public) else Public(float(value))


def _factor(name: str) -> Factor:
    """The vector of a name in a plan file."""
    if name == Position.key:
        return Position()
    kind, colon, rest = name.partition(":")
    if not colon:
        kind, _, rest = name.partition(".")
        return Skew(int(rest)) if kind == "skew" else Rows(name) if kind == "rows" else Mask(name)
    if kind in _NUMBERED:
        made, numbers = _NUMBERED[kind], [int(number) for number in rest.split(":")]
        if not sum(f.default is MISSING for f in fields(made)) <= len(numbers) <= len(fields(made)):
            raise ValueError(name)
        return made(*numbers)
    if kind == "map":
        weight, giant, baby = rest.split(":")
        return Diagonal(parse_weight(weight), int(giant), int(baby))
    if kind == "front":
        return Front(rest)
    if kind == "known":
        return Known(rest)
    if kind in ("turn", "turned", "relative"):
        part, base, number_or_mask, *store = rest.split(":", 3)
        if kind == "turn" and not store:
            return Turn(Mask(number_or_mask), float(base), part == "sin")
        if kind == "relative" and not store:
            return Relative(float(base), part == "sin", int(number_or_mask))
        kept = _factor(":".join(store))
        if kind == "turned" and isinstance(kept, Store):
            return Turned(kept, float(base), part == "sin", int(number_or_mask))
        raise ValueError(name)
    weight_of_bias = parse_weight(rest)
    if kind != "bias" or isinstance(weight_of_bias, Embedding):
        raise ValueError(name)
    return Bias(weight_of_bias)
