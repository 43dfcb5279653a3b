# SPDX-License-Identifier: Apache-2.0
"""GPT-2's decode of one token as recorded operations, over an encrypted cache with all heads in one ciphertext.

The position is public. Token p of the cache sits in copy p mod t and residue class p div t: slot (e, c, h) of key
ciphertext j holds key[token (c, e mod m)][h, e + j], slot (e, c, h) of value ciphertext j value[token (c, (e + j) mod m)][h, e].
"""

from __future__ import annotations

import math
from collections.abc import Callable

from heatfhe.approx import activation, cutmax, inverse_sqrt, rms_norm, softmax, softmax_solvers
from heatfhe.circuit import Activation, Attention, Circuit, Head, Linear, Norm, Residual
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.pack import (
    Packing,
    Product,
    from_heads,
    from_hidden,
    from_vocabulary,
    to_heads,
    to_hidden,
    to_vocabulary,
)
from heatfhe.planning.public import Public
from heatfhe.planning.recorder import Recorder, Traced
from heatfhe.planning.recording import Recording, finish

PROGRAMS = ("prompt", "generate", "logits", "sample", "embed")
ROWS = Public.named("rows")
LEADER = 1.5  # largest entry a round of the argmax may hold: its divisor keeps leaders under one


def record(circuit: Circuit, packing: Packing, program: str, *, halve: bool = True, contract: bool = True) -> Recording:
    """Record one program. ``halve`` allows complex plaintexts, ``contract`` makes every polynomial one node.

    prompt: the cache filled, no head. generate: the next token, as a one-hot row and as the next input. logits: the
    logits themselves. sample: as generate, with an encrypted noise row added to the logits. embed: a one-hot row as an
    input.
    """
    if program not in PROGRAMS:
        raise ConfigError(f"unknown program {program!r}; have {', '.join(PROGRAMS)}")
    return finish(_Decoder(circuit, packing, halve, contract).run(program))


