# SPDX-License-Identifier: Apache-2.0
"""Attention over many tokens at once, their way into the cache, and the softmax of rows of all lengths.

Scores. Slot (e, h, c) of queries b and keys G holds the score of query b * t + c with key (c - e) mod t of block
G * span + e div t: dh keys to a ciphertext, no slot empty. With u = k + i v of one block and u_j those of the keys that
row e - j asks for, spread over the rows e by masks,
    scores = Re sum over j of rot_{j stride}(q) rot_{j stride}(u_j),  values = Im sum over j of rot_{-j stride}(y) u_j,
so keys and values share masks and rotations and are never taken apart. The masks cost one level, which queries spend on
the causal mask: scores that do not count are zero, and never meet a polynomial outside its domain.

Rotary positions turn queries alone, by how far each slot's key is, within the causal mask: q R(i - j) k is what turned
queries and turned keys make. Keys are turned on their way to the cache, within its masks. So they cost no level.

Rows of all lengths lie in one ciphertext: constants that follow the row length are vectors (Rows). The last division
leaves probabilities, so the values need no mask. Sums of rows have period stride.

Cache. u goes from (e, h, c) to decode's (e, c, h) by Hp * t sparse masks; another mask puts each block into its
residue class, up to the last token of the prompt, and single tokens go on from there.

A public prefix takes the first places. Its keys and values are plaintexts: they are added to u_j and to the cache, and
the masks of both leave those places out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from heatfhe.approx import reciprocal
from heatfhe.approx import softmax as approximate_softmax
from heatfhe.planning.blocks import Known, Order, Relative, Rows, Shift, Store, Turned
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.programs.attention import COMMON, THIRDS, carried_ahead, summed
from heatfhe.planning.recorder import FREE_TIMES, Traced
from heatfhe.planning.vectors import Bias, Front
from heatfhe.planning.weights import Projection, Tokens
from heatfhe.stages import Attention, of

if TYPE_CHECKING:
    from heatfhe.planning.programs.packed import Packed


def attention(run: Packed, stage: Attention, given: dict[str, Traced]) -> Traced:
    """Queries, keys and values, the cache, scores, rows, and the values they weigh."""
    b, r, p, name = run.b, run.r, run.p, stage.name
    made = [b.linear(value) for value in stage.inputs]
    x, owners = given[made[0].reads], made * (3 // len(made))
    fit = b.circuit.calibration.softmaxes[name].fit
    if run.whole and stage is of(b.circuit.stages, Attention)[-1]:
        run.queries = 1
    with r.scope(made[0].name if len(made) == 1 else name, "linear"):
        q, k, v = (Projection(linear.name, third) for third, linear in zip(THIRDS, owners))
        queries = run.linear(run.kept(x), [[q]])
        longest = 1.0 if stage.rotary is None else 2.0**0.5  # bounds are of turned entries; others may be longer
        scale = longest * 2 / (stage.divisor(b.circuit.shape.head_width) * fit.width)
        r.assume(queries, b.bound(f"{name}/q") * scale)
        both = Tokens(k, v)
        with r.group():
            u = r.linear(x, *[run.map(both)] * run.blocks, period=p.n) * 2
            u = u + Public.of(Bias(both)) if b.source.adds(Tokens(k)) or b.source.adds(Tokens(v)) else u
        u.facts.complex = True
        r.assume(u, b.bound(f"{name}/k") * longest + b.bound(f"{name}/v"))
    if not run.whole:
        with r.scope(name, "cache"):
            _store(run, stage, u, longest)
    with r.scope(name, "attention"):
        spread = [_spread(run, stage, u, group) for group in run.groups]
        with r.group():
            scores = _products(run, stage, queries, spread)
            t = scores + run.mask * (-2 * fit.midpoint / fit.width)
        r.domain(t, -1.0, 1.0)
    scale = b.scales.values[stage.writes]
    y = _softmax(run, name, t, scale / 2)
    with r.scope(name, "attention"), r.group():
        parts = []
        for block in range(run.queries):
            pairs = []
            for part, (query, group) in enumerate(run.scores):
                if query == block:
                    turned = r.rotate_many(r.select(y, part), [-p.stride * j for j in range(p.dh)])
                    pairs += [(turned[j], r.select(spread[group], j)) for j in range(p.dh)]
            z = r.product_sum(pairs)
            parts.append((z.conjugate() - z).times_i())
        out = r.join(*parts)
    out.facts.complex, out.facts.period = False, p.n
    return r.assume(out, b.bound(stage.writes) * scale)


def _spread(run: Packed, stage: Attention, u: Traced, group: int) -> Traced:
    """u_j for all j: row e holds, for every query, the key and value that row e - j of the scores asks for."""
    r, p, public = run.r, run.p, run.public if group == 0 else 0
    blocks = range(group * p.span + public // p.t, min(run.blocks, (group + 1) * p.span))
    shifts = range(1 - p.t, p.t)
    with r.group():
        turned = {w: dict(zip(shifts, r.rotate_many(r.select(u, w), shifts))) for w in blocks}
        parts = []
        for j in range(p.dh):
            pairs = []
            for w in blocks:
                known = max(0, public - w * p.t)
                for shift in shifts:
                    row = (j + w % p.span * p.t + -shift % p.t) % p.dh
                    pairs.append((turned[w][shift], Public.of(Shift(row, shift, known))))
            parts.append(r.plain_sum(pairs))
        out = r.join(*parts)
        out = out + Public.of(Known(stage.name)) if public else out
    out.facts.complex = True
    bound = float(u.facts.bounds().max())
    return r.assume(out, bound)


def _products(run: Packed, stage: Attention, queries: Traced, spread: Sequence[Traced]) -> Traced:
    """The scores, zero where they do not count; rotary positions are in the masks of the queries."""
    r, p = run.r, run.p
    by = [p.stride * j for j in range(p.dh)]
    turned = [r.rotate_many(r.select(queries, block), by) for block in range(run.queries)]
    keys = [[r.select(u, j).rotate(by[j]) if j else r.select(u, 0) for j in range(p.dh)] for u in spread]
    joined = [r.join(*(turned[q][j] for q, _ in run.scores)) for j in range(p.dh)]
    if stage.rotary is None:
        masked = [one * (run.mask * 0.5) for one in joined]
    else:
        base, halves = stage.rotary, ((False, 0), (True, p.dh // 2))
        masked = [
            r.plain_sum([(joined[(j + k) % p.dh], Public.of(Relative(base, sine, j)) * 0.5) for sine, k in halves])
            for j in range(p.dh)
        ]
    parts = []
    for part, (_, group) in enumerate(run.scores):
        z = r.product_sum([(r.select(masked[j], part), keys[group][j]) for j in range(p.dh)])
        parts.append(z + z.conjugate())
    out = r.join(*parts)
    out.facts.complex, out.facts.period = False, p.n
    return out


def _store(run: Packed, stage: Attention, u: Traced, longest: float) -> None:
    """Keys and values where decode looks for them, in the cache's order; keys turned by their positions."""
    b, r, p, name = run.b, run.r, run.p, stage.name
    heads, limits = range(b.circuit.shape.heads), {k: b.bound(f"{name}/{k}") for k in "kv"}
    with r.group():
        both = []
        for block in range(run.blocks):
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
    r.assume(fresh, 2 * max(limits["k"] * longest, limits["v"]))
    for kind in "kv":
        with r.group():
            blocks = [r.select(fresh, 2 * block + (kind == "v")) for block in range(run.blocks)]
            cache = r.join(*(r.plain_sum(pairs) for pairs in _kept_in(run, stage, kind, blocks)))
            cache = cache + Public.of(Front(f"{name}/{kind}")) if run.public else cache
        r.assume(cache, limits[kind]).facts.refreshable = False
        cache.facts.complex = False
        r.output(f"{name}/{kind}", cache)


