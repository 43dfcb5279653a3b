# SPDX-License-Identifier: Apache-2.0
"""Kernels: the reference against Python integers, the compiled ones against the reference bit for bit."""

from __future__ import annotations

import inspect
import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.ckks.kernels import Kernels, KeyView, ReferenceKernels, load_kernels, plans
from heatfhe.ckks.kernels.plans import conversion, division
from heatfhe.errors import ConfigError
from tests.ckks.kernel_checks import CHECKS
from tests.ckks.kernel_shapes import SHAPES, Host, Shape, key_case, moduli, residues, row_array, words
from tests.ckks.seeded import digest, random_words

pytest.importorskip("numba", reason="compiled kernels need numba")

SIZES = (16, 32, 64, 128, 256, 2048)


@lru_cache(maxsize=16)
def both(n: int) -> tuple[Any, Any]:
    return load_kernels("reference", n, moduli(n)), load_kernels("cpu", n, moduli(n), threads=2)


def equal(a: Host, b: Host) -> None:
    assert a.dtype == b.dtype == np.uint32
    assert a.shape == b.shape
    assert np.array_equal(a, b)


@pytest.mark.parametrize("n", [16, 64])
def test_the_reference_transform_is_evaluation_at_odd_powers(n: int) -> None:
    kernels, p = ReferenceKernels(n, moduli(n)), moduli(n)[0]
    x = words(n, [0], (), 2)
    root = int(kernels._psi[0][plans.bit_reversal(n)[1]])
    wanted = [sum(int(c) * pow(root, int(e) * k, p) for k, c in enumerate(x[0])) % p for e in plans.exponents(n)]
    assert kernels.ntt(x, np.array([0]))[0].tolist() == wanted


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_products_of_transforms_are_negacyclic_products(seed: int) -> None:
    n, rows = 16, np.array([0, 9, 13])
    kernels = ReferenceKernels(n, moduli(n))
    x, y = words(n, [0, 9, 13], (), seed), words(n, [0, 9, 13], (), seed + 1)
    got = kernels.intt(kernels.product(kernels.ntt(x, rows), kernels.ntt(y, rows), rows), rows)
    for limb, r in enumerate(rows):
        p = moduli(n)[r]
        wanted = [0] * n
        for i in range(n):
            for j in range(n):
                sign = 1 if i + j < n else -1
                wanted[(i + j) % n] += sign * int(x[limb, i]) * int(y[limb, j])
        assert got[limb].tolist() == [w % p for w in wanted]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), src=st.sampled_from([(0,), (8, 9), (0, 1, 2), (12, 13, 8, 0), tuple(range(8))]))
def test_conversion_gives_the_centred_representative(data: st.DataObject, src: tuple[int, ...]) -> None:
    n = 16
    kernels, m = ReferenceKernels(n, moduli(n)), moduli(n)
    total = math.prod(m[i] for i in src)
    bound = total // 2 - len(src) * total // 2**21  # nearer to half of D, rounding may go either way
    values = data.draw(st.lists(st.integers(-bound, bound), min_size=n, max_size=n))
    x = np.array([[v % m[i] for v in values] for i in src], dtype=np.uint32)
    c = conversion(m, list(src), [10, 11])
    assert kernels.convert(x, c).tolist() == [[v % m[j] for v in values] for j in (10, 11)]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), case=st.integers(0, 2))
