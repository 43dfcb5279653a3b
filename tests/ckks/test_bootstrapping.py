# SPDX-License-Identifier: Apache-2.0
"""Bootstrapping: its parts against numpy, and the whole on every shape of message the planner meets."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heatfhe.ckks.bootstrapping import BootstrapSpec
from heatfhe.ckks.bootstrapping.eval_mod import COSINE, DOUBLE_ANGLES, INTERVAL, REACH, angle_constant
from heatfhe.ckks.bootstrapping.matrices import compose, layer, split_matrix, transform
from heatfhe.ckks.bootstrapping.mod_raise import folded, mod_raise, trace_groups
from heatfhe.ckks.encoding import Encoder
from heatfhe.ckks.kernels.plans import bit_reversal
from heatfhe.ckks.keys import fold_rotations
from heatfhe.ckks.presets import native_presets, native_set
from heatfhe.ckks.ring import at_scale
from heatfhe.errors import ConfigError, OutOfLevelsError
from heatfhe.planning import preset
from tests.ckks.seeded import Scheme, digest, small_chain

pytest.importorskip("numba", reason="compiled kernels need numba")

MODEL = native_set(preset("insecure-native-11"))
PROMISE = 2.0**-20


@lru_cache(maxsize=1)
def model() -> Scheme:
    """1024 slots, nine levels left: the model set."""
    return Scheme(MODEL.chain, periods=(1024, 16, 1), spec=MODEL.bootstrap)


def act(matrix: dict[int, NDArray[Any]], x: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(sum(d * np.roll(x, -k) for k, d in matrix.items()))


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8, 64])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_matrices_are_the_special_fourier_transform(n: int, count: int) -> None:
    rng = np.random.default_rng(0)
    coefficients = rng.uniform(-1, 1, 2 * n)
    slots = Encoder(4 * n).decode(np.repeat(coefficients, 2) * np.tile([1, 0], 2 * n))[:n]  # in the subring of X^2
    w = (coefficients[:n] + 1j * coefficients[n:])[bit_reversal(n)]
    got = w
    for m in transform(n, count, inverse=False):
        got = act(m, got)
    assert np.abs(got - slots).max() < 1e-12
    for m in transform(n, count, inverse=True):
        got = act(m, got)
    assert np.abs(got - w).max() < 1e-12


def test_the_widest_stride_counts_its_diagonals_once() -> None:
    assert sorted(layer(8, 8, inverse=False)) == [0, 4]
    assert sorted(layer(8, 4, inverse=False)) == [0, 2, 6]
    assert [len(m) for m in transform(1 << 11, 2, inverse=True)] == [64, 63]
    assert [len(m) for m in transform(1 << 11, 2, inverse=False)] == [63, 64]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), log_n=st.integers(2, 6))
def test_baby_and_giant_steps_keep_the_matrix(seed: int, log_n: int) -> None:
    n = 1 << log_n
    slots = 2 * n
    rng = np.random.default_rng(seed)
    matrix = compose(layer(n, 4, inverse=False), layer(n, 2, inverse=False), n)
    x = np.tile(rng.uniform(-1, 1, n), 2)
    s = split_matrix({k: np.tile(d, 2) for k, d in matrix.items()}, n, slots)
    got = sum(np.roll(sum(d * np.roll(x, -b) for b, d in row.items()), -g) for g, row in s.giants.items())
    assert np.abs(got - np.tile(act(matrix, x[:n]), 2)).max() < 1e-12


def test_eval_mod_in_the_clear_meets_its_stated_bounds() -> None:
    """The committed polynomial and three double angles against the sine, window by window."""
    stated = {0: 1e-13, 3: 1e-13, 6: 4e-13, 8: 3e-11, 10: 2e-10, 12: 8e-9, 14: 2e-9, 15: 8e-9}
    even = np.zeros(31)
    even[::2] = COSINE
    for overflow, bound in stated.items():
        for sign in (1, -1):
            e = np.linspace(-REACH, REACH, 41)
            y = sign * overflow + e
            v = np.polynomial.chebyshev.chebval((y - 0.25) / INTERVAL, even)
            for i in range(1, DOUBLE_ANGLES + 1):
                v = 2 * v**2 - angle_constant(i)
            assert np.abs(v - np.sin(2 * np.pi * e) / (2 * np.pi)).max() < bound, overflow


def test_overflow_is_what_33_uniform_terms_give() -> None:
    """I has deviation sqrt((h + 1) / 12) = 1.66 and never comes near the polynomial's end."""
    s = model()
    found = []
    for seed in range(6):
        a = s.encrypt(np.random.default_rng(seed).uniform(-1, 1, 1024), 0)
        raised = mod_raise(s.evaluator, a, 1024, s.chain.top)
        found.append(np.rint(s.maker.phase(raised) / s.chain.base_modulus))
    overflow = np.concatenate(found)
    assert float(overflow.std()) == pytest.approx(math.sqrt(33 / 12), rel=0.05)
    assert np.abs(overflow).max() <= 12