def _kept_in(run: Packed, stage: Attention, kind: str, blocks: list[Traced]) -> Iterator[list[tuple[Traced, Public]]]:
    """What adds up to each ciphertext of the cache: blocks, and masks that leave out a prefix and what fills up."""
    p, first = run.p, run.public
    if kind == "v":
        for j in range(p.m):
            yield [(v, Public.of(Store(w, (w - j) % p.m, first)) * 0.5) for w, v in enumerate(blocks)]
        return
    far = [] if stage.rotary is None else [p.n // 2]  # slots to the other half of a head
    moved = [run.r.rotate_many(k, [p.stride * j + away for away in (0, *far) for j in range(p.m)]) for k in blocks]
    for j in range(p.m):
        if stage.rotary is None:
            yield [(k[j], Public.of(Store(w, w, first)) * 0.5) for w, k in enumerate(moved)]
            continue
        base = stage.rotary
        yield [
            (k[j + sine * p.m], Public.of(Turned(Store(w, w, first), base, sine, j)) * 0.5)
            for w, k in enumerate(moved)
            for sine in (False, True)
        ]


def _softmax(run: Packed, name: str, t: Traced, carried: float) -> Traced:
    """Probabilities, times ``carried``: as of one token, with a row length of its own in every slot."""
    b, r, p = run.b, run.r, run.p
    c, aim = b.circuit.calibration.softmaxes[name], b.scales.aim
    widest = c.fit.init if c.fit.refine is None else c.fit.refine
    length, every, sums = run.length, run.every, 0
    root = (length * (widest.hi / aim)).power(-0.5)

    def row_sum(v: Traced) -> Traced:
        nonlocal sums
        fit, least = summed(b, c, v, sums, r.rows, aim)
        sums += 1
        with r.group():
            parts = []
            for block in range(run.queries):
                mine = [r.select(v, part) for part, (query, _) in enumerate(run.scores) if query == block]
                total = mine[0]
                for other in mine[1:]:
                    total = total + other
                parts.append(r.sum_over(total, p.stride, p.dh))
            s = r.join(*parts)
            if p.Hp > b.circuit.shape.heads:
                s = s + Public.of(Rows.IDLE) * (aim * math.sqrt(fit.lo / fit.hi))
            s.facts.period = p.stride
            s = run.gather(s, p.stride) if run.whole else s
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
            y = run.scatter(y, p.stride, run.queries) if run.whole else y
            return y if len(run.scores) == run.queries else r.join(*(r.select(y, q) for q, _ in run.scores))

        return solve

    with r.scope(name, "softmax"):
        squared = 1.0 / (1 << c.fit.exponential.squarings)
        mask = run.mask * (length * (c.fit.init.hi / aim)).power(-squared)
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
