# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of one token live: the periodic layout P, the interleaved layout I, and the sizes both follow from.

Layout P(M): slot s holds x[s mod M]. Layout I(w): slot e * stride + c * w + r holds entry (e, r) in every copy c; heads
use w = padded heads with r the head and e the index inside it, the hidden vector uses w = hidden / dh with index
e * w + r. A layout is an index array: slot -> index of the real vector, or -1 where the slot is padding and stays zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError, PlanError
from heatfhe.stages import Shape

Index = NDArray[np.int64]
Real = NDArray[np.float64]


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least ``least``."""
    return 1 << max(0, least - 1).bit_length()


def periodic(n: int, period: int, real: int) -> Index:
    """Layout P: slot s holds index s mod period, padding from ``real`` on."""
    index = np.arange(n) % period
    return np.where(index < real, index, -1)


@dataclass(frozen=True)
class Packing:
    """The sizes of a packed token: everything a layout, a mask or a product needs to know, and nothing secret.

    ``slots`` is what a ciphertext has; ``n`` of them are laid out and repeated when the ring is larger than the model
    can use (n = D * dh). ``context`` is the capacity T = t * m of the cache.
    """

    shape: Shape
    slots: int
    context: int

    def __post_init__(self) -> None:
        if self.slots < 1 or self.slots & (self.slots - 1):
            raise ConfigError(f"a slot count is a power of two, got {self.slots}")
        if self.slots < self.D:
            raise PlanError(
                f"the padded width {self.D} does not fit {self.slots} slots; "
                f"use a ring of dimension {2 * self.D} or more"
            )
        if not 1 <= self.context <= self.shape.context:
            raise PlanError(
                f"a cache of {self.context} positions was asked for, the circuit's context is {self.shape.context}; "
                "ask for at most that (--context)"
            )
        if self.m > self.dh:
            raise PlanError(
                f"a cache of {self.context} positions needs {self.m} residue classes and the head has {self.dh}; "
                f"ask for a context of at most {self.t * self.dh} (--context)"
                + (f", or a ring of dimension {2 * self.slots * self.m // self.dh}" if self.n == self.slots else "")
            )

    @property
    def Hp(self) -> int:
        """Heads, padded."""
        return power_of_two(self.shape.heads)

    @property
    def dh(self) -> int:
        """Head width, padded."""
        return power_of_two(self.shape.head_width)

    @property
    def D(self) -> int:
        """Width, padded: heads times head width, each padded."""
        return self.Hp * self.dh

    @property
    def n(self) -> int:
        """Slots laid out; the rest of a larger ring repeats them."""
        return min(self.slots, self.D * self.dh)

    @property
    def t(self) -> int:
        """Copies of a width-D vector that fit."""
        return self.n // self.D

    @property
    def stride(self) -> int:
        """Stride of the top index in layout I."""
        return self.n // self.dh

    @property
    def m(self) -> int:
        """Cache ciphertexts for keys, and as many for values."""
        return power_of_two(-(-self.context // self.t))

    @property
    def F(self) -> int:
        """Hidden width of one hidden ciphertext, padded."""
        return min(self.n, power_of_two(max(self.shape.hidden, self.dh)))

    @property
    def hidden_parts(self) -> int:
        """Ciphertexts that hold the hidden vector."""
        return -(-self.shape.hidden // self.F)

    @property
    def hF(self) -> int:
        """Inner width of the hidden layout."""
        return self.F // self.dh

    @property
    def V(self) -> int:
        """Period of one vocabulary ciphertext."""
        return min(self.n, power_of_two(self.shape.vocabulary))

    @property
    def vocabulary_parts(self) -> int:
        """Ciphertexts that hold one number per word."""
        return -(-self.shape.vocabulary // self.V)

    @property
    def word_step(self) -> int:
        """Slots from one word to the next."""
        return 1

    @property
    def capacity(self) -> int:
        """Positions the cache can hold: t * m, at least ``context``."""
        return self.t * self.m

    # -- layouts: index arrays over n slots -------------------------------------------------------------------------

    @cached_property
    def residual(self) -> Index:
        """Layout P of the residual stream."""
        return periodic(self.n, self.D, self.shape.width)

    @cached_property
    def coordinates(self) -> tuple[Index, Index, Index]:
        """(e, c, h) of every slot in the heads' layout."""
        s = np.arange(self.n)
        return s // self.stride, s % self.stride // self.Hp, s % self.Hp

    def inner(self, ahead: int) -> Index:
        """Index inside a head of every slot, or of the one ``ahead`` entries on. Halves of a head lie half a padded
        head apart, so that one rotation leads from each to the other."""
        e = (self.coordinates[0] + ahead) % self.dh
        upper, half = e >= (self.dh + 1) // 2, (self.shape.head_width + 1) // 2
        index = np.where(upper, half + e - (self.dh + 1) // 2, e)
        return np.where(index < np.where(upper, self.shape.head_width, half), index, -1)

    @cached_property
    def heads(self) -> Index:
        """Layout I of queries, keys, values and the attention's output."""
        h, inner = self.coordinates[2], self.inner(0)
        return np.where((h < self.shape.heads) & (inner >= 0), h * self.shape.head_width + inner, -1)

    def hidden(self, part: int) -> Index:
        """Layout I of one ciphertext of the hidden vector."""
        s = np.arange(self.n)
        index = part * self.F + s // self.stride * self.hF + s % self.hF
        return np.where(index < self.shape.hidden, index, -1)

    def vocabulary(self, part: int) -> Index:
        """Layout P of one ciphertext of logits or of a one-hot row."""
        index = part * self.V + np.arange(self.n) % self.V
        return np.where(index < self.shape.vocabulary, index, -1)

    @cached_property
    def tokens(self) -> TokenPacking:
        """The layouts of many tokens, ``t`` to a ciphertext."""
        return TokenPacking(self.shape, self.slots, self.context)

    # -- pack and unpack --------------------------------------------------------------------------------------------

    def place(self, row: Real, index: Index) -> Real:
        """A real vector (..., size) on all slots (..., slots): zero in padding, repeated in a larger ring."""
        row = np.asarray(row, dtype=np.float64)
        padded = np.concatenate([row, np.zeros((*row.shape[:-1], 1))], axis=-1)
        repeat = (1,) * (row.ndim - 1) + (self.slots // self.n,)
        return np.asarray(np.tile(padded[..., index], repeat))

    def pack_residual(self, row: Real) -> Real:
        """An embedding or residual row in layout P."""
        return self.place(row, self.residual)

    def pack_vocabulary(self, row: Real) -> list[Real]:
        """One number per word, as one slot vector per part."""
        return [self.place(row, self.vocabulary(p)) for p in range(self.vocabulary_parts)]

    def unpack_vocabulary(self, parts: list[NDArray[Any]]) -> Real:
        """Inverse of pack_vocabulary."""
        out = np.empty((*parts[0].shape[:-1], self.shape.vocabulary))
        for p, v in enumerate(parts):
            words = out[..., p * self.V : (p + 1) * self.V]
            words[...] = np.real(v)[..., : words.shape[-1] * self.word_step : self.word_step]
        return out


class TokenPacking(Packing):
    """``t`` tokens to a ciphertext, the token innermost: slot i * t + c holds entry i of token c, in no other copy.

    A rotation by t moves the entries of all tokens alike, so one diagonal of a matrix serves them all, and a sum over
    the width has period t. Heads lie at (e, h, c), slot e * stride + h * t + c; the cache's own order is (e, c, h).
    Token p of a text is token p mod t of block p div t. Blocks that one row of scores spans are ``span``.
    """

    @property
    def F(self) -> int:
        """Hidden entries of one ciphertext: as many as the stream's."""
        return self.D

    @property
    def V(self) -> int:
        """Labels of one ciphertext of logits: as many as the stream's entries."""
        return self.D

    @property
    def word_step(self) -> int:
        """One label for every token before the next."""
        return self.t

    @property
    def span(self) -> int:
        """Blocks whose tokens fit the top index of one ciphertext of scores."""
        return self.dh // self.t

    @cached_property
    def residual(self) -> Index:
        """Layout of the residual stream."""
        index = np.arange(self.n) // self.t
        return np.where(index < self.shape.width, index, -1)

    @cached_property
    def coordinates(self) -> tuple[Index, Index, Index]:
        """(e, c, h) of every slot."""
        s = np.arange(self.n)
        return s // self.stride, s % self.t, s // self.t % self.Hp

    def hidden(self, part: int) -> Index:
        """Layout of one ciphertext of the hidden vector."""
        index = part * self.D + np.arange(self.n) // self.t
        return np.where(index < self.shape.hidden, index, -1)

    def vocabulary(self, part: int) -> Index:
        """Layout of one ciphertext of logits, of every token by itself."""
        index = part * self.D + np.arange(self.n) // self.t
        return np.where(index < self.shape.vocabulary, index, -1)

    @property
    def blocks(self) -> int:
        """Blocks that hold the whole context."""
        return -(-self.context // self.t)

    @property
    def groups(self) -> int:
        """Ciphertexts of scores for one block of queries that sees the whole context."""
        return -(-self.blocks // self.span)

    def score(self, part: int) -> tuple[int, int]:
        """Block of the queries, and number of the ``span`` blocks of keys, that one ciphertext of scores holds."""
        block = 0
        while part > block // self.span:
            part -= block // self.span + 1
            block += 1
        return block, part

    def keys(self, group: int) -> Index:
        """The token whose key meets the query of every slot, in scores of the group-th ``span`` blocks of keys."""
        e, c, _ = self.coordinates
        return (group * self.span + e // self.t) * self.t + (c - e) % self.t

    def pack_image(self, rows: Real) -> list[Real]:
        """All rows of images (..., context, width), one slot vector (..., slots) per block, filled up with the last."""
        filled = rows[..., np.minimum(np.arange(self.blocks * self.t), self.context - 1), :]
        blocks = filled.reshape(*rows.shape[:-2], self.blocks, self.t, self.shape.width)
        out = np.zeros((*rows.shape[:-2], self.blocks, self.D, self.t))
        out[..., : self.shape.width, :] = blocks.swapaxes(-1, -2)
        flat = np.tile(out.reshape(*rows.shape[:-2], self.blocks, -1), self.slots // self.n)
        return [flat[..., block, :] for block in range(self.blocks)]

    def pack_tokens(self, rows: Real) -> list[Real]:
        """Rows of whole blocks, one slot vector per block."""
        blocks = np.asarray(rows, dtype=np.float64).reshape(-1, self.t, self.shape.width)
        out = np.zeros((len(blocks), self.D, self.t))
        out[:, : self.shape.width] = blocks.swapaxes(1, 2)
        return [np.tile(block.reshape(-1), self.slots // self.n) for block in out]