def test_the_trace_covers_the_subring() -> None:
    """What ModRaise sums over, times what follows, is every multiple of the period exactly once."""
    for slots, period in ((1024, 1024), (1024, 512), (1024, 256), (1024, 16), (1024, 1), (32, 2), (4, 1)):
        sums = list(folded(slots, period))
        for group in trace_groups(slots, period):
            sums += [r + rotation for rotation in group for r in sums]
        assert sorted(r % slots for r in sums) == list(range(0, slots, period))
    assert fold_rotations(1024) == (0, 512, 256, 768, 128, 640, 384, 896)
    assert trace_groups(1024, 16) == [(16, 32, 48), (64,)]
    assert trace_groups(1024, 2) == [(2,), (4, 8, 12), (16, 32, 48), (64,)]


# -- the whole ---------------------------------------------------------------------------------------------------------


def shapes(period: int) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(period)
    return {
        "uniform": rng.uniform(-1, 1, period),
        "ones": np.ones(period),
        "minus ones": -np.ones(period),
        "one-hot": np.eye(1, period)[0],
        "ramp": np.linspace(-1, 1, period) if period > 1 else np.array([0.37]),
        "period 16": np.tile(rng.uniform(-1, 1, min(period, 16)), max(1, period // 16)),
        "zero": np.zeros(period),
    }


@pytest.mark.parametrize("period", [1024, 16, 1])
@pytest.mark.parametrize("level", [0, 3])
def test_every_shape_of_message_survives(period: int, level: int) -> None:
    s = model()
    for name, x in shapes(period).items():
        got = s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor + level), period=period)
        assert got.level == s.floor + 9
        assert got.scale == s.ring.scales[got.level]
        assert np.abs(s.error(got, x)).max() <= PROMISE, name


def test_the_shape_of_a_message_does_not_matter() -> None:
    """The worst of any shape is a few standard deviations of the noise stated for random values, plus the sine."""
    s, params = model(), preset("insecure-native-11")
    stated = 6.0 * params.noise + 6.6 / MODEL.bootstrap.ratio(MODEL.chain) ** 2
    for period in (1024, 16, 1):
        for name, x in shapes(period).items():
            got = s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor), period=period)
            assert np.abs(s.error(got, x).real).max() <= stated, (period, name)


def test_the_noise_of_a_slot_goes_with_the_secret_there() -> None:
    """A rounding error is multiplied by the secret's value at the slot; divided by that, it is nearly Gaussian."""
    s, rng = model(), np.random.default_rng(9)
    size = np.abs(Encoder(MODEL.chain.ring_dimension).decode(s.secret.dense.astype(np.float64)))
    size /= np.sqrt(np.mean(size**2))
    noise = np.array(
        [
            s.decrypt(s.bootstrapper.bootstrap_real(s.encrypt(rng.uniform(-1, 1, 1024), s.floor), period=1024)).imag
            for _ in range(6)
        ]
    )
    assert noise[:, size > 2**0.5].std() > 4 * noise[:, size < 0.5].std()  # a Gaussian of one width would give 1
    raw, scaled = (float(np.mean(x**4) / np.mean(x**2) ** 2) for x in (noise, (noise / size)[:, size > 0.3]))
    assert raw > 5.5 > 4.5 > scaled  # 3 is Gaussian; what is left is that the overflow chooses between two widths


def test_uniform_inputs_keep_more_than_twenty_bits() -> None:
    s, x = model(), np.random.default_rng(1).uniform(-1, 1, 1024)
    error = s.error(s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor), period=1024), x)
    assert -math.log2(float(error.real.std())) >= 23.0
    assert float(error.real.std()) <= preset("insecure-native-11").noise


