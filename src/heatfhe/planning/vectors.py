# SPDX-License-Identifier: Apache-2.0
"""Slot vectors that a plaintext may hold: masks, positions, biases and diagonals, in the layouts of one token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heatfhe.planning.weights import Biased, Weight, placed
from heatfhe.stages import turns

if TYPE_CHECKING:
    from heatfhe.planning.pack import Packing
    from heatfhe.planning.source import PlaintextSource


class SlotVector:
    """What all of them share. Each has a ``key``, its name in plan files, and ``slots``, as they are laid out."""

    __slots__ = ()
    moves: ClassVar[bool] = False  # whether it depends on the position
    once: ClassVar[bool] = False  # whether a conversation meets it once, so that nobody need keep it

    def period(self, s: PlaintextSource) -> int:
        """Distinct slots."""
        return s.packing.n

    def parts(self, s: PlaintextSource) -> int:
        """Ciphertexts it differs in."""
        return 1


class Mask(SlotVector, Enum):
    """Ones where something is true of a slot, zeros elsewhere."""

    APPEND_K = "append.k"  # where the cache keeps this position's key
    APPEND_V = "append.v"  # and its value
    CAUSAL = "causal"  # a cached position up to this one, in a head that is none of the padding
    FIRST = "first"  # copy 0 of the heads' layout
    FIRST_HIDDEN = "first.hidden"  # copy 0 of the hidden layout
    IDLE = "idle"  # a head that is padding
    LOW = "low"  # among the first ``width`` slots
    WORDS = "words"  # a word, not padding

    @property
    def key(self) -> str:
        return str(self.value)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self in (Mask.APPEND_K, Mask.APPEND_V, Mask.CAUSAL)

    def period(self, s: PlaintextSource) -> int:
        p = s.packing
        return {Mask.CAUSAL: p.m * p.stride, Mask.IDLE: p.Hp, Mask.WORDS: p.V}.get(self, p.n)

    def parts(self, s: PlaintextSource) -> int:
        p = s.packing
        return {Mask.APPEND_K: p.m, Mask.APPEND_V: p.m, Mask.WORDS: p.vocabulary_parts}.get(self, 1)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, heads, slot = s.packing, s.circuit.shape.heads, np.arange(s.packing.n)
        e, c, h = p.coordinates
        where: dict[Mask, Callable[[], NDArray[Any]]] = {
            Mask.APPEND_K: lambda: (e % p.m == position // p.t) & (c == position % p.t),
            Mask.APPEND_V: lambda: ((e + part) % p.m == position // p.t) & (c == position % p.t),
            Mask.CAUSAL: lambda: (e % p.m * p.t + c <= position) & (h < heads),
            Mask.FIRST: lambda: c == 0,
            Mask.FIRST_HIDDEN: lambda: slot % p.stride // p.hF == 0,
            Mask.IDLE: lambda: h >= heads,
            Mask.LOW: lambda: slot < s.circuit.shape.width,
            Mask.WORDS: lambda: p.vocabulary(part) >= 0,
        }
        return np.asarray(where[self](), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Turn(SlotVector):
    """A mask of the heads' layout times the cosine or the signed sine of rotary positions."""

    moves: ClassVar[bool] = True
    mask: Mask
    base: float
    sine: bool

    @property
    def key(self) -> str:
        return f"turn:{'sin' if self.sine else 'cos'}:{self.base!r}:{self.mask.key}"

    def parts(self, s: PlaintextSource) -> int:
        return self.mask.parts(s)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        numbers = turns(self.base, s.circuit.shape.head_width, [position])[self.sine][0]
        ahead = part if self.mask is Mask.APPEND_K else 0  # a ciphertext of keys is moved by as many entries
        return self.mask.slots(s, position, part) * placed(numbers, s.packing.inner(ahead))


@dataclass(frozen=True, slots=True)
class Skew(SlotVector):
    """Ones in one region of the MLP's variant B."""

    region: int

    @property
    def key(self) -> str:
        return f"skew.{self.region}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        return np.asarray(np.arange(s.packing.n) // s.packing.F == self.region, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Position(SlotVector):
    """The position's row of the embedding."""

    moves: ClassVar[bool] = True
    key: ClassVar[str] = "position"

    def period(self, s: PlaintextSource) -> int:
        return s.packing.D

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        rows = s.circuit.folded.position
        if rows is None:
            raise LookupError("a model without positions")
        return placed(rows[position], s.packing.residual)


@dataclass(frozen=True, slots=True)
class Bias(SlotVector):
    """What is added after a linear map."""

    weight: Biased

    @property
    def key(self) -> str:
        return f"bias:{self.weight.key}"

    def period(self, s: PlaintextSource) -> int:
        return self.weight.period(s)

    def parts(self, s: PlaintextSource) -> int:
        return self.weight.parts(s)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        return self.weight.bias(s, part)


@dataclass(frozen=True, slots=True)
class Diagonal(SlotVector):
    """One plaintext of a linear map, used by itself where several maps share the rotations of their input."""

    weight: Weight
    giant: int
    baby: int

    @property
    def key(self) -> str:
        return f"map:{self.weight.key}:{self.giant}:{self.baby}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        return s.diagonal(self.weight, self.giant, self.baby)


@dataclass(frozen=True, slots=True)
class Front(SlotVector):
    """What the public prefix leaves in a cache (``NAME/k`` or ``NAME/v``): see programs.attention."""

    once: ClassVar[bool] = True
    port: str

    @property
    def key(self) -> str:
        return f"front:{self.port}"

    def parts(self, s: PlaintextSource) -> int:
        return s.packing.m

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, (attention, _, kind) = s.packing, self.port.rpartition("/")
        e, c, _ = p.coordinates
        if kind == "k":
            return of_prefix(s.circuit.front.keys[attention], p, p.inner(part), e % p.m * p.t + c)
        return of_prefix(s.circuit.front.values[attention], p, p.inner(0), (e + part) % p.m * p.t + c)


def of_prefix(rows: NDArray[Any], p: Packing, inner: NDArray[Any], token: NDArray[Any]) -> NDArray[Any]:
    """Numbers (heads, prefix, head width) at the head of every slot, this entry of this token; zero elsewhere."""
    heads, length, _ = rows.shape
    h = p.coordinates[2]
    real = (inner >= 0) & (h < heads) & (token < length)
    h, token, inner = (np.where(real, index, 0) for index in (h, token, inner))
    return np.where(real, rows[h, token, inner], 0.0)
