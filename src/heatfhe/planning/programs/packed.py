# SPDX-License-Identifier: Apache-2.0
"""Many tokens at once, t to a ciphertext: a whole prompt into the cache that single tokens go on from, or an image.

Layout (TokenPacking): slot i * t + c of ciphertext b holds entry i of token b * t + c. A diagonal of a matrix serves
all tokens; two blocks ride as real and imaginary part of one product with real plaintexts, and a sum over the width has
period t. Hidden vectors take hidden / width ciphertexts per block.

Scores. Slot (e, h, c) of queries b and keys G holds the score of query b * t + c with key (c - e) mod t of block
G * span + e div t: dh keys to a ciphertext, no slot empty. With u = k + i v of one block and u_j those of the keys that
row e - j asks for, spread over the rows e by masks,
    scores = Re sum over j of rot_{j stride}(q) rot_{j stride}(u_j),  values = Im sum over j of rot_{-j stride}(y) u_j,
so keys and values share masks and rotations and are never taken apart. The masks cost one level, which queries spend on
the causal mask: scores that do not count are zero, and never meet a polynomial outside its domain.

Rows of all lengths lie in one ciphertext: constants that follow the row length are vectors (Rows). The last division
leaves probabilities, so the values need no mask. Sums of rows have period stride.

Cache. u goes from (e, h, c) to decode's (e, c, h) by Hp * t sparse masks; another mask puts each block into its
residue class, up to the last token of the prompt, and single tokens go on from there. A prompt starts at position 0;
the program runs at the position of its last token. Copies of that token fill the blocks: they stand at its position and
see what it sees, so their values are its own and in their domains if the prompt's are.

Images. Every row sees all rows, so all have one length, a number, and no cache is written; the mask leaves out what
fills the last block. Logits are the class token's, the first of the first block: after the last attention's keys and
values no other block is computed. The numbers that solvers iterate on, one per row, share a ciphertext of all blocks
(gather, scatter): two levels, and a third of the refreshes for three blocks. Rows of a prompt do not: their lengths
are vectors in the order of the blocks, and the cache would keep fewer bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from heatfhe.approx import activation as approximate_activation
from heatfhe.approx import reciprocal
from heatfhe.approx import softmax as approximate_softmax
from heatfhe.circuit import Circuit
from heatfhe.errors import PlanError
from heatfhe.planning.blocks import Order, Rows, Share, Shift, Store
from heatfhe.planning.pack import LinearMap, Packing, linear_map
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.programs.attention import COMMON, THIRDS, carried_ahead, summed
from heatfhe.planning.programs.builder import ROWS, Builder
from heatfhe.planning.programs.decoder import check_layouts, norm
from heatfhe.planning.recorder import FREE_TIMES, Traced
from heatfhe.planning.recording import Recording, finish
from heatfhe.planning.vectors import Bias
from heatfhe.planning.weights import Dense, Projection, Tokens, Unembedding
from heatfhe.stages import Activation, Attention, Embed, Gate, Head, Norm, Patches, Residual, of


def record_packed(
    circuit: Circuit, packing: Packing, tokens: int, *, reach: float = 1.0, contract: bool = True, tight: bool = False
) -> Recording:
    """Record the prefill of at most ``tokens`` tokens, in whole blocks, or the rows of an image; the other options are
    those of ``record``."""
    check_layouts(circuit.stages)
    if not 1 <= tokens <= packing.context:
        raise PlanError(f"a prefill of {tokens} tokens does not fit the cache of {packing.context} positions")
    if circuit.front.length or any(stage.rotary is not None for stage in of(circuit.stages, Attention)):
        raise PlanError("a prefill knows neither rotary positions nor a public prefix yet; plan without it")
    b = Builder(circuit, packing, reach, True, contract, "A", tight)
    run = _Packed(b, -(-tokens // packing.t), whole=circuit.grid is not None)
    run.record()
    return replace(finish(b.r), packed=True)


class _Packed:
    """The program being recorded; values hold ``blocks`` ciphertexts, or a multiple, the block first.

    Queries have ``queries`` blocks. ``whole`` says that all rows see all rows; ``length`` is that of a row.
    """

    def __init__(self, b: Builder, blocks: int, *, whole: bool) -> None:
        self.b, self.r, self.p, self.blocks, self.queries, self.whole = b, b.r, b.p.tokens, blocks, blocks, whole
        self.r.rows = self.p.context if whole else blocks * self.p.t
        self.groups = range(-(-blocks // self.p.span))
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
                values[stage.writes] = self.attention(stage, values)
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

    # -- attention --------------------------------------------------------------------------------------------------

    def attention(self, stage: Attention, given: dict[str, Traced]) -> Traced:
        """Queries, keys and values, the cache, scores, rows, and the values they weigh."""
        b, r, p, name = self.b, self.r, self.p, stage.name
        made = [b.linear(value) for value in stage.inputs]
        x, owners = given[made[0].reads], made * (3 // len(made))
        fit = b.circuit.calibration.softmaxes[name].fit
        if self.whole and stage is of(b.circuit.stages, Attention)[-1]:
            self.queries = 1
        with r.scope(made[0].name if len(made) == 1 else name, "linear"):
            q, k, v = (Projection(linear.name, third) for third, linear in zip(THIRDS, owners))
            queries = self.linear(self.kept(x), [[q]])
            r.assume(queries, b.bound(f"{name}/q") * 2 / (stage.divisor(b.circuit.shape.head_width) * fit.width))
            both = Tokens(k, v)
            with r.group():
                u = r.linear(x, *[self.map(both)] * self.blocks, period=p.n) * 2
                u = u + Public.of(Bias(both)) if b.source.adds(Tokens(k)) or b.source.adds(Tokens(v)) else u
            u.facts.complex = True
            r.assume(u, b.bound(f"{name}/k") + b.bound(f"{name}/v"))
        if not self.whole:
            with r.scope(name, "cache"):
                self.store(name, u)
        with r.scope(name, "attention"):
            spread = [self.spread(u, group) for group in self.groups]
            with r.group():
                scores = self.products(queries, spread)
                t = scores + self.mask * (-2 * fit.midpoint / fit.width)
            r.domain(t, -1.0, 1.0)
        scale = b.scales.values[stage.writes]
        y = self.softmax(name, t, scale / 2)
        with r.scope(name, "attention"), r.group():
            parts = []
            for block in range(self.queries):
                pairs = []
                for part, (query, group) in enumerate(self.scores):
                    if query == block:
                        turned = r.rotate_many(r.select(y, part), [-p.stride * j for j in range(p.dh)])
                        pairs += [(turned[j], r.select(spread[group], j)) for j in range(p.dh)]
                z = r.product_sum(pairs)
                parts.append((z.conjugate() - z).times_i())
            out = r.join(*parts)
        out.facts.complex, out.facts.period = False, p.n
        return r.assume(out, b.bound(stage.writes) * scale)

    def spread(self, u: Traced, group: int) -> Traced:
        """u_j for all j: row e holds, for every query, the key and value that row e - j of the scores asks for."""
        r, p = self.r, self.p
        blocks = range(group * p.span, min(self.blocks, (group + 1) * p.span))
        shifts = range(1 - p.t, p.t)
        with r.group():
            turned = {w: dict(zip(shifts, r.rotate_many(r.select(u, w), shifts))) for w in blocks}
            parts = []
            for j in range(p.dh):
                pairs = []
                for w in blocks:
                    for shift in shifts:
                        row = (j + w % p.span * p.t + -shift % p.t) % p.dh
                        pairs.append((turned[w][shift], Public.of(Shift(row, shift))))
                parts.append(r.plain_sum(pairs))
            out = r.join(*parts)
        out.facts.complex = True
        bound = float(u.facts.bounds().max())
        return r.assume(out, bound)

    def products(self, queries: Traced, spread: Sequence[Traced]) -> Traced:
        """The scores, zero where they do not count."""
        r, p = self.r, self.p
        by = [p.stride * j for j in range(p.dh)]
        turned = [r.rotate_many(r.select(queries, block), by) for block in range(self.queries)]
        keys = [[r.select(u, j).rotate(by[j]) if j else r.select(u, 0) for j in range(p.dh)] for u in spread]
        masked = [r.join(*(turned[q][j] for q, _ in self.scores)) * (self.mask * 0.5) for j in range(p.dh)]
        parts = []
        for part, (_, group) in enumerate(self.scores):
            z = r.product_sum([(r.select(masked[j], part), keys[group][j]) for j in range(p.dh)])
            parts.append(z + z.conjugate())
        out = r.join(*parts)
        out.facts.complex, out.facts.period = False, p.n
        return out

    def store(self, name: str, u: Traced) -> None:
        """Keys and values where decode looks for them, in the cache's order."""
        b, r, p = self.b, self.r, self.p
        heads, limits = range(b.circuit.shape.heads), {k: b.bound(f"{name}/{k}") for k in "kv"}
        with r.group():
            both = []
            for block in range(self.blocks):
                turned = r.rotate_many(r.select(u, block), [h * (p.t - 1) for h in heads])
                total: Traced | None = None
                for c in range(p.t):
                    term = r.plain_sum([(turned[h], Public.of(Order(c, h))) for h in heads])
                    term = term.rotate(-c * (p.Hp - 1)) if c else term
                    total = term if total is None else total + term
                assert total is not None
                mirrored = total.conjugate()
                both += [total + mirrored, (mirrored - total).times_i()]
            fresh = r.join(*both)
        fresh.facts.complex = False
        r.assume(fresh, 2 * max(limits.values()))
        for kind in "kv":
            with r.group():
                blocks = [r.select(fresh, 2 * block + (kind == "v")) for block in range(self.blocks)]
                moved = [r.rotate_many(k, [p.stride * j for j in range(p.m)]) for k in blocks] if kind == "k" else []
                parts = []
                for j in range(p.m):
                    pairs = [
                        (moved[w][j] if moved else blocks[w], Public.of(Store(w, w if moved else (w - j) % p.m)) * 0.5)
                        for w in range(self.blocks)
                    ]
                    parts.append(r.plain_sum(pairs))
                cache = r.join(*parts)
            r.assume(cache, limits[kind]).facts.refreshable = False
            cache.facts.complex = False
            r.output(f"{name}/{kind}", cache)

    def softmax(self, name: str, t: Traced, carried: float) -> Traced:
        """Probabilities, times ``carried``: as of one token, with a row length of its own in every slot."""
        b, r, p = self.b, self.r, self.p
        c, aim = b.circuit.calibration.softmaxes[name], b.scales.aim
        widest = c.fit.init if c.fit.refine is None else c.fit.refine
        length, every, sums = self.length, self.every, 0
        root = (length * (widest.hi / aim)).power(-0.5)

        def row_sum(v: Traced) -> Traced:
            nonlocal sums
            fit, least = summed(b, c, v, sums, r.rows, aim)
            sums += 1
            with r.group():
                parts = []
                for block in range(self.queries):
                    mine = [r.select(v, part) for part, (query, _) in enumerate(self.scores) if query == block]
                    total = mine[0]
                    for other in mine[1:]:
                        total = total + other
                    parts.append(r.sum_over(total, p.stride, p.dh))
                s = r.join(*parts)
                if p.Hp > b.circuit.shape.heads:
                    s = s + Public.of(Rows.IDLE) * (aim * math.sqrt(fit.lo / fit.hi))
                s.facts.period = p.stride
                s = self.gather(s, p.stride) if self.whole else s
            return r.domain(s, aim * least / fit.hi, aim)

        def solver(number: int, count: int, last: bool) -> Callable[[Traced], Traced]:
            fit, least = c.met(number)
            scale = fit.hi / aim
            gain = Public(carried * scale) if last else root * length * scale
            longest = 1.0 if last or not gain.rows else r.rows**0.5
            largest = gain.coefficient * longest * (fit.largest(count, least) if b.tight else 1 / least)
            back = Public(max(1, math.ceil(largest / aim)))
            if not last and b.tight and back.coefficient > FREE_TIMES:
                back = back * (length / r.rows).power(0.5)
            gain = gain / back
            ahead = carried_ahead(b, fit, count, gain.coefficient * r.rows**gain.rows)
            times = back * every if back.rows else int(back.coefficient)
            part = 1.0 if last or number else COMMON

            def solve(s: Traced) -> Traced:
                given = gain.coefficient if last else gain * every
                y = r.weigh(r.last(reciprocal(s, fit, count, scale=scale, gain=given, ahead=ahead)), part=part) * times
                y = self.scatter(y, p.stride, self.queries) if self.whole else y
                return y if len(self.scores) == self.queries else r.join(*(r.select(y, q) for q, _ in self.scores))

            return solve

        with r.scope(name, "softmax"):
            squared = 1.0 / (1 << c.fit.exponential.squarings)
            mask = self.mask * (length * (c.fit.init.hi / aim)).power(-squared)
            passes = iter(
                [solver(k + 1, c.refine_count, k + 1 == c.fit.passes) for k in range(c.fit.passes)]
                if c.fit.refine is not None
                else []
            )
            y = approximate_softmax(
                t, c.fit, row_sum=row_sum, mask=mask,
                init=solver(0, c.init_count, c.fit.refine is None),
                refine=None if c.fit.refine is None else lambda s: next(passes)(s),
            )  # fmt: skip
            return r.clip(y, carried)

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
