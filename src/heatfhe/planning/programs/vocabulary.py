# SPDX-License-Identifier: Apache-2.0
"""The end of a token: logits over the vocabulary, the argmax, and the embedding of its result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heatfhe.approx import ArgmaxRound, ArgmaxSchedule, ChordSeed, cutmax
from heatfhe.errors import PlanError
from heatfhe.planning.pack import from_vocabulary, to_vocabulary
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.programs.builder import Builder
from heatfhe.planning.recorder import Traced
from heatfhe.planning.vectors import Mask
from heatfhe.planning.weights import Embedding, Unembedding

HOT = 1.1  # largest entry of a near one-hot row after its division by the row's sum
LEADER = 0.98  # largest entry a round of the argmax may hold: its divisor keeps leaders under one
SPREAD = 4096.0  # between the ends of a variance's domain: from here on its copies are added up


def head(b: Builder, x: Traced, *, centred: bool) -> Traced:
    """The logits; ``centred`` takes their mean over the words out of the matrix, and scales them for the argmax."""
    r, p = b.r, b.p
    scale = b.scales.logits if centred else 1.0
    parts, made = p.vocabulary_parts, []
    with r.scope("head", "head"):
        with r.group():
            for part in range(0, parts, 2):
                pair = b.halve and part + 1 < parts
                here = [part] if pair or part + 1 == parts else [part, part + 1]
                for k in here:
                    product = to_vocabulary(Unembedding(centred, k), p, halve=b.halve and parts == 1, pair=pair)
                    z = r.linear(b.halved(x, product), product, period=p.V)
                    if p.V < p.D:
                        z = r.sum_over(z, p.V, p.D // p.V)
                    if pair:
                        turned = z.conjugate()
                        made += [z + turned, (turned - z).times_i()]
                    else:
                        made.append(b.real_part(z, product))
            logits = b.shifted(r.join(*made), Unembedding(centred))
        logits.facts.period, logits.facts.complex = p.V, False
        return r.assume(logits, b.bound("logits") * scale * (2 if centred else 1))  # a mean is no larger than they are


def argmax(b: Builder, logits: Traced, *, centred: bool) -> Traced:
    """A near one-hot row; padding stays zero, sums run over all its ciphertexts; ``centred`` logits have mean zero.

    What is never refreshed here is the row once it has left its last power: noise on each of its many entries would add
    up in the next embedding, and nothing after takes it away. The last reciprocal is no last result in that sense: its
    error moves an entry's size, which no power follows. Before a settling round a refresh does no harm, since its power
    takes noise away; but not between the last round's power and the first sum, where leaders are at their smallest.

    An inverse root's error would be a factor common to the row, and would leave its order alone, if it were the same in
    every slot. But a refresh errs in each slot by itself, and by as much as a variance that is small beside the end of
    its domain: 0.5 % at a domain of six decades, where the later powers, 189 together, make 1.3 of the logarithm of the
    leader over the runner-up, as 0.015 of a logit would (GPT-2 small, native-16-r40). So a ``tight`` plan adds up all
    copies of such a variance, which a refresh cannot come after: the sum is larger than its reach.
    """
    r, p = b.r, b.p
    if b.circuit.calibration.argmax is None:
        raise PlanError("argmax: the calibration holds no argmax schedule; calibrate the circuit again")
    schedule = _rescaled(b.circuit.calibration.argmax.schedule, b.scales.logits**2)
    size = b.circuit.shape.vocabulary
    padded = p.V * p.vocabulary_parts > size
    words = Public.of(Mask.WORDS) if padded else Public()
    rounds, divisions = [(c.lo, c.hi) for c in schedule.rounds], schedule.divisions
    mark, seen, held = 0, 0, LEADER  # values before it are bounded; sums so far; the next division's largest entry

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
        nonlocal mark, seen, held
        s = total(v)
        if seen < len(rounds):
            lo, hi = rounds[seen]
            r.clip(v, hi * size)
            r.domain(s, lo * size, hi * size)
        elif seen - len(rounds) < len(divisions):
            _, fit, count = divisions[seen - len(rounds)]
            r.clip_since(mark, held, period=p.V)
            r.clip(v, HOT)
            if seen in (len(rounds), len(rounds) + len(divisions) - 1):
                r.last(v)
            r.domain(s, fit.lo, fit.hi)
            held = HOT * fit.overshoot(count)
        seen, mark = seen + 1, len(r.facts)
        return s

    def mean(v: Traced) -> Any:
        if centred and not seen:
            return 0.0
        if seen:
            r.clip_since(mark, LEADER, period=p.V)
        s = r.assume(total(v), size * float(v.facts.bounds().max()))
        return r.assume(s * (words / size), float(v.facts.bounds().max()))

    def alike(s: Traced, c: ArgmaxRound) -> tuple[Traced, int]:
        if not b.tight or c.hi < SPREAD * c.lo:
            return s, 1
        everywhere = r.sum_over(s, 1, p.slots)  # of the whole ring: a part of it would be another part in every slot
        everywhere.facts.period = 1
        return r.domain(everywhere, c.lo * size * p.slots, c.hi * size * p.slots), p.slots

    with r.scope("argmax", "argmax"):
        hot = cutmax(logits, schedule, mean=mean, size=size, total=spread, occupied=words, alike=alike)
        last = LEADER if schedule.final is None else HOT
        r.clip_since(mark, last, period=p.V)
        return r.last(r.clip(hot, last))


def embedding(b: Builder, hot: Traced) -> Traced:
    """A one-hot row through the embedding matrix, without the position."""
    r, p = b.r, b.p
    parts = p.vocabulary_parts
    with r.scope("embedding", "embedding"):
        with r.group():
            total: Traced | None = None
            complex_ = False
            for part in range(0, parts, 2):
                join = b.halve and part + 1 < parts
                for k in [part] if join or part + 1 == parts else [part, part + 1]:
                    product = from_vocabulary(Embedding(k), p, halve=b.halve and parts == 1, join=join)
                    row = r.select(hot, k)
                    if join:
                        row = row + r.select(hot, k + 1).times_i()
                    z = r.linear(b.halved(row, product), product, period=p.n)
                    complex_ = complex_ or product.complex
                    z = b.real_part(z, product)
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
