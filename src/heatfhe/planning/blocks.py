# SPDX-License-Identifier: Apache-2.0
"""Slot vectors that a plaintext may hold, in the layouts of many tokens: rows of all lengths, and where tokens go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.planning.pack import power_of_two
from heatfhe.planning.vectors import SlotVector, of_prefix
from heatfhe.stages import Attention, of, turns

if TYPE_CHECKING:
    from heatfhe.planning.source import PlaintextSource


class Rows(SlotVector, Enum):
    """Vectors over the rows of many tokens, each with a length of its own; the position is that of the last one.

    The values they meet have one ciphertext per block of queries, or per block and ``span`` blocks of keys. Tokens past
    the last, which fill its block, stand at its position and see what it sees: they are copies of it at every stage.
    In the places of a public prefix stand copies of the first token behind it.
    """

    CAUSAL = "rows.causal"  # scores that count: keys up to the query, in a head that is none of the padding
    EVERY = "rows.every"  # ones
    IDLE = "rows.idle"  # a head that is padding
    POSITIONS = "rows.positions"  # the rows of the embedding
    WHOLE = "rows.whole"  # scores that count where every query sees all keys, in a head that is none of the padding

    @property
    def key(self) -> str:
        return str(self.value)

    @property
    def moves(self) -> bool:  # type: ignore[override]
        return self not in (Rows.IDLE, Rows.WHOLE)

    def period(self, s: PlaintextSource) -> int:
        p = s.packing
        return {Rows.EVERY: p.t, Rows.IDLE: p.stride}.get(self, p.n)

    def places(self, s: PlaintextSource, position: int, part: int) -> NDArray[np.int64]:
        """The position every slot's query stands at."""
        p = s.packing.tokens
        if self is Rows.WHOLE:
            return np.full(p.n, p.context - 1)
        place = (p.score(part)[0] if self is Rows.CAUSAL else part) * p.t + p.coordinates[1]
        return np.clip(place, len(s.circuit.prefix), position)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, heads = s.packing.tokens, s.circuit.shape.heads
        h = p.coordinates[2]
        if self in (Rows.CAUSAL, Rows.WHOLE):
            keys = p.keys(p.score(part)[1] if self is Rows.CAUSAL else part % p.groups)
            return np.asarray((h < heads) & (keys <= self.places(s, position, part)), dtype=np.float64)
        if self is not Rows.POSITIONS:
            return np.asarray(h >= heads, dtype=np.float64) if self is Rows.IDLE else np.ones(p.n)
        rows = s.circuit.folded.position
        if rows is None:
            raise LookupError("a model without positions")
        return p.pack_tokens(rows[self.places(s, position, part)[: p.t]])[0][: p.n]


