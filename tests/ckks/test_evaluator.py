# SPDX-License-Identifier: Apache-2.0
"""The evaluator: every operation right, its noise within the stated bound, the same bits on both kernels."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heatfhe.ckks import ring as ring_module
from heatfhe.ckks.encoding import diagonal
from heatfhe.ckks.kernels import Words, load_kernels
from heatfhe.ckks.keys import GALOIS, RELINEARISE, KeyId, galois_element
from heatfhe.ckks.linear import EncodedMap, apply_map, encode_map, encode_matrices
from heatfhe.ckks.polynomial import ChebyshevEvaluator, divide_chebyshev
from heatfhe.ckks.ring import Ciphertext, Ring, at_scale
from heatfhe.errors import EngineError, MissingKeyError, OutOfLevelsError
from tests.ckks.kernel_shapes import slot_matrix
from tests.ckks.seeded import Scheme, digest, small_chain, times_constant, times_plain

pytest.importorskip("numba", reason="compiled kernels need numba")

N = 2048


@lru_cache(maxsize=1)
def scheme() -> Scheme:
    return Scheme(small_chain(N), rotations=(1, 2, 3, 5, 8, 16))


def values(seed: int, *, real: bool = False) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    z = rng.uniform(-1, 1, N // 2)
    return z if real else z + 1j * rng.uniform(-1, 1, N // 2)


def rounding(scale: float) -> float:
    """Standard deviation in the slots of one exact rescale or key switch: sqrt((h + 1) / 12) sqrt(N) / scale."""
    return math.sqrt((2 * N / 3 + 1) / 12) * math.sqrt(N) / scale


def fresh(scale: float) -> float:
    """Of a fresh ciphertext: Gaussian error and rounding of the encoding."""
    return math.sqrt(3.19**2 + 1 / 12) * math.sqrt(N) / scale


def natural(s: Scheme, a: Ciphertext) -> str:
    """What a ciphertext holds, whatever its kernels' order."""
    return digest(s.ring.kernels.download(a.data))


def deviation(a: Ciphertext, wanted: NDArray[Any]) -> float:
    return float(np.sqrt((np.abs(scheme().error(a, wanted)) ** 2).mean()))


def encoded(scale: float) -> float:
    """Of an encoding: rounding of the coefficients."""
    return math.sqrt(1 / 12) * math.sqrt(N) / scale


def plain_polynomial(y: NDArray[Any], level: int) -> Words:
    """An encoding at the canonical scale of a level."""
    ring = scheme().ring
    return ring.kernels.encode(y, ring.scales[level], ring.rows(level))


def scaled(a: Ciphertext, level: int) -> Ciphertext:
    """The value times the factor that a rescale divides by."""
    return scheme().evaluator.times_integer(a, round(scheme().evaluator.plain_scale(level)))


def two_diagonals(level: int, y: NDArray[Any]) -> EncodedMap:
    """y * x + y * rot_1(x)."""
    s = scheme()
    return encode_map(s.ring, {0: {0: lambda: y, 1: lambda: y}}, level, s.evaluator.plain_scale(level))


