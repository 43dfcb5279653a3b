# SPDX-License-Identifier: Apache-2.0
"""Matrix-vector products on slots: which rotations, which plaintexts, and how baby and giant steps split them.

A product is ``y[s] = sum over r in R of M[in(s + r), out(s)] x[s + r]`` followed by a rotate-and-sum tree; ``in`` and
``out`` are layouts. With a complex input ``x + i rot_half(x)`` half of R suffices: the plaintexts become
``(a_r - i a_{r + half}) / 2`` and the result is ``z + conj(z)``. With a complex output two matrices share rotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.planning.pack.layout import Index, Packing

MOST_BABIES = 32  # rotated copies of the input held at once
_HOISTED = 0.49  # price of a hoisted rotation relative to a full one, for choosing the split only


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The rotations of one linear map; the numbers come from a PlaintextSource under the same key.

    ``half`` is the offset of the imaginary part of the input (0: a real input), ``pair`` says that two matrices make
    the real and imaginary part of the output, ``join`` that real and imaginary part of the input are two vectors.
    """

    key: str
    babies: tuple[int, ...]
    giants: tuple[int, ...]
    half: int = 0
    pair: bool = False
    join: bool = False

    def __post_init__(self) -> None:
        if not self.babies or not self.giants:
            raise ConfigError(f"{self.key}: a linear map needs at least one rotation, 0 included")
        if bool(self.half) + self.pair + self.join > 1:
            raise ConfigError(f"{self.key}: a complex input and a complex output do not combine")

    @property
    def complex(self) -> bool:
        """Whether its plaintexts are complex."""
        return bool(self.half) or self.pair or self.join

    @property
    def plaintexts(self) -> int:
        """Diagonals of the map."""
        return len(self.babies) * len(self.giants)

    @property
    def rotations(self) -> tuple[int, ...]:
        """Rotation keys the map needs."""
        return tuple(sorted({*self.babies, *self.giants} - {0}))

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Product:
        """Inverse of as_json."""
        return cls(**{**body, "babies": tuple(body["babies"]), "giants": tuple(body["giants"])})


def product(
    key: str,
    near: int,
    far: Sequence[int] = (0,),
    *,
    halve: bool,
    pair: bool = False,
    join: bool = False,
    split: bool = True,
) -> Product:
    """The map with rotations {0..near-1} + far, halved by a complex input where that is possible.

    ``split`` False keeps all near rotations as babies, so that several maps of one input can share them.
    """
    half = 0
    far = tuple(far)
    if halve and not pair and not join:
        if len(far) > 1:
            half, far = far[len(far) // 2], far[: len(far) // 2]
        elif near > 1:
            half = near = near // 2
    count = near
    if split:
        sizes = [1 << k for k in range(near.bit_length()) if 1 << k <= min(near, MOST_BABIES)]
        count = min(sizes, key=lambda b: (_HOISTED * (b - 1) + near // b * len(far) - 1, b))
    giants = tuple(g + f for f in far for g in range(0, near, count))
    return Product(key=key, babies=tuple(range(count)), giants=giants, half=half, pair=pair, join=join)


def to_heads(key: str, p: Packing, *, halve: bool) -> Product:
    """P -> I(heads); a tree of stride Hp over t terms follows, valid in copy 0."""
    return product(key, p.Hp, range(0, p.D, p.stride), halve=halve, split=False)


def from_heads(key: str, p: Packing, *, halve: bool) -> Product:
    """I(heads) -> P; a tree of stride D over t terms follows, valid everywhere."""
    return product(key, p.Hp, range(0, p.D, p.stride), halve=halve)


def to_hidden(key: str, p: Packing, *, halve: bool) -> Product:
    """P -> I(hidden); a tree of stride hF over n / F terms follows, valid in copy 0."""
    return product(key, p.hF, range(0, p.D, p.stride), halve=halve)


def from_hidden(key: str, p: Packing, *, halve: bool) -> Product:
    """I(hidden) -> P; a tree of stride D over t terms follows, valid everywhere."""
    return product(key, p.hF, range(0, p.D, p.stride), halve=halve)


def to_vocabulary(key: str, p: Packing, *, halve: bool, pair: bool = False) -> Product:
    """P -> P(V); for V < D a tree of stride V over D / V terms follows."""
    return product(key, min(p.D, p.V), halve=halve, pair=pair)


def from_vocabulary(key: str, p: Packing, *, halve: bool, join: bool = False) -> Product:
    """P(V) -> P; for V > D a tree of stride D over V / D terms follows."""
    return product(key, min(p.D, p.V), halve=halve, join=join)


def diagonal(matrix: NDArray[np.float64], source: Index, target: Index, r: int) -> NDArray[np.float64]:
    """M[in(s + r), out(s)] over the slots laid out, zero wherever either index is padding; matrix is (in, out)."""
    rows, columns = np.roll(source, -r), target
    real = (rows >= 0) & (columns >= 0)
    return np.asarray(np.where(real, matrix[np.where(real, rows, 0), np.where(real, columns, 0)], 0.0))


Term = tuple[NDArray[np.float64], Index, Index]


def encoded(p: Product, terms: Sequence[Term], giant: int, baby: int) -> NDArray[Any]:
    """The plaintext of one (giant, baby), rolled back by the giant; a term is (matrix, layout in, layout out).

    Two terms are given with ``pair`` or ``join``. 1/2 is folded in, so that z + conj(z) is the (real) result, and
    -i (z - conj(z)) the imaginary one.
    """
    r = giant + baby
    if p.pair:
        out: NDArray[Any] = (diagonal(*terms[0], r) + 1j * diagonal(*terms[1], r)) / 2
    elif p.join:
        out = (diagonal(*terms[0], r) - 1j * diagonal(*terms[1], r)) / 2
    elif p.half:
        out = (diagonal(*terms[0], r) - 1j * diagonal(*terms[0], r + p.half)) / 2
    else:
        out = diagonal(*terms[0], r)
    return np.roll(out, giant)