@pytest.mark.parametrize("period", [1024, 16, 1])
def test_a_pair_is_refreshed_as_one(period: int) -> None:
    s, rng = model(), np.random.default_rng(2)
    x, y = rng.uniform(-8, 8, period), rng.uniform(-8, 8, period)
    a, b = s.encrypt(x, s.floor + 2), s.encrypt(y, s.floor)
    got = s.bootstrapper.bootstrap_pair(a, b, period=period, bound=8.0)
    for value, wanted in zip(got, (x, y)):
        assert value.level == s.floor + 9
        assert np.abs(s.error(value, wanted)).max() <= 8 * PROMISE


@pytest.mark.parametrize("bound", [0.01, 1.0, 3.0, 64.0])
@pytest.mark.parametrize("level", [0, 4])
def test_larger_values_cost_precision_in_proportion(level: int, bound: float) -> None:
    s = model()
    x = np.random.default_rng(3).uniform(-bound, bound, 1024)
    got = s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor + level), period=1024, bound=bound)
    assert np.abs(s.error(got, x)).max() <= 2.0**-19 * max(1.0, 2 ** math.ceil(math.log2(bound)))


def test_complex_slots_survive_too() -> None:
    s, rng = model(), np.random.default_rng(4)
    z = rng.uniform(-1, 1, 1024) + 1j * rng.uniform(-1, 1, 1024)
    got = s.bootstrapper.bootstrap(s.encrypt(z, s.floor + 1), period=1024)
    assert np.abs(s.error(got, z)).max() <= PROMISE


def test_a_bootstrap_of_a_bootstrap() -> None:
    s, x = model(), np.random.default_rng(5).uniform(-1, 1, 1024)
    a = s.encrypt(x, s.floor)
    for _ in range(3):
        a = s.bootstrapper.bootstrap_real(a, period=1024)
    assert np.abs(s.error(a, x)).max() <= PROMISE


def test_the_levels_are_accounted_for() -> None:
    """SlotsToCoeffs keeps the lowest levels, and arithmetic ends above them."""
    spec, s = MODEL.bootstrap, model()
    assert (spec.levels(MODEL.chain), spec.floor, s.evaluator.floor) == (9, 2, 2)
    with pytest.raises(OutOfLevelsError, match="needs 1 level, has 0"):
        s.evaluator.multiply(s.encrypt(np.ones(1), 2), s.encrypt(np.ones(1), 2))
    with pytest.raises(OutOfLevelsError, match="needs 2 levels for SlotsToCoeffs, has 1"):
        s.bootstrapper.bootstrap_real(s.encrypt(np.ones(1), 1), period=16)
    with pytest.raises(ConfigError, match="eval_end"):
        SMALL.check(small_chain(2048, 11))


def test_a_set_that_asks_for_slots_to_coeffs_last_is_refused() -> None:
    """Its literal still says which order it means; only one is built, and another must not run as that one."""
    params = preset("insecure-native-11")
    for p in (preset(name) for name in native_presets()):
        assert dict(p.literal)["stc_first"] is True
    last = {**dict(params.literal), "stc_first": False}
    for literal in (last, {k: v for k, v in last.items() if k != "stc_first"}):
        with pytest.raises(ConfigError, match="are not those of its chain"):
            native_set(replace(params, literal=tuple(sorted(literal.items()))))


def test_short_periods_start_lower() -> None:
    """One matrix is enough for a short transform: ModRaise stops below the top, and so do the trace's keys."""
    spec, chain = MODEL.bootstrap, MODEL.chain
    assert [spec.raised(chain, p) - chain.top for p in (1024, 32, 16, 1)] == [0, 0, -1, -1]
    assert max(spec.rotations(chain, 16).values()) == chain.top - 1


def test_an_overflow_past_the_interval_is_visible_garbage() -> None:
    """The failure no one will meet (2^-105): force I = 40 and see that no plausible value comes out."""
    s, x = model(), np.random.default_rng(6).uniform(-1, 1, 1024)
    from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots
    from heatfhe.ckks.bootstrapping.eval_mod import eval_mod

    raised = mod_raise(s.evaluator, s.evaluator.times_integer(s.encrypt(x, 0), 16), 1024, s.chain.top)
    ratio = s.chain.base_modulus / raised.scale
    raised = s.evaluator.add_constant(at_scale(raised, float(s.chain.base_modulus), factor=ratio), 40.0)
    halves = coeffs_to_slots(s.evaluator, raised, s.bootstrapper._coeffs_to_slots(1024), imaginary=True)
    out = s.decrypt(eval_mod(s.evaluator, halves[0]))
    assert np.abs(out).max() > 1.0  # every legitimate value is below 1/32