@settings(max_examples=25, deadline=None)
@given(level=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_noise_of_every_operation_is_within_its_bound(level: int, seed: int) -> None:
    """1.25 times the stated deviation: 1024 slots estimate it to 3 percent."""
    s, x, y = scheme(), values(seed), values(seed + 1, real=True)
    e, scales = s.evaluator, s.ring.scales
    a, b = s.encrypt(x, level), s.encrypt(y, level)
    f, here, below = fresh(scales[level]), rounding(scales[level]), rounding(scales[level - 1])
    product = math.hypot(f * np.sqrt((np.abs(x) ** 2).mean()), f * np.sqrt((y**2).mean()), below)
    plain = math.hypot(f * np.sqrt((y**2).mean()), below)
    stated = [
        (a, x, f),
        (e.add(a, b), x + y, math.hypot(f, f)),
        (e.sub(a, b), x - y, math.hypot(f, f)),
        (e.negate(a), -x, f),
        (e.times_integer(a, -3), -3 * x, 3 * f),
        (e.times_i(a), 1j * x, f),
        (e.add_constant(a, 0.3), x + 0.3, f),
        (e.multiply(a, b), x * y, product),
        (times_constant(e, a, 0.7), 0.7 * x, math.hypot(0.7 * f, below)),
        (times_plain(e, [(a, y)]), x * y, plain),
        (e.rotate(a, 5), np.roll(x, -5), math.hypot(f, here)),
        (e.conjugate(a), x.conj(), math.hypot(f, here)),
        (e.drop(a, 0), x, math.hypot(f, rounding(scales[0]))),
        (
            e.add_polynomial(a, s.ring.kernels.encode(y, a.scale, s.ring.rows(level))),
            x + y,
            math.hypot(f, encoded(a.scale)),
        ),
        (e.multiply_sum([(a, b), (b, b)]), x * y + y * y, math.hypot(product, 2 * f * np.sqrt((y**2).mean()), below)),
        (e.rescale(Ciphertext(level, a.scale * e.plain_scale(level), scaled(a, level).data)), x, math.hypot(f, below)),
        (e.rotate_many(a, [1, 5])[1], np.roll(x, -5), math.hypot(f, here)),
        (apply_map(e, a, two_diagonals(level, y)), y * x + np.roll(x, -1) * y, math.hypot(math.sqrt(2) * plain, below)),
    ]
    for index, (got, wanted, bound) in enumerate(stated):
        assert deviation(got, wanted) <= 1.25 * bound, index


def test_rotations_of_one_value_share_a_decomposition_and_agree() -> None:
    s, x = scheme(), values(3)
    a = s.encrypt(x, 4)
    together = s.evaluator.rotate_many(a, [5, 0, 1, 5, -1024 + 3])
    for got, by in zip(together, [5, 0, 1, 5, 3]):
        alone = s.evaluator.rotate(a, by)
        assert natural(s, got) == natural(s, alone)
        assert deviation(got, np.roll(x, -by)) <= 1.25 * math.hypot(fresh(got.scale), rounding(got.scale))


def test_sums_of_products_relinearise_once() -> None:
    s = scheme()
    xs = [values(k) for k in range(6)]
    cs = [s.encrypt(x, 3) for x in xs]
    got = s.evaluator.multiply_sum([(cs[0], cs[1]), (cs[2], cs[3]), (cs[4], cs[5])])
    assert deviation(got, xs[0] * xs[1] + xs[2] * xs[3] + xs[4] * xs[5]) < 2e-7


@pytest.mark.parametrize("level", range(1, 6))
def test_products_land_on_canonical_scales(level: int) -> None:
    s = scheme()
    a = s.encrypt(values(4), level)
    assert s.evaluator.multiply(a, a).scale == s.ring.scales[level - 1]
    assert times_constant(s.evaluator, a, 0.1).scale == s.ring.scales[level - 1]
    for lower in range(level):
        assert s.evaluator.drop(a, lower).scale == s.ring.scales[lower]


def test_scales_are_set_to_what_they_are_or_refused() -> None:
    s = scheme()
    a = s.encrypt(values(4), 3)
    assert at_scale(a, a.scale * (1 + 5e-13)).scale == a.scale * (1 + 5e-13)
    assert at_scale(a, 8 * a.scale, factor=8.0).scale == 8 * a.scale
    assert at_scale(a, a.scale).data is a.data
    for scale, factor in ((a.scale * (1 + 2e-12), 1.0), (8 * a.scale, 1.0), (8 * a.scale, 4.0)):
        with pytest.raises(EngineError, match="is not 2"):
            at_scale(a, scale, factor=factor)


def test_divisions_of_many_constants_share_tables_and_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "KEPT_DIVISIONS", 3)
    ring = Ring(small_chain(64), load_kernels("reference", 64, small_chain(64).moduli))
    plain = ring.division(4, 3)
    first = ring.division(4, 3, factor=7)
    assert first.conversion.matrix is plain.conversion.matrix
    assert ring.division(4, 3, factor=7) is first
    for factor in (8, 9, 10):
        ring.division(4, 3, factor=factor)
    assert len(ring._divisions) == 3
    assert ring.division(4, 3, factor=7) is not first
    assert ring.division(4, 3) is plain


