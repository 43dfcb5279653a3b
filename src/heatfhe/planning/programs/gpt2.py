# SPDX-License-Identifier: Apache-2.0
"""GPT-2's decode of one token as recorded operations, over an encrypted cache with all heads in one ciphertext.

The position is public. Token p of the cache sits in copy p mod t and residue class p div t: slot (e, c, h) of key
ciphertext j holds key[token (c, e mod m)][h, e + j], and of value ciphertext j value[token (c, (e + j) mod m)][h, e].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from heatfhe.approx import (
    ArgmaxSchedule,
    ChordSeed,
    ReciprocalFit,
    activation,
    cutmax,
    inverse_sqrt,
    reciprocal,
    rms_norm,
    softmax,
)
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
from heatfhe.planning.programs.scales import magnitude, scales
from heatfhe.planning.public import Public
from heatfhe.planning.recorder import Recorder, Traced
from heatfhe.planning.recording import Recording, finish

PROGRAMS = ("prompt", "generate", "logits", "sample", "embed")
ROWS = Public.named("rows")
HOT = 1.1  # largest entry of a near one-hot row after its division by the row's sum
LEADER = 0.98  # largest entry a round of the argmax may hold: its divisor keeps leaders under one


def record(
    circuit: Circuit,
    packing: Packing,
    program: str,
    *,
    window: float = 1.0,
    halve: bool = True,
    contract: bool = True,
) -> Recording:
    """Record one program. ``halve`` allows complex plaintexts, ``contract`` makes every polynomial one node.

    ``window`` is the magnitude a bootstrap takes; values are carried at sizes that suit it.

    prompt: the cache filled, no head. generate: the next token, as a one-hot row and as the next input. logits: the
    logits themselves. sample: as generate, with an encrypted noise row added to the logits. embed: a one-hot row as an
    input.
    """
    if program not in PROGRAMS:
        raise ConfigError(f"unknown program {program!r}; have {', '.join(PROGRAMS)}")
    return finish(_Decoder(circuit, packing, window, halve, contract).run(program))


class _Decoder:
    def __init__(self, circuit: Circuit, packing: Packing, window: float, halve: bool, contract: bool) -> None:
        self.circuit, self.p, self.halve = circuit, packing, halve
        self.scales = scales(circuit, window)
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
        """Largest magnitude of a named value."""
        return magnitude(self.circuit, name)

    # -- the programs -----------------------------------------------------------------------------------------------

    def run(self, program: str) -> Recorder:
        r, p = self.r, self.p
        first = self.circuit.stages[0].writes
        size = 2 * self.bound(first)  # a token alone may exceed token plus position
        if program == "embed":
            hot = r.input("token", period=p.V, bound=1.0, parts=p.vocabulary_parts)
            r.output("x", r.assume(self.embedding(hot), size))
            return r
        values: dict[str, Traced] = {}
        with r.scope("x", "embedding"):
            x = r.input("x", period=p.D, bound=size)
            values[first] = r.assume(x + Public.named("position"), self.bound(first))
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
                logits = self.head(values[stage.reads], 1.0 if program == "logits" else self.scales.logits)
        if program == "prompt":
            return r
        if program == "logits":
            r.output("logits", logits)
            return r
        if program == "sample":
            with r.scope("noise", "argmax"):
                noise = r.input("noise", period=p.V, bound=self.bound("logits"), parts=p.vocabulary_parts)
                noisy = logits + noise * self.scales.logits
                logits = r.assume(noisy, 2 * self.bound("logits") * self.scales.logits)
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
        r, c, scale = self.r, self.circuit.calibration.norms[stage.name], self.scales.norms[stage.name]
        fit = c.fit.scaled(scale.square)

        def sum_of_squares(v: Traced) -> Traced:
            with r.group():
                z = r.sum_over(v * v, 1, self.p.D, period=1) * scale.square_times + c.width * c.eps * scale.square
            return r.domain(z, fit.lo, fit.hi)

        def inverse_root(z: Traced) -> Traced:
            return r.last(inverse_sqrt(z, fit, c.goldschmidt_count, c.newton_count, gain=scale.gain))

        with r.scope(stage.name, "layernorm"):
            y = rms_norm(x, sum_of_squares=sum_of_squares, inverse_root=inverse_root) * scale.result_times
            return r.assume(y, self.bound(stage.writes) * scale.result)

    def attention(self, stage: Attention, x: Traced) -> Traced:
        r, p, name = self.r, self.p, stage.name
        first = Public.named("first")
        with r.scope(f"{name}.c_attn", "linear"):
            products = {k: to_heads(f"{name}.c_attn/{k}", p, halve=self.halve) for k in "qkv"}
            shared = products["q"]
            turned = r.rotate_many(self.halved(x, shared), shared.babies)
            babies = dict(zip(shared.babies, turned))

            def heads(part: str) -> Traced:
                with r.scope(f"{name}.c_attn", "linear"):
                    y = r.sum_over(self.diagonals(babies, products[part]), p.Hp, p.t)
                    return y + Public.named(f"bias:{name}.c_attn/{part}")

            with r.group():
                q = heads("q")
                q = self.replicated(q, p.Hp, p.t, first) if p.t > 1 else q
            r.assume(q, self.bound(f"{name}/q") * 2 / self.score_scale(name))
        with r.scope(name, "cache"):
            limits = {k: self.bound(f"{name}/{k}") for k in "kv"}
            caches = {
                k: r.input(f"{name}/{k}", period=p.n, bound=limits[k], parts=p.m, refreshable=False) for k in "kv"
            }
            with r.group():
                k = heads("k").rotate(-p.Hp, modulus=p.t)
                moved = r.join(*r.rotate_many(k, [p.stride * j for j in range(p.m)]))
                keys = caches["k"] + moved * Public.named("append.k")
            with r.group():
                values = caches["v"] + heads("v").rotate(-p.Hp, modulus=p.t) * Public.named("append.v")
            for kind, cache in (("k", keys), ("v", values)):
                r.assume(cache, limits[kind]).facts.refreshable = False
                r.output(f"{name}/{kind}", cache)
        with r.scope(name, "attention"):
            with r.group():
                turned = r.rotate_many(q, [p.stride * j for j in range(p.m)])
                scores = r.product_sum([(turned[j], r.select(keys, j)) for j in range(p.m)])
                scores = r.sum_over(scores, p.m * p.stride, p.dh // p.m, period=p.m * p.stride)
                shift = self.circuit.calibration.softmaxes[name].fit
                t = scores + Public.named("causal") * (-2 * shift.midpoint / shift.width)
            r.domain(t, -1.0, 1.0).facts.period = p.m * p.stride
        y, left = self.softmax(name, t)
        with r.scope(name, "attention"), r.group():
            turned = r.rotate_many(y, [p.stride * j for j in range(p.m)])
            out = r.product_sum([(turned[j], r.select(values, j)) for j in range(p.m)])
            mask = (first if p.t > 1 else Public()) * self.scales.attention[name] / (ROWS * left)
            out = self.replicated(r.sum_over(out, p.Hp, p.t), p.Hp, p.t, mask)
        out.facts.period = p.n
        return r.assume(out, self.bound(stage.writes) * self.scales.attention[name])

    def score_scale(self, name: str) -> float:
        """sqrt(head width) times the width of the scores' domain: the queries carry 2 / this."""
        return math.sqrt(self.circuit.shape.head_width) * self.circuit.calibration.softmaxes[name].fit.width

    def softmax(self, name: str, t: Traced) -> tuple[Traced, Public]:
        """The row, and the factor it is carried by: all sums lie in (0, aim] whatever the row's length.

        E is carried by aim / (hi n), so its sum is the mean's share of aim; Y by root = sqrt(aim / (hi n)), so that the
        sum of its squares is. What a sum is carried by never shows in the rows: they are divided by it.
        """
        r, p = self.r, self.p
        c, aim = self.circuit.calibration.softmaxes[name], self.scales.aim
        widest = c.fit.init if c.fit.refine is None else c.fit.refine
        root = (ROWS * (widest.hi / aim)).power(-0.5)
        sums = 0

        def row_sum(v: Traced) -> Traced:
            nonlocal sums
            fit = c.fit.init if sums == 0 or c.fit.refine is None else c.fit.refine
            sums += 1
            r.clip(v, aim)
            with r.group():
                s = r.sum_over(v, p.Hp, p.capacity, period=p.Hp)
                if p.Hp > self.circuit.shape.heads:
                    s = s + Public.named("idle") * (aim * math.sqrt(fit.lo / fit.hi))
            s.facts.period = p.Hp
            return r.domain(s, aim * fit.lo / fit.hi, aim)

        def solver(fit: ReciprocalFit, count: int) -> Callable[[Traced], Traced]:
            scale = fit.hi / aim
            gain = root * ROWS * scale
            largest = gain.coefficient * p.context**0.5 / fit.lo
            times = max(1, math.ceil(largest / aim))
            return lambda s: r.last(reciprocal(s, fit, count, scale=scale, gain=gain / times)) * times

        with r.scope(name, "softmax"):
            squared = 1.0 / (1 << c.fit.exponential.squarings)
            mask = Public.named("causal") * (ROWS * (c.fit.init.hi / aim)).power(-squared)
            y = softmax(
                t, c.fit, row_sum=row_sum, row_length=ROWS, mask=mask, init=solver(c.fit.init, c.init_count),
                refine=None if c.fit.refine is None else solver(c.fit.refine, c.refine_count),
            )  # fmt: skip
            return r.clip(y, root.coefficient, rows=0.5), root

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
            stream = values[stage.reads]
            if stage.reads == self.circuit.stages[0].writes:
                stream = stream * self.scales.residual
            return r.assume(stream + y, self.bound(stage.writes) * self.scales.residual)

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
            return r.assume(activation(u, replace(fit, bound=1.0)), self.bound(stage.writes) / fit.bound)

    def head(self, x: Traced, scale: float) -> Traced:
        """Logits times a scale, which is in the matrix when its key says so."""
        r, p = self.r, self.p
        name = "head" if scale == 1.0 else "scaled"
        parts, made = p.vocabulary_parts, []
        with r.scope("head", "head"):
            with r.group():
                for part in range(0, parts, 2):
                    pair = self.halve and part + 1 < parts
                    here = [part] if pair or part + 1 == parts else [part, part + 1]
                    for k in here:
                        product = to_vocabulary(f"{name}.{k}", p, halve=self.halve and parts == 1, pair=pair)
                        z = r.linear(self.halved(x, product), product, period=p.V)
                        if p.V < p.D:
                            z = r.sum_over(z, p.V, p.D // p.V)
                        if pair:
                            turned = z.conjugate()
                            made += [z + turned, (turned - z).times_i()]
                        else:
                            made.append(self.real_part(z, product))
                logits = r.join(*made)
                logits = logits + Public.named("bias:head") * scale
            logits.facts.period, logits.facts.complex = p.V, False
            return r.assume(logits, self.bound("logits") * scale)

    def argmax(self, logits: Traced) -> Traced:
        r, p = self.r, self.p
        if self.circuit.calibration.argmax is None:
            raise PlanError("argmax: the calibration holds no argmax schedule; calibrate the circuit again")
        schedule = _rescaled(self.circuit.calibration.argmax.schedule, self.scales.logits**2)
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
            last = LEADER if schedule.final is None else HOT
            r.clip_since(mark, 2 * last, period=p.V)  # a numerator starts up to twice its quotient
            return r.clip(hot, last)

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


def _rescaled(schedule: ArgmaxSchedule, by: float) -> ArgmaxSchedule:
    """The schedule for logits whose variance is ``by`` times as large."""
    first = schedule.rounds[0]
    seed = first.seed
    if isinstance(seed, ChordSeed):
        moved = replace(first, seed=replace(seed, lo=seed.lo * by, hi=seed.hi * by))
    else:
        moved = replace(first, seed=seed.scaled(by))
    return replace(schedule, rounds=(moved, *schedule.rounds[1:]))
