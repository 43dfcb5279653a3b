# SPDX-License-Identifier: Apache-2.0
"""Many tokens at once, t to a ciphertext: a whole prompt into the cache that single tokens go on from, or an image.

Layout (TokenPacking): slot i * t + c of ciphertext b holds entry i of token b * t + c. A diagonal of a matrix serves
all tokens; two blocks ride as real and imaginary part of one product with real plaintexts, and a sum over the width has
period t. Hidden vectors take hidden / width ciphertexts per block. How tokens meet is in packed_attention.

A prompt starts at position 0, or behind a public prefix; the program runs at the position of its last token. Copies of
that token fill the blocks: they stand at its position and see what it sees, so their values are its own and in their
domains if the prompt's are. Copies of the first token fill the places of a prefix, likewise: a block of queries always
meets the first ``span`` blocks of keys, so a prefix shorter than these is all in sight.

Images. Every row sees all rows, so all have one length, a number, and no cache is written; the mask leaves out what
fills the last block. Logits are the class token's, the first of the first block: after the last attention's keys and
values no other block is computed. The numbers that solvers iterate on, one per row, share a ciphertext of all blocks
(gather, scatter): two levels, and a third of the refreshes for three blocks. Rows of a prompt do not: their lengths
are vectors in the order of the blocks, and the cache would keep fewer bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heatfhe.approx import activation as approximate_activation
from heatfhe.circuit import Circuit
from heatfhe.errors import PlanError
from heatfhe.planning.blocks import Rows, Share
from heatfhe.planning.pack import LinearMap, Packing, linear_map
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.programs.builder import ROWS, Builder
from heatfhe.planning.programs.decoder import check_layouts, norm
from heatfhe.planning.programs.packed_attention import attention
from heatfhe.planning.recorder import Traced
from heatfhe.planning.recording import Recording, finish
from heatfhe.planning.weights import Dense, Projection, Tokens, Unembedding
from heatfhe.stages import Activation, Attention, Embed, Gate, Head, Norm, Patches, Residual


def record_packed(
    circuit: Circuit, packing: Packing, tokens: int, *, reach: float = 1.0, contract: bool = True, tight: bool = False
) -> Recording:
    """Record the prefill of at most ``tokens`` tokens, in whole blocks, or the rows of an image; the other options are
    those of ``record``."""
    check_layouts(circuit.stages)
    room = packing.context - len(circuit.prefix)
    if not 1 <= tokens <= room:
        raise PlanError(f"a prefill of {tokens} tokens does not fit the cache of {room} positions")
    if len(circuit.prefix) >= packing.dh:
        raise PlanError(
            f"a prefill knows public prefixes of at most {packing.dh - 1} tokens, a head's width less one; this one "
            f"has {len(circuit.prefix)}: plan without it"
        )
    b = Builder(circuit, packing, reach, True, contract, "A", tight)
    run = Packed(b, -(-(len(circuit.prefix) + tokens) // packing.t), whole=circuit.grid is not None)
    run.record()
    return replace(finish(b.r), packed=True)


class Packed:
    """The program being recorded; values hold ``blocks`` ciphertexts, or a multiple, the block first.

    Queries have ``queries`` blocks. ``whole`` says that all rows see all rows; ``length`` is that of a row.
    """

    def __init__(self, b: Builder, blocks: int, *, whole: bool) -> None:
        self.b, self.r, self.p, self.blocks, self.queries, self.whole = b, b.r, b.p.tokens, blocks, blocks, whole
        self.r.rows = self.p.context if whole else blocks * self.p.t
        self.groups = range(-(-blocks // self.p.span))
        self.public = len(b.circuit.prefix)
        self.length, self.every = (Public(float(self.p.context)), Public()) if whole else (ROWS, Public.of(Rows.EVERY))
        self.mask = Public.of(Rows.WHOLE if whole else Rows.CAUSAL)

    @property
    def scores(self) -> list[tuple[int, int]]:
        """Block of queries, and number of the blocks of keys, of every ciphertext of scores."""
        groups, span = len(self.groups), self.p.span
        return [(q, g) for q in range(self.queries) for g in range(groups if self.whole else q // span + 1)]

    def record(self) -> None:
        b, r, p = self.b, self.r, self.p
        embed = b.circuit.stages[0]
        positions = isinstance(embed, Patches) or (isinstance(embed, Embed) and embed.position is not None)
        size = b.bound(embed.writes)
        values: dict[str, Traced] = {}
        with r.scope("x", "embedding"):
            x = r.input("x", period=p.n, bound=size * (2 if positions else 1), parts=self.blocks)
            values[embed.writes] = r.assume(x + Public.of(Rows.POSITIONS), size) if positions else x
        for stage in b.circuit.stages[1:]:
            if isinstance(stage, Norm):
                values[stage.writes] = self.norm(stage, values[stage.reads])
            elif isinstance(stage, Attention):
                values[stage.writes] = attention(self, stage, values)
            elif isinstance(stage, Activation):
                values[stage.writes] = self.activation(stage, values)
            elif isinstance(stage, Gate):
                values[stage.writes] = self.gate(stage, values)
            elif isinstance(stage, Residual):
                values[stage.writes] = self.residual(stage, values)
            elif isinstance(stage, Head) and self.whole:
                with r.scope("head", "head"):
                    logits = self.linear(
                        values[stage.reads], [[Unembedding(False, k)] for k in range(p.vocabulary_parts)]
                    )
                    r.output(stage.writes, r.assume(logits, b.bound(stage.writes)))

    def norm(self, stage: Norm, x: Traced) -> Traced:
        """A norm of every token; of an image the roots of all blocks are taken in one ciphertext."""
        if not self.whole:
            return norm(self.b, stage, x, self.p.t)
        return norm(
            self.b, stage, x, self.p.t,
            gather=lambda z: self.gather(z, self.p.t), scatter=lambda y: self.scatter(y, self.p.t, x.facts.parts),
        )  # fmt: skip

    def gather(self, numbers: Traced, stretch: int) -> Traced:
        """Numbers of period ``stretch``, a ciphertext for each block, in one: a solver then has one value to refresh.
        A mask, and another to scatter what it makes of them."""
        blocks = numbers.facts.parts
        if blocks == 1:
            return numbers
        shares = [Public.of(Share(k, blocks, stretch)) for k in range(blocks)]
        return self.r.plain_sum([(self.r.select(numbers, k), share) for k, share in enumerate(shares)])

    def scatter(self, numbers: Traced, stretch: int, blocks: int) -> Traced:
        """The inverse: every block's own numbers, as often as its ciphertext holds them."""
        if blocks == 1:
            return numbers
        size = float(numbers.facts.bounds().max())
        parts = []
        with self.r.group():
            for share in (Share(k, blocks, stretch) for k in range(blocks)):
                own = numbers * (Public.of(share) * (1.0 / share.own))
                parts.append(self.r.sum_over(own, stretch, share.turns, period=stretch))
            return self.r.assume(self.r.join(*parts), size)

    def kept(self, x: Traced) -> Traced:
        """The blocks of a value that queries are made of, and everything after them."""
        return x if x.facts.parts == self.queries else self.r.join(*(self.r.select(x, k) for k in range(self.queries)))

    # -- products ---------------------------------------------------------------------------------------------------

    def map(self, weight: Tokens) -> LinearMap:
        """A matrix between two layouts of the stream's size: rotations by whole entries."""
        one = linear_map(weight, self.p.D, halve=False, pair=weight.partner is not None)
        babies, giants = (tuple(k * self.p.t for k in steps) for steps in (one.babies, one.giants))
        return replace(one, babies=babies, giants=giants)

    def linear(self, x: Traced, weights: Sequence[Sequence[Projection | Dense | Unembedding]]) -> Traced:
        """For every output the sum over inputs of a matrix, two blocks at a time; the bias is that of the first."""
        r, inputs = self.r, len(weights[0])
        blocks = x.facts.parts // inputs
        maps = [[self.map(Tokens(w)) for w in row] for row in weights]
        made: dict[tuple[int, int], Traced] = {}
        with r.group():
            for block in range(0, blocks, 2):
                two = block + 1 < blocks
                given = [r.select(x, block * inputs + k) for k in range(inputs)]
                if two:
                    given = [v + r.select(x, (block + 1) * inputs + k).times_i() for k, v in enumerate(given)]
                for k, row in enumerate(maps):
                    z = r.linear(given[0], row[0], period=self.p.n)
                    for v, m in zip(given[1:], row[1:]):
                        z = z + r.linear(v, m, period=self.p.n)
                    if two:
                        z.facts.complex = True
                        turned = z.conjugate()
                        made[block + 1, k] = (turned - z).times_i()
                        made[block, k] = z + turned
                    else:
                        made[block, k] = z * 2
            out = r.join(*(made[place] for place in sorted(made)))
            whole = weights[0][0]
            if isinstance(whole, Dense):
                whole = Dense(whole.stage)
            bias = Tokens(Unembedding(whole.centred) if isinstance(whole, Unembedding) else whole)
            out = self.b.shifted(out, bias)
        out.facts.complex = False
        return out

    # -- the MLP and the stream -------------------------------------------------------------------------------------

    def hidden(self, value: str, given: dict[str, Traced]) -> Traced:
        """A linear stage into the hidden layout, the block first."""
        linear, parts = self.b.linear(value), self.p.hidden_parts
        with self.r.scope(linear.name, "linear"):
            return self.linear(given[linear.reads], [[_part(linear.name, k, parts)] for k in range(parts)])

    def activation(self, stage: Activation, given: dict[str, Traced]) -> Traced:
        r, fit = self.r, self.b.circuit.calibration.activations[stage.name].fit
        u = r.domain(self.hidden(stage.reads, given), -1.0, 1.0)
        with r.scope(stage.name, "gelu"):
            return r.assume(approximate_activation(u, replace(fit, bound=1.0)), self.b.bound(stage.writes) / fit.bound)

    def gate(self, stage: Gate, given: dict[str, Traced]) -> Traced:
        b, r, carried = self.b, self.r, self.b.scales.values
        by = r.assume(self.hidden(stage.by, given), b.bound(stage.by) * carried[stage.by])
        with r.scope(b.made[stage.reads].label, "gelu"):
            return r.assume(given[stage.reads] * by, b.bound(stage.writes) * carried[stage.writes])

    def residual(self, stage: Residual, values: dict[str, Traced]) -> Traced:
        b, r = self.b, self.r
        linear = b.linear(stage.branch)
        parts = 1 if isinstance(b.made[linear.reads], Attention) else self.p.hidden_parts
        with r.scope(linear.name, "linear"):
            y = self.linear(values[linear.reads], [[_part(linear.name, k, parts) for k in range(parts)]])
            stream = self.kept(values[stage.reads])
            if stage.reads == b.circuit.stages[0].writes:
                stream = stream * b.scales.residual
            return r.assume(stream + y, b.bound(stage.writes) * b.scales.residual)


def _part(name: str, part: int, parts: int) -> Dense:
    return Dense(name, part if parts > 1 else None)