def test_linear_maps_are_their_sums() -> None:
    s, rng, x = scheme(), np.random.default_rng(5), values(6)
    d = {(g, b): rng.uniform(-1, 1, N // 2) for g in (0, 8, 16) for b in (0, 1, 2, 3)}
    giants = {g: {b: (lambda v=d[g, b]: v) for b in (0, 1, 2, 3)} for g in (0, 8, 16)}
    wanted = sum(np.roll(sum(d[g, b] * np.roll(x, -b) for b in (0, 1, 2, 3)), -g) for g in (0, 8, 16))
    for level in (1, 5):
        m = encode_map(s.ring, giants, level, s.evaluator.plain_scale(level))
        got = apply_map(s.evaluator, s.encrypt(x, level), m)
        assert got.scale == s.ring.scales[level - 1]
        assert deviation(got, np.asarray(wanted)) < 3e-7
        assert m.memory == 12 * len(s.ring.extended(level)) * N * 4


def test_maps_of_matrices_are_maps_of_their_diagonals() -> None:
    """Bit for bit; and y[s] is the sum over turns r of M[in(s + r), out(s)] x[s + r], of two matrices added up."""
    s, rng, x = scheme(), np.random.default_rng(5), values(6)
    matrices = [slot_matrix(rng, N // 2, 0.5), slot_matrix(rng, N // 2, -0.5j, ahead=N // 4)]
    babies, giants, level = (0, 1, 2, 3), (0, 8, 16), 4
    scale = s.evaluator.plain_scale(level)
    vectors = {g: {b: partial(diagonal, matrices, g, b) for b in babies} for g in giants}
    at_once = encode_matrices(s.ring, matrices, babies, giants, level, scale)
    a = s.encrypt(x, level)
    got, one_by_one = (apply_map(s.evaluator, a, m) for m in (at_once, encode_map(s.ring, vectors, level, scale)))
    assert np.array_equal(*(s.ring.kernels.download(c.data) for c in (got, one_by_one)))
    assert at_once.rotations == (1, 2, 3, 8, 16)
    assert at_once.memory == 12 * len(s.ring.extended(level)) * N * 4
    wanted = np.zeros(N // 2, dtype=complex)
    for m in matrices:
        for slot in range(N // 2):
            for r in (g + b for g in giants for b in babies):
                row, column = m.rows[(slot + r + m.ahead) % (N // 2)], m.columns[slot]
                if row >= 0 and column >= 0:
                    wanted[slot] += m.factor * m.entries[row, column] * x[(slot + r) % (N // 2)]
    assert deviation(got, wanted) < 3e-7


@given(degree=st.integers(1, 31), seed=st.integers(0, 2**32))
def test_chebyshev_division_is_exact(degree: int, seed: int) -> None:
    p = np.random.default_rng(seed).uniform(-1, 1, degree + 1)
    g = 1 << degree.bit_length() - 1
    q, r = divide_chebyshev(p, g)
    x = np.linspace(-1, 1, 33)
    cheb = np.polynomial.chebyshev.chebval
    power = np.zeros(g + 1)
    power[g] = 1.0
    assert np.abs(cheb(x, q) * cheb(x, power) + cheb(x, r) - cheb(x, p)).max() < 1e-12


def test_a_chebyshev_series_on_a_ciphertext() -> None:
    s = scheme()
    chain, e = s.chain, s.evaluator
    scales = chain.eval_scales()
    top = chain.normal_levels + chain.eval_levels
    x = np.random.default_rng(7).uniform(-1, 1, N // 2)
    rows = s.ring.rows(top)
    zero = s.ring.kernels.upload(np.zeros((2, len(rows), N), dtype=np.uint32))
    data = s.ring.kernels.add_first(zero, s.ring.kernels.encode(x, scales[top], rows), rows)
    p = np.random.default_rng(8).uniform(-1, 1, 16)
    got = ChebyshevEvaluator(e, Ciphertext(top, scales[top], data), scales).evaluate(p, top - 4, scales[top - 4])
    assert got.level == top - 4
    assert np.abs(s.error(got, np.polynomial.chebyshev.chebval(x, p))).max() < 1e-11


def test_misuse_is_refused_with_the_numbers() -> None:
    s = scheme()
    e, a, b, low = s.evaluator, s.encrypt(values(1), 3), s.encrypt(values(2), 2), s.encrypt(values(2), 0)
    with pytest.raises(EngineError, match="levels 3 and 2 differ"):
        e.add(a, b)
    with pytest.raises(EngineError, match="scales"):
        e.add(a, Ciphertext(3, a.scale * (1 + 1e-9), a.data))
    with pytest.raises(OutOfLevelsError, match="needs 1 level, has 0"):
        e.multiply(low, low)
    with pytest.raises(OutOfLevelsError, match="from level 2 to level 3"):
        e.drop(b, 3)
    with pytest.raises(EngineError, match="drop instead"):
        e.restrict(a, 2)
    with pytest.raises(MissingKeyError, match="add its rotation"):
        e.rotate(a, 7)
    with pytest.raises(EngineError, match="encoded at level 1"):
        apply_map(e, a, encode_map(s.ring, {0: {0: lambda: values(1)}}, 1, 2.0**35))


def test_a_key_below_the_operands_level_is_refused() -> None:
    s = Scheme(small_chain(256), device="reference", rotations=())
    s.table.add(s.maker.switch_key(KeyId(kind=GALOIS, element=galois_element(1, 256), cap=2)))
    with pytest.raises(MissingKeyError, match="serves levels up to 2"):
        s.evaluator.rotate(s.encrypt(np.ones(8), 3), 1)
    got = s.evaluator.rotate(s.encrypt(np.arange(4) / 4, 2), 1)
    assert np.abs(s.error(got, np.array([0.25, 0.5, 0.75, 0.0]))).max() < 1e-7


def test_both_kernels_give_the_same_bits() -> None:
    results = []
    for device in ("reference", "cpu"):
        s = Scheme(small_chain(256), device=device, rotations=(1, 5))
        rng = np.random.default_rng(9)
        a, b = s.encrypt(rng.uniform(-1, 1, 128), 5), s.encrypt(rng.uniform(-1, 1, 128), 5)
        e = s.evaluator
        steps = [a, e.multiply(a, b), e.rotate(a, 5), e.conjugate(b), e.drop(a, 1), times_constant(e, a, 0.3)]
        results.append([natural(s, x) for x in steps])
    assert results[0] == results[1]


def test_golden_key_switch_and_rescale() -> None:
    """Integer-only operations on seeded keys: digests that no machine or version may change."""
    s = Scheme(small_chain(256), rotations=(1,), seed=11)
    rows = s.ring.rows(4)
    data = np.zeros((2, len(rows), 256), dtype=np.uint32)
    data[0, :, 0], data[1, :, 1] = 12345, 678
    a = Ciphertext(4, s.ring.scales[4], data)
    key, _ = s.table.get(RELINEARISE)
    assert digest(key) == GOLDEN["key"]
    assert digest(s.evaluator.rotate(a, 1).data) == GOLDEN["rotate"]
    assert digest(s.evaluator.multiply(a, a).data) == GOLDEN["multiply"]
    assert digest(s.evaluator.rescale(a).data) == GOLDEN["rescale"]


GOLDEN = {
    "key": "c1e0942b93f9be91e6c3d8a64937ef1661d612f2e2dc2dd906b761a57c8f4bbb",
    "rotate": "82bc548324998daf51675c2900501707ea88b91cf008b56273653542114952dd",
    "multiply": "7f52a9700348a7d21b1e3a114f1d00e34e3ec944bf6179674016d511908efac8",
    "rescale": "3f420ce4bd304a2905aba32d791edb5b82aea70723c83b565dd8260b0518985e",
}
