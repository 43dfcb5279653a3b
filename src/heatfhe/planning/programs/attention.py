# SPDX-License-Identifier: Apache-2.0
"""Attention over an encrypted cache, all heads in one ciphertext, and the softmax of its rows.

Slot (e, c, h) of key ciphertext j holds key[token (c, e mod m)][h, e + j], and of value ciphertext j
value[token (c, (e + j) mod m)][h, e]; token p sits in copy p mod t and residue class p div t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import ReciprocalFit, reciprocal
from heatfhe.approx import softmax as approximate_softmax
from heatfhe.errors import PlanError
from heatfhe.planning.pack import LinearMap, to_heads
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.programs.builder import ROWS, Builder
from heatfhe.planning.recorder import FREE_TIMES, Traced
from heatfhe.planning.scales import FULL
from heatfhe.planning.vectors import Mask, Turn
from heatfhe.planning.weights import Projection, Third
from heatfhe.records import SoftmaxCalibration
from heatfhe.stages import Attention

THIRDS: tuple[Third, ...] = ("q", "k", "v")
COMMON = 1 / 16  # of the noise on a first reciprocal counts: the second divides it out if its domain is kept
SURE = 6.0  # standard deviations that noise never exceeds
TOKENS = 8.0  # bits asked of a refresh that keep tokens: what COMMON and ``common`` are measured by
LOUDEST = 1024.0  # times the aim that sums of exponentials may be: the seed that they meet is as much smaller
SPREAD = 4096.0  # between the least and the largest first reciprocal: from here on the copies of one are added up


def attention(b: Builder, stage: Attention, given: dict[str, Traced]) -> Traced:
    """Queries, the cache with this token appended, scores, rows, and the values they weigh: zero in half of the copies,
    which the projection fills."""
    r, p, name = b.r, b.p, stage.name
    first = Public.of(Mask.FIRST)
    made = [b.linear(value) for value in stage.inputs]
    if len({linear.reads for linear in made}) > 1:
        raise PlanError(f"{name}: queries, keys and values must be made from one value: they share its rotations")
    x, owners = given[made[0].reads], made * (3 // len(made))
    with r.scope(made[0].name if len(made) == 1 else name, "linear"):
        weights = {k: Projection(linear.name, k) for k, linear in zip(THIRDS, owners)}
        products = {k: to_heads(w, p, halve=b.halve) for k, w in weights.items()}
        shared = products["q"]
        turned = r.rotate_many(b.halved(x, shared), shared.babies)
        babies = dict(zip(shared.babies, turned))
        with r.group():
            q = b.real_part(b.diagonals(babies, shared), shared)
            q = b.shifted(r.sum_over(q, p.Hp, p.t), weights["q"])
            if stage.rotary is not None:
                turned = r.rotate_many(q, _ahead(b, stage))
                q = b.copied(_turned(b, stage, Mask.FIRST, turned, 1.0), p.Hp, p.t)
            else:
                q = b.replicated(q, p.Hp, p.t, first) if p.t > 1 else q
        fit = b.circuit.calibration.softmaxes[name].fit
        r.assume(q, b.bound(f"{name}/q") * 2 / (stage.divisor(b.circuit.shape.head_width) * fit.width))
        both, carried = _keys_and_values(b, babies, products["k"], products["v"])
    with r.scope(name, "cache"):
        limits = {k: b.bound(f"{name}/{k}") for k in "kv"}
        caches = {k: r.input(f"{name}/{k}", period=p.n, bound=limits[k], parts=p.m, refreshable=False) for k in "kv"}

        def fresh(part: int) -> Traced:
            return b.shifted(r.select(both, part), weights[THIRDS[1 + part]], carried)

        with r.group():
            turned = r.rotate_many(fresh(0), _ahead(b, stage, p.m))
            keys = caches["k"] + _turned(b, stage, Mask.APPEND_K, turned, carried)
        with r.group():
            values = caches["v"] + fresh(1) * (Public.of(Mask.APPEND_V) / carried)
        for kind, cache in (("k", keys), ("v", values)):
            r.assume(cache, limits[kind]).facts.refreshable = False
            r.output(f"{name}/{kind}", cache)
    with r.scope(name, "attention"):
        with r.group():
            turned = r.rotate_many(q, [p.stride * j for j in range(p.m)])
            scores = r.product_sum([(turned[j], r.select(keys, j)) for j in range(p.m)])
            scores = r.sum_over(scores, p.m * p.stride, p.dh // p.m, period=p.m * p.stride)
            t = scores + Public.of(Mask.CAUSAL) * (-2 * fit.midpoint / fit.width)
        r.domain(t, -1.0, 1.0).facts.period = p.m * p.stride
    y, left = softmax(b, name, t)
    with r.scope(name, "attention"), r.group():
        turned = r.rotate_many(y, [p.stride * j for j in range(p.m)])
        out = r.product_sum([(turned[j], r.select(values, j)) for j in range(p.m)])
        mask = (first if p.t > 1 else Public()) * b.scales.values[stage.writes] / (ROWS * left)
        out = b.replicated(r.sum_over(out, p.Hp, p.t), p.Hp, max(1, p.t // 2), mask)
    out.facts.period = p.n
    return r.assume(out, b.bound(stage.writes) * b.scales.values[stage.writes])


def _ahead(b: Builder, stage: Attention, parts: int = 1) -> list[int]:
    """Rotations to the entries that each ciphertext begins with and, for rotary positions, to those half a head on."""
    near = [b.p.stride * j for j in range(parts)]
    return near if stage.rotary is None else near + [k + b.p.n // 2 for k in near]


def _turned(b: Builder, stage: Attention, mask: Mask, moved: list[Traced], carried: float) -> Traced:
    """What ``_ahead`` leads to, masked: cosine and sine of rotary positions are in the masks and cost no level."""
    if stage.rotary is None:
        return b.r.join(*moved) * (Public.of(mask) / carried)
    half = len(moved) // 2
    halves = b.r.join(*moved[:half]), b.r.join(*moved[half:])
    factors = [Public.of(Turn(mask, stage.rotary, sine)) / carried for sine in (False, True)]
    return b.r.plain_sum(list(zip(halves, factors)))


def _keys_and_values(b: Builder, babies: dict[int, Traced], k: LinearMap, v: LinearMap) -> tuple[Traced, float]:
    """Key and value of this token in the copy its position asks for, as two ciphertexts, and the factor on both.

    They share one tree and one rotation as the parts of a complex value: with products z and y of complex plaintexts,
    (z + i y) + conj(z - i y) = 2 Re z + 2i Re y, and a second conjugation takes them apart. Right in one copy alone, so
    never refreshed before the mask of the cache.
    """
    r, p = b.r, b.p

    def placed(z: Traced) -> Traced:
        return r.sum_over(z, p.Hp, p.t).rotate(-p.Hp, modulus=p.t)

    with r.group():
        z, y = b.diagonals(babies, k), b.diagonals(babies, v)
        if k.complex:
            turned = y.times_i()
            w = placed((z + turned) + (z - turned).conjugate())
            mirrored = w.conjugate()
            both, carried = r.join(w + mirrored, (mirrored - w).times_i()), 2.0
        else:
            both, carried = r.join(placed(z), placed(y)), 1.0
    both.facts.complex = both.facts.refreshable = False
    return both, carried


def summed(
    b: Builder, c: SoftmaxCalibration, v: Traced, number: int, terms: int, top: float
) -> tuple[ReciprocalFit, float]:
    """The reciprocal that the sum of a row v, carried to be at most ``top``, enters, and the least sum it meets; says
    what noise on v counts beside."""
    fit, least = c.met(number)
    if b.tight and number:
        b.r.clip(b.r.root(v), top**0.5)
    b.r.weigh(v, top * least / fit.hi / terms**0.5)  # noise of all slots adds up in the sum, masked ones too
    b.r.clip(v, top)
    return fit, least


def carried_ahead(b: Builder, fit: ReciprocalFit, count: int, gain: float) -> int:
    """Iterations for which a tight reciprocal's numerator is carried ahead, so that it begins no smaller than aim / 2.

    Two dozen iterations double the numerator two dozen times: as small as it would have to begin, the errors of single
    products, some 1e-8, would be as large as itself.
    """
    begins = gain * fit.schedule(count)[0] * fit.alpha
    return min(count, max(0, math.floor(math.log2(b.scales.aim / begins)))) if b.tight else 0


def common(c: SoftmaxCalibration, mean: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """The part of noise on a first reciprocal's numerator that counts, in rows of these means of exponentials.

    Such noise is a factor g of a whole row and nothing else, where the copies of all slots are added up. The second
    reciprocal divides g^2 out, as long as it meets less than the end of its domain and its own beginning, and g is not
    near zero. A numerator is least in the loudest rows; those are flat, so that their squares are far from that end. A
    denominator is another matter: it must not change its sign, and counts by COMMON.

    Where the ring is larger than the layout, copies are added up over the layout only. Every slot then has the sum of
    other copies, so g differs from slot to slot, and the numerator counts by COMMON as well.

    Domain  0 < mean; rows of at most ``terms`` entries within their calibration; a softmax with passes; a layout that
            fills the ring.
    Bound   the mean of squares q of a row of mean one is at most terms and max(E) / mean(E), since mean(E^2) <= max(E)
            mean(E). With room = min(1, sqrt((lo + hi) / q) - 1) and noise of a deviation that SURE of are room,
            0 < g and g^2 q < lo + hi. TOKENS bits ask for that; COMMON where it is less: there is no such room.
    Depth   none: this is a constant.
    Source  q from E^2 <= max(E) E; noise in one refresh at a time on the default circuits, docs/log.md.
    """
    fit = c.met(1)[0]
    loudest = math.exp(c.fit.width / (2.0 * c.fit.delta_2))
    squares = np.clip(loudest / mean, 1.0, min(float(terms), fit.hi))
    room = np.minimum(1.0, np.sqrt((fit.lo + fit.hi) / squares) - 1.0)
    return np.asarray(np.minimum(COMMON, SURE / 2.0**TOKENS / room))


@dataclass(frozen=True, slots=True)
class Loudness:
    """How large the sums of a softmax are carried: of exponentials and of squares, at most ``tops``; Y by ``root``.

    ``copies`` of each first reciprocal are added up.
    """

    tops: tuple[float, float]
    root: Public
    copies: int


def loudness(b: Builder, c: SoftmaxCalibration) -> Loudness:
    """All sums up to aim; ``tight``, as large as they can be for nothing.

    What a product, a rotation or a drop rounds does not shrink with a value. An exponential in a row whose sum is the
    least of its domain is hi / least times smaller than one in the loudest, and its reciprocal as much larger, so what
    the exponential lost is multiplied. It is carried louder by all that the reciprocal would be multiplied by
    afterwards. Such sums are not refreshed as they are (they are divided first, for a level); squares may be, so they
    fill the reach.

    A reciprocal in a loud row is the small one, and the error that a refresh or a product leaves there is another in
    every slot: it is no common factor of the row, and no second reciprocal divides it out. Where reciprocals spread by
    SPREAD or more, all their copies are added up: one number for every slot, with the mean of their errors.

    Domain  any calibration; the same rows in exact arithmetic.
    Bound   a rounding of r per slot is r hi / (top least) of an exponential in the quietest row, and up to r top / 4 of
            the seed's denominator, which is why top ends at LOUDEST times aim.
    Depth   none; one less where the reciprocal is multiplied by FREE_TIMES or less afterwards.
    Source  measured step by step on GPT-2 small, docs/log.md.
    """
    p, aim = b.p, b.scales.aim
    widest = c.fit.init if c.fit.refine is None else c.fit.refine
    if not b.tight:
        return Loudness((aim, aim), (ROWS * (widest.hi / aim)).power(-0.5), 1)
    (fit, least), squares = c.met(0), max(aim, FULL * b.source.reach)
    root = (ROWS * (widest.hi / squares)).power(-0.5)
    largest = fit.hi * fit.largest(c.init_count, least)
    copies = p.n // p.Hp if c.fit.passes and largest >= SPREAD else 1
    asked = root.coefficient * p.context**0.5 * largest / aim / aim / copies
    louder = 2.0 ** math.floor(math.log2(min(max(asked, 1.0), LOUDEST)))
    return Loudness((aim * louder, squares), root, copies)


def softmax(b: Builder, name: str, t: Traced) -> tuple[Traced, Public]:
    """The row, and the factor it is carried by: all sums lie in (0, top] whatever the row's length.

    E is carried by top / (hi n), so its sum is the mean's share of top; Y by root = sqrt(top / (hi n)), so that the
    sum of its squares is; ``loudness`` has the tops. What a sum is carried by never shows in the rows: they are divided
    by it.

    A reciprocal is carried so that its largest value is aim: 1 / lo at the last position, or, ``tight``, what its count
    of iterations can reach, at every position. Refreshes and roundings are as large beside a small reciprocal as
    beside a large one, so this decides how many bits a row keeps.
    """
    r, p = b.r, b.p
    c, aim = b.circuit.calibration.softmaxes[name], b.scales.aim
    size = loudness(b, c)
    root, tops = size.root, size.tops
    sums = 0

    def row_sum(v: Traced) -> Traced:
        nonlocal sums
        top = tops[min(sums, 1)]
        fit, least = summed(b, c, v, sums, p.capacity, top)
        sums += 1
        with r.group():
            s = r.sum_over(v, p.Hp, p.capacity, period=p.Hp)
            if p.Hp > b.circuit.shape.heads:
                s = s + Public.of(Mask.IDLE) * (top * math.sqrt(fit.lo / fit.hi))
        s.facts.period = p.Hp
        return r.domain(s, top * least / fit.hi, top)

    def solver(number: int, count: int) -> Callable[[Traced], Traced]:
        fit, least = c.met(number)
        scale = fit.hi / tops[min(number, 1)]
        gain = root * ROWS * scale
        copies = size.copies if number == 0 else 1
        largest = gain.coefficient * p.context**0.5 * (fit.largest(count, least) if b.tight else 1 / least)
        back = Public(max(1, math.ceil(largest / copies / aim)))
        if b.tight and back.coefficient > FREE_TIMES:  # a product then: it may undo the root of the row's length, too
            back = back * (ROWS / p.context).power(0.5)
        times = back if back.rows else int(back.coefficient)

        part = COMMON if number == 0 and c.fit.passes else 1.0
        gain = gain / back / copies
        ahead = carried_ahead(b, fit, count, gain.coefficient * p.context**gain.rows)

        def solve(s: Traced) -> Traced:
            y = r.weigh(r.last(reciprocal(s, fit, count, scale=scale, gain=gain, ahead=ahead)), part=part)
            if copies * p.Hp == p.slots:
                r.weigh_factors(y, common(c, np.abs(s.facts.samples) * scale, p.context))
            return (r.last(r.sum_over(y, p.Hp, copies)) if copies > 1 else y) * times

        return solve

    with r.scope(name, "softmax"):
        squared = 1.0 / (1 << c.fit.exponential.squarings)
        mask = Public.of(Mask.CAUSAL) * (ROWS * (c.fit.init.hi / tops[0])).power(-squared)
        y = approximate_softmax(
            t, c.fit, row_sum=row_sum, mask=mask, init=solver(0, c.init_count),
            refine=None if c.fit.refine is None else solver(1, c.refine_count),
        )  # fmt: skip
        return r.clip(y, root.coefficient, rows=0.5), root
