# SPDX-License-Identifier: Apache-2.0
"""Where a token's embedding, its noise and the answer lie in the slots: the client's half of a plan's packing.

A token's row of width d sits at slots s with s mod D < d, repeated with period D. One number per word sits in ``parts``
ciphertexts: part p holds word p*P + (s mod P) at slot s. Padding is zero. Where a server takes the tokens of a prompt
at once, t to a ciphertext, block b of them holds entry i of token b*t + c at slot i*t + c, repeated with period D*t;
behind a public prefix the prompt's first token is token ``first``. The rows of an image lie likewise; of its logits,
part p holds label p*D + i at slot i*t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import WireError
from heatfhe.planning import ProgramName
from heatfhe.wire import Fields, ModelConfig

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Slots, the input's width and period, the vocabulary's period and parts, and the levels to encrypt at."""

    slots: int
    width: int
    width_period: int
    input_level: int
    vocabulary: int
    word_period: int
    parts: int
    noise_level: int
    tokens: int = 0
    blocks: int = 0
    block_level: int = 0
    least: int = 0
    first: int = 0

    @classmethod
    def of(cls, config: ModelConfig) -> Layout:
        """Read a configuration's layout and check that it fits its parameters."""
        slots, levels = config.params.slots, config.params.levels
        top = Fields(config.layout, of="layout")
        row, words = (
            Fields(top.object("input"), of="layout input"),
            Fields(top.object("vocabulary"), of="layout vocabulary"),
        )
        many = {"tokens": slots, "blocks": config.context, "level": levels, "least": 1 << 22}
        image = ProgramName.CLASSIFY in config.programs
        name = "image" if image else "prefill"
        if image:
            del many["least"]
        packed = Fields(top.object(name), of=f"layout {name}") if name in config.layout else None
        at_once = [packed.integer(name, lo=name != "level", hi=hi) for name, hi in many.items()] if packed else []
        behind = packed is not None and "first" in config.layout[name]
        first = packed.integer("first", lo=1, hi=at_once[0] * at_once[1] - 1) if packed and behind else 0
        if packed:
            packed.done()
        top.done()
        names = ("tokens", "blocks", "block_level", "least")
        layout = cls(
            slots=slots,
            width=row.integer("size", lo=1, hi=slots),
            width_period=row.integer("period", lo=1, hi=slots),
            input_level=row.integer("level", lo=0, hi=levels),
            vocabulary=words.integer("size", lo=2, hi=1 << 22),
            word_period=words.integer("period", lo=1, hi=slots),
            parts=words.integer("parts", lo=1, hi=64),
            noise_level=words.integer("level", lo=0, hi=levels),
            first=first,
            **dict(zip(names, at_once)),
        )
        row.done()
        words.done()
        if layout.width > layout.width_period or slots % layout.width_period or slots % layout.word_period:
            raise WireError("layout: periods must divide the slots and hold their row; do not use this server")
        if layout.tokens and slots % (layout.width_period * layout.tokens):
            raise WireError("layout: the tokens of a prefill must fill the slots; do not use this server")
        if image and layout.tokens * layout.blocks < config.context:
            raise WireError("layout: the rows of an image do not fit their ciphertexts; do not use this server")
        if layout.vocabulary != config.vocabulary or layout.vocabulary > layout.parts * layout.word_period:
            raise WireError("layout: the vocabulary does not fit its parts; do not use this server")
        return layout

    def place_row(self, row: Real) -> Real:
        """A row of the residual stream on all slots."""
        padded = np.zeros(self.width_period)
        padded[: self.width] = row
        return np.tile(padded, self.slots // self.width_period)

    def at_once(self, tokens: int, context: int) -> int:
        """How many of a prompt's tokens go at once: what fits, all but the last, if that is quicker than one by one."""
        count = min(tokens - 1, self.tokens * self.blocks - self.first, context)
        return count if self.blocks and count >= self.least else 0

    def place_blocks(self, rows: Real) -> list[Real]:
        """Rows of tokens as whole blocks: copies of the first in the places before its own, of the last behind it."""
        place = np.arange(self.blocks * self.tokens) - self.first
        filled = rows[np.clip(place, 0, len(rows) - 1)].reshape(self.blocks, self.tokens, self.width)
        padded = np.zeros((self.blocks, self.width_period, self.tokens))
        padded[:, : self.width] = filled.swapaxes(1, 2)
        return [np.tile(block.reshape(-1), self.slots // block.size) for block in padded]

    def read_labels(self, parts: list[NDArray[Any]]) -> Real:
        """The logits of an image: those of its first row."""
        return self.read_words([part[: self.word_period * self.tokens : self.tokens] for part in parts])

    def place_words(self, values: Real) -> list[Real]:
        """One number per word, as one slot vector per part."""
        padded = np.zeros(self.parts * self.word_period)
        padded[: self.vocabulary] = values
        return [np.tile(part, self.slots // self.word_period) for part in padded.reshape(self.parts, self.word_period)]

    def read_words(self, parts: list[NDArray[Any]]) -> Real:
        """Inverse of place_words: real parts of the first period of every part."""
        if len(parts) != self.parts:
            raise WireError(
                f"an output has {len(parts)} ciphertexts, the layout says {self.parts}; do not use this server"
            )
        joined = np.concatenate([np.real(part[: self.word_period]) for part in parts])
        return np.asarray(joined[: self.vocabulary], dtype=np.float64)