SMALL = BootstrapSpec(stc_levels=2, ratio_bits=14.0)


def small(n: int, **more: Any) -> Scheme:
    """The unit-test chain."""
    return Scheme(small_chain(n, end=49), spec=SMALL, **more)


def test_both_kernels_bootstrap_to_the_same_bits() -> None:
    results = []
    for device in ("reference", "cpu"):
        s = small(64, device=device, periods=(32, 4), seed=3)
        x = np.random.default_rng(7).uniform(-1, 1, 4)
        a = s.encrypt(x, s.floor + 1)
        full = s.bootstrapper.bootstrap_real(a, period=32)
        sparse = s.bootstrapper.bootstrap_real(a, period=4)
        assert np.abs(s.error(full, x)).max() < 1e-5
        assert np.abs(s.error(sparse, x)).max() < 1e-5
        results.append([digest(s.ring.kernels.download(x.data)) for x in (full, sparse)])
    assert results[0] == results[1]


def test_golden_bootstrap() -> None:
    """Seeded keys, seeded message: the refreshed slots, to the precision doubles in the matrices leave."""
    s, x = small(64, periods=(4,), seed=5), np.array([0.5, -0.25, 0.125, 0.75])
    got = s.decrypt(s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor), period=4))
    assert np.abs(got[:4] - x).max() < 2e-7
    assert np.abs(got[:4].real - np.array(GOLDEN)).max() < 1e-9


GOLDEN = [0.499999996917, -0.249999999212, 0.12499999867, 0.749999988325]


def test_two_threads_give_the_bits_of_one() -> None:
    results = []
    for threads in (1, 2):
        s = small(256, periods=(16,), seed=4, threads=threads)
        a = s.encrypt(np.random.default_rng(8).uniform(-1, 1, 16), s.floor)
        results.append(digest(s.ring.kernels.download(s.bootstrapper.bootstrap_real(a, period=16).data)))
    assert results[0] == results[1]


def test_bad_periods_and_bounds_are_refused() -> None:
    s = model()
    a = s.encrypt(np.ones(4), 0)
    with pytest.raises(ConfigError, match="power of two"):
        s.bootstrapper.bootstrap(a, period=12)
    for bound in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="positive number"):
            s.bootstrapper.bootstrap(a, period=16, bound=bound)


@pytest.mark.parametrize("name", ["insecure-native-12", "insecure-native-12-r40"])
def test_the_default_models_ring(name: str) -> None:
    """N = 2^12: 2048 slots; random, constant and one-hot values, and one number, at full slots."""
    native, params = native_set(preset(name)), preset(name)
    s = Scheme(native.chain, periods=(2048,), threads=2, spec=native.bootstrap)
    x = np.random.default_rng(9).uniform(-1, 1, 2048)
    for values in (x, np.ones(2048), np.eye(1, 2048)[0]):
        got = s.bootstrapper.bootstrap_real(s.encrypt(values, s.floor), period=2048)
        assert got.level == native.top
        assert np.abs(s.error(got, values)).max() <= 2.0 ** -(params.promised_bits + 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["insecure-native-12", "insecure-native-12-r40", "insecure-native-13"])
def test_larger_toy_rings(name: str) -> None:
    native, params = native_set(preset(name)), preset(name)
    slots = native.chain.ring_dimension // 2
    s = Scheme(native.chain, periods=(slots, 1024, 16, 1), threads=2, spec=native.bootstrap)
    for period in (slots, 1024, 16, 1):
        for shape, x in shapes(period).items():
            got = s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor + 1), period=period)
            assert np.abs(s.error(got, x)).max() <= 2.0 ** -(params.promised_bits + 1), (period, shape)


@pytest.mark.parametrize("period", [1024, 16, 1])
def test_the_reach_keeps_the_promise_where_no_level_is_left(period: int) -> None:
    """The worst message, a constant of the largest size."""
    s, reach = model(), preset("insecure-native-11").reach
    for value in (reach, -reach):
        got = s.bootstrapper.bootstrap_real(s.encrypt(np.full(period, value), s.floor), period=period, bound=reach)
        error = float(np.abs(s.error(got, np.full(period, value))).max()) / reach
        assert error <= PROMISE
