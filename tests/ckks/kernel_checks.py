# SPDX-License-Identifier: Apache-2.0
"""One check for every method of the kernel protocol: other kernels equal the reference bit for bit.

A check takes the reference, the kernels in question, a seed and a shape, and compares what both read back. It touches
words by the protocol alone, so any kernels can be handed to it, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from heatfhe.ckks.encoding import SlotMatrix, diagonal
from heatfhe.ckks.expand import expansion_head, label
from heatfhe.ckks.kernels import Digits, Kernels, KeyView, Words
from heatfhe.ckks.kernels.plans import digit_plan, division
from heatfhe.errors import ConfigError
from tests.ckks.kernel_shapes import Host, Shape, key_case, moduli, residues, row_array, slot_matrix, view, words

Check = Callable[[Kernels, Kernels, int, Shape], None]


def same(reference: Kernels, other: Kernels, make: Callable[[Kernels], Words]) -> None:
    """What both make reads back the same."""
    wanted, got = reference.download(make(reference)), other.download(make(other))
    assert got.dtype == wanted.dtype == np.uint32
    assert got.shape == wanted.shape
    assert np.array_equal(got, wanted)


def same_host(wanted: Host, got: Host) -> None:
    assert got.dtype == wanted.dtype == np.uint32
    assert got.shape == wanted.shape
    assert np.array_equal(got, wanted)


# -- words -------------------------------------------------------------------------------------------------------------


def upload(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    for lead in ((), (2,), (3, 2)):
        x = words(reference.ring_dimension, shape.rows, lead, seed)
        x.flags.writeable = False  # as it comes from the wire
        same_host(x, other.download(other.upload(x)))
        same_host(x, reference.download(reference.upload(x)))


def evaluate(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    rng = np.random.default_rng(seed)
    for x in (rng.integers(-(2**62) + 1, 2**62, n), rng.integers(-1, 2, n), np.full(n, 1 - 2**62)):
        same(reference, other, lambda k, x=x: k.evaluate(x, rows))


def alike(reference: Kernels, rows: Sequence[int], wanted: Host, got: Host) -> None:
    """Coefficients (..., limbs, N) of equal integers but for rounding: every one within one, the same in all limbs."""
    q = np.array([reference.moduli[r] for r in rows])[:, None]
    apart = (got.astype(np.int64) - wanted + q // 2) % q - q // 2
    assert np.abs(apart).max() <= 1
    assert (apart == apart[..., :1, :]).all()


def encode(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    rng = np.random.default_rng(seed)
    for size, scale in ((n // 2, 2.0**30), (1, 2.0**40), (8, 1000.0)):
        slots = rng.uniform(-1, 1, size) + 1j * rng.uniform(-1, 1, size)
        alike(reference, shape.rows, *(k.coefficients(k.encode(slots, scale, rows), rows) for k in (reference, other)))
    exact = np.full(4, 0.25)
    same(reference, other, lambda k: k.encode(exact, 2.0**40, rows))
    for k in (reference, other):
        with pytest.raises(ConfigError, match="does not fit 62 bits"):
            k.encode(exact, 2.0**64, rows)
        with pytest.raises(ConfigError, match="power of two"):
            k.encode(np.ones(3), 1.0, rows)


def diagonals(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    """Of one matrix and of two, laid out over all slots and over fewer, more than one launch takes: as encode's."""
    n, rows = reference.ring_dimension, row_array(shape.rows)
    rng = np.random.default_rng(seed)
    turns = [(giant, baby) for giant in (0, 5, n // 2 - 1) for baby in range(30)]
    one = np.eye(1, n, dtype=np.int64)[0]

    def read(k: Kernels, matrices: Sequence[SlotMatrix], some: Sequence[tuple[int, int]]) -> Host:
        """Coefficients (T, limbs, N), by a product with one, which takes back the form of what is prepared."""
        made = k.diagonals(matrices, some, 2.0**30, rows)
        parts = [k.product(k.evaluate(one, rows), k.polynomial(made, i), rows) for i in range(len(some))]
        return np.stack([k.coefficients(part, rows) for part in parts])

    for size, factors in ((n // 2, (1.0,)), (min(64, n // 2), (0.5, 0.5j)), (n // 4, (0.5, -0.5j))):
        matrices = [slot_matrix(rng, size, factor, ahead=7 * i) for i, factor in enumerate(factors)]
        alike(reference, shape.rows, *(read(k, matrices, turns) for k in (reference, other)))
        slots = diagonal(matrices, *turns[35])
        single = reference.coefficients(reference.encode(slots, 2.0**30, rows), rows)
        same_host(single, read(reference, matrices, turns[35:36])[0])
    for k in (reference, other):
        with pytest.raises(ConfigError, match="does not fit 62 bits"):
            k.diagonals([slot_matrix(rng, 8, 1.0)], turns, 2.0**64, rows)
        with pytest.raises(ConfigError, match="power of two"):
            k.diagonals([slot_matrix(rng, n, 1.0)], turns, 1.0, rows)
        with pytest.raises(ConfigError, match="all must be of 8"):
            k.diagonals([slot_matrix(rng, 8, 1.0), slot_matrix(rng, 16, 1.0)], turns, 1.0, rows)


def coefficients(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    rows = row_array(shape.rows)
    x = words(reference.ring_dimension, shape.rows, (), seed)
    same_host(reference.coefficients(reference.upload(x), rows), other.coefficients(other.upload(x), rows))
    rng = np.random.default_rng(seed)
    c = rng.integers(-(2**62) + 1, 2**62, reference.ring_dimension)
    wanted = np.array([[int(v) % reference.moduli[r] for v in c] for r in shape.rows], dtype=np.uint32)
    same_host(wanted, other.coefficients(other.evaluate(c, rows), rows))


def uniform(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    heads = [expansion_head(bytes([seed % 256]) * 32, bytes(32), label(2, 5, digit)) for digit in range(3)]
    same(reference, other, lambda k: k.uniform(heads, row_array(shape.rows)))


def size(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    x = words(reference.ring_dimension, shape.rows, (2,), seed)
    assert other.size(other.upload(x)) == reference.size(reference.upload(x)) == x.nbytes


def polynomial(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    x = words(reference.ring_dimension, shape.rows, (3, 2), seed)
    for k in (reference, other):
        same_host(x[2], k.download(k.polynomial(k.upload(x), 2)))
        same_host(x[1, 1], k.download(k.polynomial(k.polynomial(k.upload(x), 1), 1)))


def polynomials(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    x = words(reference.ring_dimension, shape.rows, (5,), seed)
    for k in (reference, other):
        same_host(x[1:4], k.download(k.polynomials(k.upload(x), 1, 3)))


def each(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    x = words(reference.ring_dimension, shape.rows, (3, 2), seed)
    for k in (reference, other):
        same_host(np.ascontiguousarray(x[:, 1]), k.download(k.each(k.upload(x), 1)))


def limbs(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    x = words(reference.ring_dimension, shape.extended, (2,), seed)
    for k in (reference, other):
        for first, count in ((0, len(shape.rows)), (1, len(shape.extended) - 1)):
            same_host(np.ascontiguousarray(x[:, first : first + count]), k.download(k.limbs(k.upload(x), first, count)))


def stack(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    x = words(reference.ring_dimension, shape.rows, (3, 2), seed)
    for k in (reference, other):
        same_host(x, k.download(k.stack([k.upload(y) for y in x])))
        same_host(x[:2, 1], k.download(k.stack([k.polynomial(k.upload(y), 1) for y in x[:2]])))


# -- limb by limb ------------------------------------------------------------------------------------------------------


def limbwise(method: str) -> Check:
    """add, sub or negate on (R, N) and (2, R, N)."""

    def check(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
        rows = row_array(shape.rows)
        for lead in ((), (2,)):
            x, y = (words(reference.ring_dimension, shape.rows, lead, seed + i) for i in range(2))
            if method == "negate":
                same(reference, other, lambda k, x=x: k.negate(k.upload(x), rows))
            else:
                same(reference, other, lambda k, x=x, y=y: getattr(k, method)(k.upload(x), k.upload(y), rows))

    return check


def scale(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    for lead in ((), (2,), (3,)):
        x, f = words(n, shape.rows, lead, seed), residues(n, shape.rows, seed + 1)
        same(reference, other, lambda k, x=x, f=f: k.scale(k.upload(x), f, rows))


def combine(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x, onto = words(n, shape.rows, (4, 2), seed), words(n, shape.rows, (2,), seed + 1)
    f = [residues(n, shape.rows, seed + 2 + i) for i in range(4)]
    for count in (1, 3, 4):
        same(reference, other, lambda k, c=count: k.combine([(k.upload(x[i]), f[i]) for i in range(c)], rows))

        def joined(k: Kernels, c: int = count) -> Words:
            below = k.upload(onto)
            out = k.combine([(k.upload(x[i]), f[i]) for i in range(c)], rows, below)
            same_host(onto, k.download(below))  # what it is given stays
            return out

        same(reference, other, joined)


def add_first(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x, p = words(n, shape.rows, (2,), seed), words(n, shape.rows, (), seed + 1)
    same(reference, other, lambda k: k.add_first(k.upload(x), k.upload(p), rows))


def add_constant(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x, c = words(n, shape.rows, (2,), seed), residues(n, shape.rows, seed + 1)
    same(reference, other, lambda k: k.add_constant(k.upload(x), c, rows))


def product(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    p = words(n, shape.rows, (), seed + 1)
    for lead in ((), (2,)):
        x = words(n, shape.rows, lead, seed)
        same(reference, other, lambda k, x=x: k.product(k.upload(x), k.prepare(k.upload(p), rows), rows))


def prepare(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    """A batch is prepared as its polynomials are."""
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x, p = words(n, shape.rows, (), seed), words(n, shape.rows, (2,), seed + 1)
    for i in range(2):
        same(
            reference,
            other,
            lambda k, i=i: k.product(k.upload(x), k.polynomial(k.prepare(k.upload(p), rows), i), rows),
        )


def product_sum(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x, p = words(n, shape.rows, (3, 2), seed), words(n, shape.rows, (9,), seed + 1)

    def make(k: Kernels, count: int) -> Words:
        values = [k.upload(y) for y in x]
        return k.product_sum([(values[i % 3], k.prepare(k.upload(p[i]), rows)) for i in range(count)], rows)

    for count in (1, 2, 3, 4, 5, 9):
        same(reference, other, lambda k, count=count: make(k, count))


def tensor(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x = words(n, shape.rows, (4, 2), seed)
    for pairs in ([(0, 1)], [(0, 0)], [(0, 1), (1, 1), (2, 3)]):
        same(
            reference,
            other,
            lambda k, pairs=pairs: k.tensor([(k.upload(x[i]), k.upload(x[j])) for i, j in pairs], rows),
        )


def automorphism(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n = reference.ring_dimension
    for element, lead in ((2 * (seed % n) + 1, (2,)), (2 * n - 1, ()), (1, (2,)), (5, (2, 2))):
        x = words(n, shape.rows, lead, seed)
        same(reference, other, lambda k, x=x, g=element: k.automorphism(k.upload(x), g))


# -- basis conversions -------------------------------------------------------------------------------------------------


def extend(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n = reference.ring_dimension
    digit = shape.digits[0]
    for extended in (shape.extended, (*digit, *shape.special), (*shape.special, *digit)):
        plan = digit_plan(moduli(n), digit, extended, [digit])
        x = words(n, digit, (), seed)
        same(reference, other, lambda k, plan=plan, x=x: k.extend(k.upload(x), plan))


def one_digit(k: Kernels, shape: Shape, digit: int | None) -> KeyView:
    """A key whose product with a decomposition is one of its digits, or zero."""
    rows = shape.extended
    key = np.zeros((len(shape.digits), 2, len(rows), k.ring_dimension), dtype=np.uint32)
    if digit is not None:
        key[digit, 0] = 1
    return view(k, key, rows, 0, rows)


def read_digits(k: Kernels, digits: Digits, batch: int, shape: Shape) -> Host:
    """(beta, batch, E, N): a decomposition is opaque, its products are not."""
    factors, rows = residues(k.ring_dimension, shape.rows, 0), row_array(shape.extended)
    zero, read = one_digit(k, shape, None), []
    for j in range(len(shape.digits)):
        one = one_digit(k, shape, j)
        for i in range(batch):
            keys = [one if b == i else zero for b in range(batch)]
            read.append(k.download(k.polynomial(k.switch_total(digits, keys, rows, factors=factors), 0)))
    return np.stack(read)


def mod_up(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n = reference.ring_dimension
    plan = digit_plan(moduli(n), shape.rows, shape.extended, shape.digits)
    for lead in ((), (1,), (3,)):
        x = words(n, shape.rows, lead, seed)
        batch = lead[0] if lead else 1
        wanted, got = (read_digits(k, k.mod_up(k.upload(x), plan), batch, shape) for k in (reference, other))
        assert np.array_equal(wanted, got)
    x = words(n, shape.rows, (3, 2), seed + 1)  # a polynomial of each of several
    wanted, got = (read_digits(k, k.mod_up(k.each(k.upload(x), 1), plan), 3, shape) for k in (reference, other))
    assert np.array_equal(wanted, got)


def divide(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n = reference.ring_dimension
    factor = int(np.random.default_rng(seed).integers(-(2**60), 2**60))
    for source, target in ((shape.rows, shape.target), (shape.extended, shape.below), (shape.extended, shape.rows)):
        for f in (1, factor):
            plan = division(moduli(n), source, target, factor=f)
            for lead in ((), (2,), (3, 2)):
                x = words(n, source, lead, seed + 1)
                same(reference, other, lambda k, x=x, plan=plan: k.divide(k.upload(x), plan))
        x = words(n, source, (3, 2), seed + 2)
        elements = [1, 2 * (seed % n) + 1, 2 * n - 1]
        same(reference, other, lambda k, x=x, p=plan, g=elements: k.divide(k.upload(x), p, g))
        same(reference, other, lambda k, x=x, p=plan: k.divide(k.each(k.upload(x), 1), p))
        x, added = words(n, source, (2,), seed + 3), residues(n, target, seed)
        for twice, constant in ((True, None), (False, added), (True, added)):
            finish = {"twice": twice, "constant": constant}
            same(reference, other, lambda k, x=x, p=plan, f=finish: k.divide(k.upload(x), p, **f))


# -- keys --------------------------------------------------------------------------------------------------------------


def switch(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    case = key_case(reference.ring_dimension, seed, shape)
    rows = row_array(shape.extended)

    def make(k: Kernels, elements: Sequence[int], none: tuple[int, ...], first: int) -> Words:
        digits = k.mod_up(k.upload(case.second[0]), case.plan)
        keys = [None if i in none else v for i, v in enumerate(case.views(k, first))]
        source = k.upload(case.source[0])
        return k.switch(
            None if len(none) == 3 else digits, keys, rows, source=source, factors=case.factors, elements=elements
        )

    for elements in ((), case.elements):
        for none, first in (((), 0), ((0,), 1), ((1,), 1), ((0, 1, 2), 0)):
            same(reference, other, lambda k, e=elements, n=none, f=first: make(k, e, n, f))


def switch_total(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    case = key_case(reference.ring_dimension, seed, shape)
    rows = row_array(shape.extended)
    sources = (None, case.source[0], case.tall[0], case.source, case.tall)
    bases = (None, case.source[1], case.tall[1])

    def make(k: Kernels, count: int, each: bool, source: Host | None, base: Host | None, moved: bool) -> Words:
        digits = k.mod_up(k.upload(case.second[:count] if each else case.second[0]), case.plan)
        if source is not None and source.ndim == 4:
            source = np.ascontiguousarray(source[:count])
        below = None if base is None else k.upload(base)
        out = k.switch_total(
            digits, case.views(k)[:count], rows, factors=case.factors,
            elements=case.elements[:count] if moved else (), source=None if source is None else k.upload(source),
            base=below,
        )  # fmt: skip
        if base is not None:
            same_host(base, k.download(below))  # what it is given stays
        return out

    rng = np.random.default_rng(seed)
    cases = [
        (c, e, s, b, m) for c in (1, 3) for e in (False, True) for s in sources for b in bases for m in (False, True)
    ]
    for i in rng.choice(len(cases), 12, replace=False):
        same(reference, other, lambda k, case=cases[i]: make(k, *case))


def giant_sums(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    n, rows = reference.ring_dimension, row_array(shape.extended)
    values, plains = words(n, shape.extended, (3, 2), seed), words(n, shape.extended, (9,), seed + 1)
    rng = np.random.default_rng(seed)
    counts = (1, 9, 4, 6)
    which = [rng.integers(0, 3, c) for c in counts]

    def make(k: Kernels, giants: int) -> Words:
        ready = [k.stack([k.prepare(k.upload(p), rows) for p in plains[:c]]) for c in counts[:giants]]
        return k.giant_sums(k.upload(values), which[:giants], ready, rows)

    for giants in (1, 4):
        same(reference, other, lambda k, giants=giants: make(k, giants))


# -- whole operations --------------------------------------------------------------------------------------------------


def replay(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    """The body's own results, for every input, under a name and under none."""
    n, rows = reference.ring_dimension, row_array(shape.rows)
    x = words(n, shape.rows, (3, 2), seed)
    plan = division(moduli(n), shape.rows, shape.target)

    def make(k: Kernels, name: str | None, i: int, j: int) -> Words:
        def body(a: Words, b: Words) -> list[Words]:
            total = k.add(a, b, rows)
            return [k.divide(total, plan), k.divide(k.automorphism(k.sub(a, b, rows), 5), plan)]

        first, second = k.replay(name, body, k.upload(x[i]), k.upload(x[j]))
        return k.stack([first, second])

    for name in (None, f"check {seed} {shape}"):
        for i, j in ((0, 1), (1, 2), (2, 2), (0, 1), (2, 0)):
            same(reference, other, lambda k, name=name, i=i, j=j: make(k, name, i, j))


def synchronize(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    reference.synchronize()
    other.synchronize()


def mark(reference: Kernels, other: Kernels, seed: int, shape: Shape) -> None:
    """Moments follow each other; work lies between two, and nothing between one and itself."""
    x, rows = words(reference.ring_dimension, shape.rows, (2,), seed), row_array(shape.rows)
    for k in (reference, other):
        given = k.upload(x)
        first = k.mark()
        k.add(given, given, rows)
        second, third = k.mark(), k.mark()
        k.synchronize()
        assert k.elapsed(first, second) > 0.0
        assert k.elapsed(second, third) >= 0.0 == k.elapsed(first, first)
        assert k.elapsed(first, third) == pytest.approx(k.elapsed(first, second) + k.elapsed(second, third), abs=1e-5)


CHECKS: dict[str, Check] = {
    "upload": upload, "download": upload, "evaluate": evaluate, "encode": encode, "diagonals": diagonals,
    "coefficients": coefficients, "uniform": uniform, "size": size,
    "polynomial": polynomial, "polynomials": polynomials, "each": each, "limbs": limbs, "stack": stack,
    "add": limbwise("add"), "sub": limbwise("sub"), "negate": limbwise("negate"), "scale": scale,
    "combine": combine, "add_first": add_first, "add_constant": add_constant, "prepare": prepare, "product": product,
    "product_sum": product_sum, "tensor": tensor, "automorphism": automorphism, "extend": extend, "mod_up": mod_up,
    "divide": divide, "switch": switch, "switch_total": switch_total, "giant_sums": giant_sums, "replay": replay,
    "synchronize": synchronize, "mark": mark, "elapsed": mark,
}  # fmt: skip
"""By the method each is about."""
