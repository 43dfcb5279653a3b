# SPDX-License-Identifier: Apache-2.0
"""Kernels: the reference against Python integers, the compiled ones against the reference bit for bit."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.ckks.kernels import Kernels, ReferenceKernels, Words, load_kernels, plans
from heatfhe.ckks.kernels.plans import conversion, digit_plan, division
from heatfhe.ckks.primes import primes_below, primes_near
from heatfhe.errors import ConfigError
from tests.ckks.seeded import digest, random_words

pytest.importorskip("numba", reason="compiled kernels need numba")

SIZES = (16, 32, 64, 128, 256, 2048)


@lru_cache(maxsize=16)
def moduli(n: int) -> tuple[int, ...]:
    """Eight of the largest primes, four near 2^25, two near 2^22: every size of word at once."""
    return (
        *islice(primes_below(1 << 31, n), 8),
        *islice(primes_near(2.0**25, n), 4),
        *islice(primes_near(2.0**22, n), 2),
    )


@lru_cache(maxsize=16)
def both(n: int) -> tuple[Kernels, Kernels]:
    return load_kernels("reference", n, moduli(n)), load_kernels("cpu", n, moduli(n), threads=2)


def words(n: int, rows: list[int], lead: tuple[int, ...], seed: int) -> Words:
    """Random residues; for odd seeds a third of them are 0, 1, q - 1 or q / 2, and some limbs are constant extremes."""
    out = random_words(moduli(n), rows, lead, n, seed)
    if seed % 2:
        rng = np.random.default_rng(seed)
        q = np.array([moduli(n)[r] for r in rows], dtype=np.int64)[:, None]
        extreme = np.stack(np.broadcast_arrays(0 * q, 0 * q + 1, q - 1, q // 2))
        choice = np.broadcast_to(extreme[rng.integers(0, 4, out.shape), np.arange(len(rows))[:, None], 0], out.shape)
        out = np.where(rng.random(out.shape) < 1 / 3, choice, out).astype(np.uint32)
        if seed % 4 == 1:
            out[..., :] = (q - 1).astype(np.uint32)
    return np.ascontiguousarray(out)


def equal(a: Words, b: Words) -> None:
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


@settings(max_examples=250, deadline=None)
@given(
    n=st.sampled_from(SIZES[:-1]), seed=st.integers(0, 2**40), rows=st.lists(st.integers(0, 13), min_size=1, max_size=5)
)
def test_pointwise_kernels_agree_bit_for_bit(n: int, seed: int, rows: list[int]) -> None:
    reference, cpu = both(n)
    r = np.array(rows)
    x, y = words(n, rows, (2,), seed), words(n, rows, (2,), seed + 1)
    equal(reference.add(x, y, r), cpu.add(x, y, r))
    equal(reference.sub(x, y, r), cpu.sub(x, y, r))
    equal(reference.negate(x, r), cpu.negate(x, r))
    equal(reference.scale(x, y[0, :, 0], r), cpu.scale(x, y[0, :, 0].copy(), r))
    equal(reference.product(x, reference.prepare(y[0], r), r), cpu.product(x, cpu.prepare(y[0], r), r))
    equal(reference.tensor([(x, y), (y, y)], r), cpu.tensor([(x, y), (y, y)], r))
    equal(reference.ntt(x, r), cpu.ntt(x, r))
    element = 2 * (seed % n) + 1
    equal(reference.automorphism(x, element), cpu.automorphism(x, element))
    coefficients = np.random.default_rng(seed).integers(-(2**62), 2**62, n)
    equal(reference.residues(coefficients, r), cpu.residues(coefficients, r))
    taller = words(n, [*rows, 0, 1], (2,), seed + 2)
    equal(reference.add_lifted(taller.copy(), x, y[0, :, 0], r), cpu.add_lifted(taller.copy(), x, y[0, :, 0].copy(), r))


@settings(max_examples=150, deadline=None)
@given(n=st.sampled_from(SIZES[:-1]), seed=st.integers(0, 2**40), count=st.integers(1, 9), digits=st.integers(1, 7))
def test_sums_of_products_agree_bit_for_bit(n: int, seed: int, count: int, digits: int) -> None:
    reference, cpu = both(n)
    rows = np.array([0, 7, 9, 13])
    every = np.arange(14)
    values, plains = words(n, list(rows), (3, 2), seed), words(n, list(rows), (count,), seed + 1)
    which = np.random.default_rng(seed).integers(0, 3, count)
    ready = np.stack([cpu.prepare(p, rows) for p in plains])
    equal(
        reference.multiply_accumulate(values, which, plains, rows), cpu.multiply_accumulate(values, which, ready, rows)
    )
    d, key = words(n, list(rows), (digits,), seed + 2), words(n, list(every), (digits, 2), seed + 3)
    ready = np.stack([[cpu.prepare(half, every) for half in part] for part in key])
    equal(reference.key_product(d, key, rows, rows), cpu.key_product(d, ready, rows, rows))


PLANS = (
    ([8, 9, 10, 0, 1, 2, 3], [4, 5, 6], [[8, 9, 10], [0, 1, 2], [3]]),
    ([9, 0, 1], [4, 5], [[9, 0], [1]]),
    ([12, 13], [0, 1, 2], [[12, 13]]),
    (list(range(8)), [8], [list(range(8))]),
)
STEPS = (
    ([8, 9, 10, 0, 1, 4, 5, 6], [9, 10, 11, 0, 1, 2]),
    ([0, 1, 2, 3], [0, 1]),
    ([0, 1], [0, 2, 3]),
    ([12, 13, 0, 1, 2, 3, 4, 5, 6, 7], [12, 13]),
)


@settings(max_examples=150, deadline=None)
@given(n=st.sampled_from(SIZES[:-1]), seed=st.integers(0, 2**40), case=st.integers(0, 3))
def test_conversions_agree_bit_for_bit(n: int, seed: int, case: int) -> None:
    reference, cpu = both(n)
    rows, special, digits = PLANS[case]
    plan = digit_plan(moduli(n), rows, [*rows, *special], digits)
    x = words(n, rows, (), seed)
    equal(reference.mod_up(x, plan), cpu.mod_up(x, plan))
    src, dst = STEPS[case]
    step = division(moduli(n), src, dst)
    y = words(n, src, (2,), seed + 1)
    equal(reference.divide(y, step), cpu.divide(y, step))


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
    with pytest.raises(ConfigError, match="have: cpu, reference"):
        load_kernels("tpu", 16, moduli(16))
    with pytest.raises(ConfigError, match="threads"):
        load_kernels("cpu", 16, moduli(16), threads=0)