def test_division_rounds_exactly(seed: int, case: int) -> None:
    """y = round(x E / D) for signed x: as stated, in rationals."""
    n = 16
    kernels, m = ReferenceKernels(n, moduli(n)), moduli(n)
    src, dst = [([8, 9, 10, 0, 1], [0, 1, 2]), ([0, 1, 2, 3, 4], [0, 1]), ([8, 0, 1, 6, 7], [8, 9, 0])][case]
    source, target = math.prod(m[i] for i in src), math.prod(m[i] for i in dst)
    rng = np.random.default_rng(seed)
    values = [int.from_bytes(rng.bytes(32), "little") % source - source // 2 for _ in range(n)]
    x = np.array([[[v % m[i] for v in values] for i in src]], dtype=np.uint32)
    got = kernels.intt(kernels.divide(kernels.ntt(x, np.array(src)), division(m, src, dst)), np.array(dst))[0]
    for k, v in enumerate(values):
        rounded, rest = divmod(2 * v * target + source, 2 * source)
        if min(rest, 2 * source - rest) < source >> 17:
            continue  # a tie, within the fixed-point reciprocal: either neighbour is right
        assert [int(g) for g in got[:, k]] == [rounded % m[j] for j in dst]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_transforms_agree_bit_for_bit(n: int, seed: int) -> None:
    reference, cpu = both(n)
    rows = np.arange(14)
    x = words(n, list(rows), (2,), seed)
    equal(reference.ntt(x, rows), cpu.ntt(x, rows))
    equal(reference.intt(x, rows), cpu.intt(x, rows))
    equal(cpu.intt(cpu.ntt(x, rows), rows), x)


# -- every method of the protocol --------------------------------------------------------------------------------------


def test_every_method_of_the_protocol_has_a_check() -> None:
    methods = {name for name, f in inspect.getmembers(Kernels, inspect.isfunction) if not name.startswith("_")}
    assert methods == set(CHECKS)


@pytest.mark.parametrize("method", sorted(CHECKS))
@settings(max_examples=12, deadline=None)
@given(n=st.sampled_from(SIZES[:-1]), seed=st.integers(0, 2**40), shape=st.sampled_from(SHAPES))
def test_compiled_kernels_equal_the_reference(method: str, n: int, seed: int, shape: Shape) -> None:
    CHECKS[method](*both(n), seed, shape)


@pytest.mark.parametrize("method", sorted(CHECKS))
def test_compiled_kernels_equal_the_reference_on_a_large_ring(method: str) -> None:
    CHECKS[method](*both(2048), 6, SHAPES[0])


# -- what the methods mean, in plain numpy on natural order ------------------------------------------------------------


def wide(x: Host) -> Any:
    return x.astype(np.uint64)


def primes(n: int, rows: tuple[int, ...]) -> Any:
    return np.array([moduli(n)[r] for r in rows], dtype=np.uint64)[:, None]


def moved(x: Any, element: int) -> Any:
    """Position k holds the value at psi^(2k+1): X -> X^g reads it at psi^(g (2k+1))."""
    n = x.shape[-1]
    return x[..., (element * (2 * np.arange(n) + 1) % (2 * n)) >> 1]


def raised(x: Host, factors: Host, n: int, shape: Shape) -> Any:
    if x.shape[-2] == len(shape.extended):
        return wide(x)
    out = np.zeros((*x.shape[:-2], len(shape.extended), n), dtype=np.uint64)
    out[..., : len(shape.rows), :] = wide(x) * wide(factors)[:, None] % primes(n, shape.rows)
    return out


@settings(max_examples=40, deadline=None)
@given(n=st.sampled_from((16, 64)), seed=st.integers(0, 2**40), shape=st.sampled_from(SHAPES))
def test_key_sums_mean_what_they_say(n: int, seed: int, shape: Shape) -> None:
    k, case, rows = both(n)[0], key_case(n, seed, shape), row_array(shape.extended)
    q = primes(n, shape.extended)
    places = [case.key_rows.index(e) for e in shape.extended]
    digits = k.mod_up(k.upload(case.second), case.plan)

    def product(i: int, key: int) -> Any:
        """Sum over the digits of the i-th polynomial times a key's, from its second digit on."""
        parts = wide(k.download(digits[i]))
        read = wide(case.keys[key][1:, :, places])
        return np.array(sum((parts[j] * read[j]) % q for j in range(len(parts))) % q)

    views = case.views(k, 1)
    source = raised(case.source[0], case.factors, n, shape)
    first = np.stack([source[0], np.zeros_like(source[0])])
    wanted = np.stack([moved((product(0, i) + first) % q, g) for i, g in enumerate(case.elements)])
    wanted[1] = moved(source, case.elements[1])
    got = k.switch(
        digits[:1], [views[0], None, views[2]], rows, source=k.upload(case.source[0]), factors=case.factors,
        elements=case.elements,
    )  # fmt: skip
    equal(k.download(got), wanted.astype(np.uint32))
    for sources, base in ((case.source, case.tall[0]), (case.tall, case.source[1])):
        total = raised(base, case.factors, n, shape)
        for i, g in enumerate(case.elements):
            own = raised(sources[i], case.factors, n, shape)
            total = (total + moved((product(i, i) + np.stack([own[0], np.zeros_like(own[0])])) % q, g)) % q
        got = k.switch_total(
            digits, views, rows, factors=case.factors, elements=case.elements, source=k.upload(sources),
            base=k.upload(base),
        )  # fmt: skip
        equal(k.download(got), total.astype(np.uint32))


@settings(max_examples=40, deadline=None)
@given(n=st.sampled_from((16, 64)), seed=st.integers(0, 2**40), shape=st.sampled_from(SHAPES))
def test_sums_of_products_mean_what_they_say(n: int, seed: int, shape: Shape) -> None:
    k, rows, q = both(n)[0], row_array(shape.rows), primes(n, shape.rows)
    x, p, f = (
        words(n, shape.rows, (3, 2), seed),
        words(n, shape.rows, (4,), seed + 1),
        residues(n, shape.rows, seed + 2),
    )
    c = wide(f)[:, None]
    up = [k.upload(y) for y in x]
    equal(
        k.download(k.combine([(up[0], f), (up[1], f)], rows, up[2])),
        ((x[2] + (x[0] * c + x[1] * c % q)) % q).astype(np.uint32),
    )
    total = sum(wide(x[i]) * wide(p[i]) % q for i in range(3)) % q
    pairs = [(up[i], k.prepare(k.upload(p[i]), rows)) for i in range(3)]
    equal(k.download(k.product_sum(pairs, rows)), np.asarray(total).astype(np.uint32))
    which = [np.array([2, 0, 2]), np.array([1])]
    giants = k.giant_sums(k.upload(x), which, [k.upload(p[:3]), k.upload(p[3:])], rows)
    first = sum(wide(x[v]) * wide(p[d]) % q for d, v in enumerate(which[0])) % q
    equal(k.download(giants), np.stack([first, wide(x[1]) * wide(p[3]) % q]).astype(np.uint32))
    added = x[0].copy()
    added[0] = (wide(x[0, 0]) + wide(p[0])) % q
    equal(k.download(k.add_first(up[0], k.upload(p[0]), rows)), added)
    added[0] = (wide(x[0, 0]) + c) % q
    equal(k.download(k.add_constant(up[0], f, rows)), added)


@settings(max_examples=40, deadline=None)
@given(
    n=st.sampled_from((16, 64)),
    seed=st.integers(0, 2**40),
    shape=st.sampled_from(SHAPES),
    factor=st.integers(-(2**80), 2**80),
)
def test_a_division_with_a_factor_is_scaling_and_dividing(n: int, seed: int, shape: Shape, factor: int) -> None:
    k, rows = both(n)[0], row_array(shape.extended)
    x = k.upload(words(n, shape.extended, (3, 2), seed))
    constant = np.array([factor % moduli(n)[r] for r in shape.extended], dtype=np.uint32)
    elements = (5, 1, 2 * n - 1)
    for target in (shape.below, shape.rows):
        plain = division(moduli(n), shape.extended, target)
        wanted = k.divide(np.stack([k.scale(y, constant, rows) for y in x]), plain)
        folded = division(moduli(n), shape.extended, target, factor=factor)
        equal(k.divide(x, folded), wanted)
        equal(k.divide(x, folded, elements), np.stack([k.automorphism(y, g) for y, g in zip(wanted, elements)]))


def test_a_key_view_reads_its_window() -> None:
    n, shape = 16, SHAPES[1]
    k, case = both(n)[0], key_case(n, 3, shape)
    digits, rows = k.mod_up(k.upload(case.second[0]), case.plan), row_array(shape.extended)
    whole = case.views(k, 1)[0]
    places = [case.key_rows.index(e) for e in shape.extended]
    window = KeyView(np.ascontiguousarray(whole.words[1:, :, places]), 0, np.arange(len(rows)))
    total = [k.switch_total(digits, [key], rows, factors=case.factors) for key in (whole, window)]
    equal(*total)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1 << 12, 1 << 13, 1 << 14, 1 << 16, 1 << 17])
