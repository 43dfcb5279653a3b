# SPDX-License-Identifier: Apache-2.0
"""Linear maps on slots: which rotations, which plaintexts, and how baby and giant steps split them.

A map is ``y[s] = sum over r in R of M[in(s + r), out(s)] x[s + r]`` followed by a rotate-and-sum tree; ``in`` and
``out`` are layouts. With a complex input ``x + i rot_half(x)`` half of R suffices: the plaintexts become
``(a_r - i a_{r + half}) / 2`` and the result is ``z + conj(z)``. With a complex output two matrices share rotations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from numpy.typing import NDArray

from heatfhe.ckks import SlotMatrix
from heatfhe.errors import ConfigError
from heatfhe.planning.pack.layout import Packing
from heatfhe.planning.weights import Term, Weight, parse_weight

MOST_BABIES = 32  # rotated copies of the input held at once
_HOISTED = 0.49  # price of a hoisted rotation relative to a full one, for choosing the split only


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """A plaintext slot vector, made when it is needed. Equal keys mean equal values: engines cache encodings by key.

    ``keep`` is False for vectors that depend on the position and are not worth caching; ``spare`` ones, which a
    conversation meets once, are worth what room others leave.
    """

    key: Hashable
    make: Callable[[], NDArray[Any]]
    keep: bool = True
    spare: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMap:
    """A plaintext linear map in baby-step giant-step form, one level deep.

    ``y = sum over G of rot_G( sum over b of make(G, b) * rot_b(x) )``; the vectors are already rolled back by G. A plan
    holds the rotations. A PlaintextSource adds ``make``, and ``matrices``, whose diagonals these vectors are, for an
    engine that reads them by itself. ``half`` is the offset of the imaginary part of the input (0: a real input),
    ``pair`` says that two matrices make the real and imaginary part of the output, ``join`` that real and imaginary
    part of the input are two vectors. ``spare`` is that of its vectors.
    """

    weight: Weight
    babies: tuple[int, ...]
    giants: tuple[int, ...]
    half: int = 0
    pair: bool = False
    join: bool = False
    make: Callable[[int, int], NDArray[Any]] | None = field(default=None, compare=False, repr=False)
    matrices: Callable[[], tuple[SlotMatrix, ...]] | None = field(default=None, compare=False, repr=False)
    spare: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.babies or not self.giants:
            raise ConfigError(f"{self.weight.key}: a linear map needs at least one rotation, 0 included")
        if bool(self.half) + self.pair + self.join > 1:
            raise ConfigError(f"{self.weight.key}: a complex input and a complex output do not combine")

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

    def vector(self, giant: int, baby: int) -> Vector:
        """One plaintext, for an engine."""
        if self.make is None:
            raise ConfigError(f"{self.weight.key}: has no plaintexts; ask a PlaintextSource for the map")
        return Vector((self.weight, giant, baby), partial(self.make, giant, baby), spare=self.spare)

    def between(self, terms: Sequence[Term]) -> tuple[SlotMatrix, ...]:
        """The matrices whose diagonals are its plaintexts; a term is (matrix, layout in, layout out).

        Two terms are given with ``pair`` or ``join``. 1/2 is folded in, so that z + conj(z) is the (real) result, and
        -i (z - conj(z)) the imaginary one.
        """
        if self.pair:
            return SlotMatrix(*terms[0], 0.5), SlotMatrix(*terms[1], 0.5j)
        if self.join:
            return SlotMatrix(*terms[0], 0.5), SlotMatrix(*terms[1], -0.5j)
        if self.half:
            return SlotMatrix(*terms[0], 0.5), SlotMatrix(*terms[0], -0.5j, self.half)
        return (SlotMatrix(*terms[0]),)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"key": self.weight.key} | {f.name: getattr(self, f.name) for f in fields(self)[1:] if f.compare}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> LinearMap:
        """Inverse of as_json."""
        rest: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items() if k != "key"}
        return cls(weight=parse_weight(body["key"]), **rest)


def linear_map(
    weight: Weight,
    near: int,
    far: Sequence[int] = (0,),
    *,
    halve: bool,
    pair: bool = False,
    join: bool = False,
    split: bool = True,
) -> LinearMap:
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
    return LinearMap(weight=weight, babies=tuple(range(count)), giants=giants, half=half, pair=pair, join=join)


def to_heads(weight: Weight, p: Packing, *, halve: bool) -> LinearMap:
    """P -> I(heads); a tree of stride Hp over t terms follows, valid in copy 0."""
    return linear_map(weight, p.Hp, range(0, p.D, p.stride), halve=halve, split=False)


def from_heads(weight: Weight, p: Packing, *, halve: bool) -> LinearMap:
    """I(heads) -> P; a tree of stride D over t terms follows, valid everywhere."""
    return linear_map(weight, p.Hp, range(0, p.D, p.stride), halve=halve)


def to_hidden(weight: Weight, p: Packing, *, halve: bool) -> LinearMap:
    """P -> I(hidden); a tree of stride hF over n / F terms follows, valid in copy 0."""
    return linear_map(weight, p.hF, range(0, p.D, p.stride), halve=halve)


def from_hidden(weight: Weight, p: Packing, *, halve: bool) -> LinearMap:
    """I(hidden) -> P; a tree of stride D over t terms follows, valid everywhere."""
    return linear_map(weight, p.hF, range(0, p.D, p.stride), halve=halve)


def to_vocabulary(weight: Weight, p: Packing, *, halve: bool, pair: bool = False) -> LinearMap:
    """P -> P(V); for V < D a tree of stride V over D / V terms follows."""
    return linear_map(weight, min(p.D, p.V), halve=halve, pair=pair)


def from_vocabulary(weight: Weight, p: Packing, *, halve: bool, join: bool = False) -> LinearMap:
    """P(V) -> P; for V > D a tree of stride D over V / D terms follows."""
    return linear_map(weight, min(p.D, p.V), halve=halve, join=join)
