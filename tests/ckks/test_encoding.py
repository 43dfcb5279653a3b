# SPDX-License-Identifier: Apache-2.0
"""Encoding: a round trip within its bound, slots that multiply and rotate, golden coefficients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.ckks.encoding import Encoder
from heatfhe.errors import ConfigError


def slots(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, count) + 1j * rng.uniform(-1, 1, count)


@settings(deadline=None, max_examples=40)
@given(log_n=st.integers(4, 12), log_slots=st.integers(0, 11), bits=st.integers(20, 50), seed=st.integers(0, 2**32))
def test_round_trip_stays_within_its_bound(log_n: int, log_slots: int, bits: int, seed: int) -> None:
    n = 1 << log_n
    count = min(1 << log_slots, n // 2)
    z = slots(count, seed)
    encoder = Encoder(n)
    back = encoder.decode(encoder.encode(z, 2.0**bits) / 2.0**bits)
    assert np.abs(back - np.tile(z, n // 2 // count)).max() <= n / 2 ** (bits + 1) + 2.0**-46


def test_slots_are_values_at_powers_of_five() -> None:
    n = 32
    coefficients = np.random.default_rng(0).uniform(-1, 1, n)
    zeta = np.exp(1j * np.pi / n)
    wanted = [sum(c * zeta ** (pow(5, j, 2 * n) * k) for k, c in enumerate(coefficients)) for j in range(n // 2)]
    assert np.abs(Encoder(n).decode(coefficients) - wanted).max() < 1e-12


def test_negacyclic_products_multiply_slots() -> None:
    n = 64
    encoder = Encoder(n)
    x, y = encoder.embed(slots(32, 1)), encoder.embed(slots(32, 2))
    full = np.convolve(x, y)
    product = full[:n] - np.append(full[n:], 0.0)
    assert np.abs(encoder.decode(product) - slots(32, 1) * slots(32, 2)).max() < 1e-12


def test_golden_coefficients() -> None:
    """The ramp on eight slots at N = 16, scale 2^30. One unit of slack: transforms of doubles round differently."""
    got = Encoder(16).encode(np.linspace(-1, 1, 8) + 0.25j, 2.0**30)
    wanted = np.array(GOLDEN)
    assert np.abs(got - wanted).max() <= 1


GOLDEN = [
    0,
    -393129930,
    -83014984,
    138048873,
    -108464304,
    -92241308,
    -200415900,
    78198405,
    268435456,
    -78198405,
    200415900,
    92241308,
    108464304,
    -138048873,
    83014984,
    393129930,
]


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 2)), np.ones(0), np.array([np.nan, 0.0]), np.ones(64)])
def test_what_cannot_be_encoded_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ConfigError):
        Encoder(64).encode(bad, 2.0**30)


def test_a_plaintext_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit 62 bits"):
        Encoder(64).encode(np.full(32, 1e6), 2.0**50)