def test_large_transforms_agree_bit_for_bit(n: int) -> None:
    reference, cpu = both(n)
    rows = np.array([0, 8])
    for seed in range(3):
        x = words(n, [0, 8], (), seed)
        equal(reference.ntt(x, rows), cpu.ntt(x, rows))
        equal(reference.intt(x, rows), cpu.intt(x, rows))


def test_automorphism_moves_coefficients_with_sign() -> None:
    n, g, rows = 32, 5, np.array([0])
    kernels, p = ReferenceKernels(n, moduli(n)), moduli(n)[0]
    x = words(n, [0], (), 6)
    got = kernels.intt(kernels.automorphism(kernels.ntt(x, rows), g), rows)[0]
    for k in range(n):
        place = k * g % (2 * n)
        value = int(x[0, k]) if place < n else -int(x[0, k])
        assert int(got[place % n]) == value % p


def test_golden_transforms() -> None:
    """Fixed inputs, fixed outputs: the layout and the roots may never move silently."""
    n = 2048
    _, cpu = both(n)
    rows = np.arange(14)
    x = random_words(moduli(n), rows.tolist(), (), n, 7)
    assert digest(x) == GOLDEN["input"]
    assert digest(cpu.ntt(x, rows)) == GOLDEN["ntt"]
    assert digest(cpu.intt(x, rows)) == GOLDEN["intt"]
    assert digest(cpu.divide(x[None, :10], division(moduli(n), list(range(10)), [8, 9, 10, 0, 1]))) == GOLDEN["divide"]


GOLDEN = {
    "input": "268a98ff9aa2715af77bacdc7b6656d1840831c5edf0c5772fe12800682246be",
    "ntt": "dc8faecac605365178587b1e58fca174b1027424a22de294530bc54e92b653c5",
    "intt": "2acce8ec34f79f0cfb13fa070ebee6d28431da416b6e1ed35a7324024b4ce3f5",
    "divide": "dcf7a1eb3bd210f1df6e4d36755e3f564780ef74230901b5b18af4c3fea8de91",
}


def test_unknown_devices_and_bad_thread_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="have: cpu, cuda, reference"):
        load_kernels("tpu", 16, moduli(16))
    with pytest.raises(ConfigError, match="threads"):
        load_kernels("cpu", 16, moduli(16), threads=0)