class _Decoder:
    def __init__(self, circuit: Circuit, packing: Packing, halve: bool, contract: bool) -> None:
        self.circuit, self.p, self.halve = circuit, packing, halve
        p = packing
        periods = {"causal": p.m * p.stride, "idle": p.Hp, "position": p.D, "words": p.V}
        split = {"append.k": p.m, "append.v": p.m, "words": p.vocabulary_parts, "bias:head": p.vocabulary_parts}
        for stage in circuit.stages:
            if isinstance(stage, Activation):
                split[f"bias:{stage.name}.c_fc"] = p.hidden_parts
            elif isinstance(stage, Linear) and stage.residual:
                periods[f"bias:{stage.name}"] = p.D
        full = dict.fromkeys(("first", "first.hidden", "append.k", "append.v"), p.n)
        self.r = Recorder(slots=p.n, rows=p.context, periods={**full, **periods}, split=split, contract=contract)

    def bound(self, name: str) -> float:
        """Largest magnitude seen of a named value."""
        found = self.circuit.calibration.magnitudes.get(name)
        if found is None:
            raise PlanError(f"{name}: the calibration holds no magnitude for it; calibrate the circuit again")
        return found

    # -- the programs -----------------------------------------------------------------------------------------------

    def run(self, program: str) -> Recorder:
        r, p = self.r, self.p
        size = float(abs(self.circuit.folded.token).max())
        if program == "embed":
            hot = r.input("token", period=p.V, bound=1.0, parts=p.vocabulary_parts)
            r.output("x", r.assume(self.embedding(hot), size))
            return r
        values: dict[str, Traced] = {}
        with r.scope("x", "embedding"):
            x = r.input("x", period=p.D, bound=size)
            x = r.assume(x + Public.named("position"), self.bound(self.circuit.stages[0].writes))
        values[self.circuit.stages[0].writes] = x
        for stage in self.circuit.stages[1:]:
            if isinstance(stage, Norm):
                values[stage.writes] = self.norm(stage, values[stage.reads])
            elif isinstance(stage, Attention):
                values[stage.writes] = self.attention(stage, values[self._source(stage.reads)])
            elif isinstance(stage, Activation):
                values[stage.writes] = self.activation(stage, values[self._source(stage.reads)])
            elif isinstance(stage, Residual):
                values[stage.writes] = self.residual(stage, values)
            elif isinstance(stage, Head):
                if program == "prompt":
                    break
                logits = self.head(values[stage.reads])
        if program == "prompt":
            return r
        if program == "logits":
            r.output("logits", logits)
            return r
        if program == "sample":
            with r.scope("noise", "argmax"):
                noise = r.input("noise", period=p.V, bound=self.bound("logits"), parts=p.vocabulary_parts)
                logits = r.assume(logits + noise, 2 * self.bound("logits"))
        hot = self.argmax(logits)
        r.output("token", hot)
        r.output("next", r.assume(self.embedding(hot), size))
        return r

    def _source(self, value: str) -> str:
        """What the linear stage that writes a value reads: attention and activation swallow the matrix before them."""
        return next(s.reads for s in self.circuit.stages if isinstance(s, Linear) and s.writes == value)

    # -- products ---------------------------------------------------------------------------------------------------

    def real_part(self, z: Traced, product: Product) -> Traced:
        """The result of a product with complex plaintexts; 1/2 is in them."""
        if not product.complex:
            return z
        z = z + z.conjugate()
        z.facts.complex = False
        return z

    def halved(self, x: Traced, product: Product) -> Traced:
        """x + i rot_half(x), where the product wants it."""
        return x + x.rotate(product.half).times_i() if product.half else x

    def replicated(self, x: Traced, width: int, copies: int, mask: Public) -> Traced:
        """From a value that is right in copy 0 only to the same in every copy; the mask costs the level."""
        x = x * mask
        for k in range(copies.bit_length() - 1):
            x = x + x.rotate(-(width << k))
        return x

    def diagonals(self, babies: dict[int, Traced], product: Product) -> Traced:
        """A product over rotations that several products share."""
        total: Traced | None = None
        self.r.products[product.key] = product
        for giant in product.giants:
            pairs = [(babies[b], Public.named(f"map:{product.key}:{giant}:{b}")) for b in product.babies]
            term = self.r.plain_sum(pairs)
            term = term.rotate(giant) if giant else term
            total = term if total is None else total + term
        assert total is not None
        total.facts.complex, total.facts.period = product.complex, self.p.n
        return self.real_part(total, product)

    # -- stages -----------------------------------------------------------------------------------------------------

    def norm(self, stage: Norm, x: Traced) -> Traced:
        r, c = self.r, self.circuit.calibration.norms[stage.name]

        def sum_of_squares(v: Traced) -> Traced:
            with r.group():
                z = r.sum_over(v * v, 1, self.p.D, period=1) + c.width * c.eps
            return r.domain(z, c.fit.lo, c.fit.hi)

        def inverse_root(z: Traced) -> Traced:
            return r.last(inverse_sqrt(z, c.fit, c.goldschmidt_count, c.newton_count, gain=math.sqrt(c.width)))

        with r.scope(stage.name, "layernorm"):
            y = rms_norm(x, sum_of_squares=sum_of_squares, inverse_root=inverse_root)
            return r.assume(y, self.bound(stage.writes))

    def attention(self, stage: Attention, x: Traced) -> Traced:
        r, p, name = self.r, self.p, stage.name
        first = Public.named("first")
        with r.scope(f"{name}.c_attn", "linear"):
            products = {k: to_heads(f"{name}.c_attn/{k}", p, halve=self.halve) for k in "qkv"}
            shared = products["q"]
            turned = r.rotate_many(self.halved(x, shared), shared.babies)
            babies = dict(zip(shared.babies, turned))

            def heads(part: str) -> Traced:
                y = r.sum_over(self.diagonals(babies, products[part]), p.Hp, p.t)
                return y + Public.named(f"bias:{name}.c_attn/{part}")

            with r.group():
                q = heads("q")
                q = self.replicated(q, p.Hp, p.t, first) if p.t > 1 else q
            r.assume(q, self.bound(f"{name}/q") * 2 / self.score_scale(name))
        with r.scope(name, "cache"):
            caches = {
                k: r.input(f"{name}/{k}", period=p.n, bound=self.bound(f"{name}/{k}"), parts=p.m, refreshable=False) for k in "kv"
            }
            with r.group():
                k = heads("k").rotate(-p.Hp, modulus=p.t)
                moved = r.join(*r.rotate_many(k, [p.stride * j for j in range(p.m)]))
                keys = caches["k"] + moved * Public.named("append.k")
            with r.group():
                values = caches["v"] + heads("v").rotate(-p.Hp, modulus=p.t) * Public.named("append.v")
            for kind, cache in (("k", keys), ("v", values)):
                r.assume(cache, self.bound(f"{name}/{kind}")).facts.refreshable = False
                r.output(f"{name}/{kind}", cache)
        with r.scope(name, "attention"):
            with r.group():
                turned = r.rotate_many(q, [p.stride * j for j in range(p.m)])
                scores = r.product_sum([(turned[j], r.select(keys, j)) for j in range(p.m)])
                scores = r.sum_over(scores, p.m * p.stride, p.dh // p.m, period=p.m * p.stride)
                shift = self.circuit.calibration.softmaxes[name].fit
                t = scores + Public.named("causal") * (-2 * shift.midpoint / shift.width)
            r.domain(t, -1.0, 1.0).facts.period = p.m * p.stride
        y = self.softmax(name, t)
        with r.scope(name, "attention"), r.group():
            turned = r.rotate_many(y, [p.stride * j for j in range(p.m)])
            out = r.product_sum([(turned[j], r.select(values, j)) for j in range(p.m)])
            mask = first / ROWS if p.t > 1 else 1.0 / ROWS
            out = self.replicated(r.sum_over(out, p.Hp, p.t), p.Hp, p.t, mask)
        out.facts.period = p.n
        return r.assume(out, self.bound(stage.writes))

    def score_scale(self, name: str) -> float:
        """sqrt(head width) times the width of the scores' domain: the queries carry 2 / this."""
        return math.sqrt(self.circuit.shape.head_width) * self.circuit.calibration.softmaxes[name].fit.width

    def softmax(self, name: str, t: Traced) -> Traced:
        r, p = self.r, self.p
        c = self.circuit.calibration.softmaxes[name]
        sums = 0

        def row_sum(v: Traced) -> Traced:
            nonlocal sums
            fit = c.fit.init if sums == 0 or c.fit.refine is None else c.fit.refine
            sums += 1
            r.clip(v, fit.hi, rows=1.0)
            with r.group():
                s = r.sum_over(v, p.Hp, p.capacity, period=p.Hp)
                if p.Hp > self.circuit.shape.heads:
                    s = s + Public.named("idle") * math.sqrt(fit.lo * fit.hi) * ROWS
            s.facts.period = p.Hp
            return r.domain(s, fit.lo, fit.hi, rows=1.0)

        def marked(solver: Callable[[Traced], Traced]) -> Callable[[Traced], Traced]:
            return lambda s: r.last(solver(s))

        init, refine = softmax_solvers(c.fit, c.init_count, c.refine_count, ROWS)
        with r.scope(name, "softmax"):
            y = softmax(
                t, c.fit, row_sum=row_sum, row_length=ROWS, mask=Public.named("causal"), init=marked(init),
                refine=None if refine is None else marked(refine),
            )  # fmt: skip
            return r.clip(y, 1.0, rows=1.0)

    def residual(self, stage: Residual, values: dict[str, Traced]) -> Traced:
        """The stream plus the projection that closes a branch."""
        r, p = self.r, self.p
        linear = next(s for s in self.circuit.stages if isinstance(s, Linear) and s.writes == stage.branch)
        branch = values[linear.reads]
        from_attention = any(isinstance(s, Attention) and s.writes == linear.reads for s in self.circuit.stages)
        parts = 1 if from_attention else p.hidden_parts
        with r.scope(linear.name, "linear"):
            with r.group():
                total: Traced | None = None
                for part in range(parts):
                    key = linear.name if parts == 1 else f"{linear.name}.{part}"
                    product = (from_heads if from_attention else from_hidden)(key, p, halve=self.halve)
                    z = r.linear(self.halved(r.select(branch, part), product), product, period=p.n)
                    total = z if total is None else total + z
                assert total is not None
                y = r.sum_over(self.real_part(total, product), p.D, p.t) + Public.named(f"bias:{linear.name}")
            y.facts.period = p.D
            return r.assume(values[stage.reads] + y, self.bound(stage.writes))

    def activation(self, stage: Activation, x: Traced) -> Traced:
        r, p, name = self.r, self.p, f"{stage.name}.c_fc"
        fit = self.circuit.calibration.activations[stage.name].fit
        parts = p.hidden_parts
        keys = [name] if parts == 1 else [f"{name}.{k}" for k in range(parts)]
        products = [to_hidden(key, p, halve=self.halve) for key in keys]
        with r.scope(name, "linear"), r.group():
            z = r.linear(self.halved(x, products[0]), *products, period=p.n)
            u = r.sum_over(self.real_part(z, products[0]), p.hF, p.n // p.F) + Public.named(f"bias:{name}")
            if p.n > p.F:
                u = self.replicated(u, p.hF, p.n // p.F, Public.named("first.hidden"))
        r.domain(u, -1.0, 1.0)
        with r.scope(stage.name, "gelu"):
            return r.assume(activation(u, fit), self.bound(stage.writes))

    def head(self, x: Traced) -> Traced:
        r, p = self.r, self.p
        parts, made = p.vocabulary_parts, []
        with r.scope("head", "head"):
            with r.group():
                for part in range(0, parts, 2):
                    pair = self.halve and part + 1 < parts
                    here = [part] if pair or part + 1 == parts else [part, part + 1]
                    for k in here:
                        product = to_vocabulary(f"head.{k}", p, halve=self.halve and parts == 1, pair=pair)
                        z = r.linear(self.halved(x, product), product, period=p.V)
                        if p.V < p.D:
                            z = r.sum_over(z, p.V, p.D // p.V)
                        if pair:
                            turned = z.conjugate()
                            made += [z + turned, (turned - z).times_i()]
                        else:
                            made.append(self.real_part(z, product))
                logits = r.join(*made)
                logits = logits + Public.named("bias:head")
            logits.facts.period, logits.facts.complex = p.V, False
            return r.assume(logits, self.bound("logits"))

    def argmax(self, logits: Traced) -> Traced:
        r, p = self.r, self.p
        if self.circuit.calibration.argmax is None:
            raise PlanError("argmax: the calibration holds no argmax schedule; calibrate the circuit again")
        schedule = self.circuit.calibration.argmax.schedule
        size = self.circuit.shape.vocabulary
        padded = p.V * p.vocabulary_parts > size
        words = Public.named("words") if padded else Public()
        rounds = [(c.lo, c.hi) for c in schedule.rounds]
        mark, seen = 0, 0

        def total(v: Traced) -> Traced:
            nonlocal mark, seen
            with r.group():
                s = r.select(v, 0)
                for part in range(1, p.vocabulary_parts):
                    s = s + r.select(v, part)
                s = r.sum_over(s, 1, p.V)
            s.facts.period = 1
            return s

        def spread(v: Traced) -> Traced:
            nonlocal mark, seen
            s = total(v)
            if seen < len(rounds):
                lo, hi = rounds[seen]
                r.clip(v, hi * size)
                r.domain(s, lo * size, hi * size)
            elif schedule.final is not None:
                r.domain(s, schedule.final.lo, schedule.final.hi)
            seen, mark = seen + 1, len(r.facts)
            return s

        def mean(v: Traced) -> Traced:
            if seen:
                r.clip_since(mark, LEADER, period=p.V)
            s = r.assume(total(v), size * float(v.facts.bounds().max()))
            return r.assume(s * (words / size), float(v.facts.bounds().max()))

        with r.scope("argmax", "argmax"):
            hot = cutmax(logits, schedule, mean=mean, size=size, total=spread, occupied=words)
            r.clip_since(mark, LEADER, period=p.V)
            return r.clip(hot, LEADER)

    def embedding(self, hot: Traced) -> Traced:
        """A one-hot row through the embedding matrix, without the position."""
        r, p = self.r, self.p
        parts = p.vocabulary_parts
        with r.scope("embedding", "embedding"):
            with r.group():
                total: Traced | None = None
                complex_ = False
                for part in range(0, parts, 2):
                    join = self.halve and part + 1 < parts
                    for k in [part] if join or part + 1 == parts else [part, part + 1]:
                        product = from_vocabulary(f"embedding.{k}", p, halve=self.halve and parts == 1, join=join)
                        row = r.select(hot, k)
                        if join:
                            row = row + r.select(hot, k + 1).times_i()
                        z = r.linear(self.halved(row, product), product, period=p.n)
                        complex_ = complex_ or product.complex
                        z = self.real_part(z, product)
                        total = z if total is None else total + z
                assert total is not None
                x = r.sum_over(total, p.D, max(1, p.V // p.D))
            x.facts.period, x.facts.complex = p.D, False
            return x