@dataclass(frozen=True, slots=True)
class Shift(SlotVector):
    """Top index ``row``, and the tokens that find another of their own block at slot + ``by``, at its place ``first``
    or a later one."""

    row: int
    by: int
    first: int = 0

    @property
    def key(self) -> str:
        return _numbered("shift", self.row, self.by, first=self.first)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        e, c, _ = s.packing.tokens.coordinates
        there = c + self.by
        return np.asarray((e == self.row) & (there >= self.first) & (there < s.packing.t), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Order(SlotVector):
    """Token ``token`` of head ``head`` in the cache's order, before the rotation that brings it there."""

    token: int
    head: int

    @property
    def key(self) -> str:
        return f"order:{self.token}:{self.head}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p = s.packing
        _, c, h = p.coordinates
        return np.roll(((c == self.token) & (h == self.head)).astype(np.float64), -self.token * (p.Hp - 1))


@dataclass(frozen=True, slots=True)
class Store(SlotVector):
    """Where the cache keeps the tokens of a block, from ``first`` up to the position: residue class ``row`` of its
    ciphertext."""

    moves: ClassVar[bool] = True
    block: int
    row: int
    first: int = 0

    @property
    def key(self) -> str:
        return _numbered("store", self.block, self.row, first=self.first)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p = s.packing
        e, c, _ = p.coordinates
        token = self.block * p.t + c
        return np.asarray((e % p.m == self.row) & (token >= self.first) & (token <= position), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Share(SlotVector):
    """The slots of one block of tokens where numbers of ``blocks`` blocks share a ciphertext: stretches of ``stretch``
    slots in turn, the next power of two of them a round; the last block has what is left of a round."""

    block: int
    blocks: int
    stretch: int

    def __post_init__(self) -> None:
        if not (0 <= self.block < self.blocks and self.stretch > 0):
            raise ConfigError(f"{self.key}: a share is that of one of its blocks, in whole slots")

    @property
    def key(self) -> str:
        return f"share:{self.block}:{self.blocks}:{self.stretch}"

    @property
    def turns(self) -> int:
        """Stretches of a round."""
        return power_of_two(self.blocks)

    @property
    def own(self) -> int:
        """How many of them are this block's."""
        return self.turns - self.block if self.block == self.blocks - 1 else 1

    def period(self, s: PlaintextSource) -> int:
        return self.turns * self.stretch

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        turn = np.arange(s.packing.n) // self.stretch % self.turns
        return np.asarray(np.minimum(turn, self.blocks - 1) == self.block, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Turned(SlotVector):
    """A mask of the cache times the cosine or the signed sine of rotary positions, of entries ``ahead`` further on."""

    moves: ClassVar[bool] = True
    store: Store
    base: float
    sine: bool
    ahead: int

    @property
    def key(self) -> str:
        return f"turned:{_part(self.sine)}:{self.base!r}:{self.ahead}:{self.store.key}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, mask = s.packing, self.store.slots(s, position, part)
        tokens = np.where(mask > 0, self.store.block * p.t + p.coordinates[1], 0)
        return np.asarray(mask * _turns(s, self.base, self.sine, tokens, p.inner(self.ahead)))


@dataclass(frozen=True, slots=True)
class Relative(SlotVector):
    """Scores that count, times the cosine or the signed sine of how far a query is from its key, of entries ``ahead``
    further on: a query turned by that meets keys that were never turned."""

    moves: ClassVar[bool] = True
    base: float
    sine: bool
    ahead: int

    @property
    def key(self) -> str:
        return f"relative:{_part(self.sine)}:{self.base!r}:{self.ahead}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, mask = s.packing.tokens, Rows.CAUSAL.slots(s, position, part)
        far = Rows.CAUSAL.places(s, position, part) - p.keys(p.score(part)[1])
        return np.asarray(mask * _turns(s, self.base, self.sine, np.where(mask > 0, far, 0), p.inner(self.ahead)))


@dataclass(frozen=True, slots=True)
class Known(SlotVector):
    """Keys and values of the public prefix, as real and imaginary part, spread as those of the first blocks are: see
    programs.packed_attention. Keys are turned back by their positions."""

    attention: str

    @property
    def key(self) -> str:
        return f"known:{self.attention}"

    def parts(self, s: PlaintextSource) -> int:
        return s.packing.dh

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, front = s.packing.tokens, s.circuit.front
        keys, values = front.keys[self.attention], front.values[self.attention]
        base = next(a.rotary for a in of(s.circuit.stages, Attention) if a.name == self.attention)
        if base is not None:
            cosine, sine = turns(base, s.circuit.shape.head_width, -np.arange(keys.shape[1]))
            keys = keys * cosine + np.roll(keys, keys.shape[-1] // 2, axis=-1) * sine
        token = np.roll(p.keys(0), part * p.stride)
        return of_prefix(keys, p, p.inner(0), token) + 1j * of_prefix(values, p, p.inner(0), token)


def _turns(s: PlaintextSource, base: float, sine: bool, positions: NDArray[Any], inner: NDArray[Any]) -> NDArray[Any]:
    """Of every slot the cosine, or the signed sine, of its position at its entry; zero in padding."""
    table = turns(base, s.circuit.shape.head_width, np.arange(int(positions.max()) + 1))[sine]
    return np.where(inner >= 0, table[positions, inner], 0.0)


def _part(sine: bool) -> str:
    return "sin" if sine else "cos"


def _numbered(kind: str, *numbers: int, first: int) -> str:
    """A key of numbers; ``first`` is left out where it is 0, as in plans that know of none."""
    return ":".join([kind, *map(str, numbers), *([str(first)] if first else [])])
