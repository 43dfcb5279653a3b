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
from heatfhe.planning.vectors import SlotVector

if TYPE_CHECKING:
    from heatfhe.planning.source import PlaintextSource


class Rows(SlotVector, Enum):
    """Vectors over the rows of many tokens, each with a length of its own; the position is that of the last one.

    The values they meet have one ciphertext per block of queries, or per block and ``span`` blocks of keys. Tokens past
    the last, which fill its block, stand at its position and see what it sees: they are copies of it at every stage.
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
        block = p.score(part)[0] if self is Rows.CAUSAL else part
        return np.minimum(block * p.t + p.coordinates[1], position)

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p, heads = s.packing.tokens, s.circuit.shape.heads
        e, c, h = p.coordinates
        if self in (Rows.CAUSAL, Rows.WHOLE):
            group = p.score(part)[1] if self is Rows.CAUSAL else part % p.groups
            keys = (group * p.span + e // p.t) * p.t + (c - e) % p.t
            return np.asarray((h < heads) & (keys <= self.places(s, position, part)), dtype=np.float64)
        if self is not Rows.POSITIONS:
            return np.asarray(h >= heads, dtype=np.float64) if self is Rows.IDLE else np.ones(p.n)
        rows = s.circuit.folded.position
        if rows is None:
            raise LookupError("a model without positions")
        return p.pack_tokens(rows[self.places(s, position, part)[: p.t]])[0][: p.n]


@dataclass(frozen=True, slots=True)
class Shift(SlotVector):
    """Top index ``row``, and the tokens that find another of their own block at slot + ``by``."""

    row: int
    by: int

    @property
    def key(self) -> str:
        return f"shift:{self.row}:{self.by}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        e, c, _ = s.packing.tokens.coordinates
        there = c + self.by
        return np.asarray((e == self.row) & (there >= 0) & (there < s.packing.t), dtype=np.float64)


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
    """Where the cache keeps the tokens of a block, up to the position: residue class ``row`` of its ciphertext."""

    moves: ClassVar[bool] = True
    block: int
    row: int

    @property
    def key(self) -> str:
        return f"store:{self.block}:{self.row}"

    def slots(self, s: PlaintextSource, position: int, part: int) -> NDArray[Any]:
        p = s.packing
        e, c, _ = p.coordinates
        return np.asarray((e % p.m == self.row) & (self.block * p.t + c <= position), dtype=np.float64)


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
