# SPDX-License-Identifier: Apache-2.0
"""Primes: decided right, found near, with roots of exact order."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.ckks.primes import is_prime, primes_below, primes_near, root_of_unity
from heatfhe.errors import ConfigError


def test_primality_agrees_with_a_sieve() -> None:
    limit = 20_000
    sieve = bytearray([1]) * limit
    sieve[0] = sieve[1] = 0
    for p in range(2, int(limit**0.5) + 1):
        if sieve[p]:
            sieve[p * p :: p] = bytes(len(sieve[p * p :: p]))
    assert [n for n in range(limit) if is_prime(n)] == [n for n in range(limit) if sieve[n]]


@pytest.mark.parametrize("n", [3215031751, 3825123056546413051, 561 * 1105, (2**31 - 1) * (2**19 - 1)])
def test_strong_pseudoprimes_are_composite(n: int) -> None:
    assert not is_prime(n)


@given(st.integers(4, 16), st.floats(24.0, 30.9))
def test_primes_near_come_in_order_of_distance(log_n: int, log: float) -> None:
    n = 1 << log_n
    found = list(islice(primes_near(2.0**log, n), 5))
    distances = [abs(p - 2.0**log) for p in found]
    assert distances == sorted(distances)
    assert all(p % (2 * n) == 1 and p < 2**31 and is_prime(p) for p in found)
    assert len(set(found)) == len(found)


def test_the_nine_terminal_primes_at_the_secure_ring() -> None:
    near = islice(primes_near(2.0**25, 1 << 16), 12)
    assert sorted(p for p in near if 2**24.8 < p < 2**25.2) == [
        29884417,
        30539777,
        31326209,
        32899073,
        33292289,
        35389441,
        36175873,
        37224449,
        38535169,
    ]


def test_primes_below_are_the_special_primes_of_the_secure_ring() -> None:
    assert list(islice(primes_below(1 << 31, 1 << 16), 4)) == [2147352577, 2146959361, 2146041857, 2144468993]


@given(st.sampled_from([16, 64, 2048]), st.integers(0, 5))
def test_roots_have_exact_order(n: int, skip: int) -> None:
    p = next(islice(primes_below(1 << 31, n), skip, None))
    root = root_of_unity(p, n)
    assert pow(root, n, p) == p - 1


def test_a_prime_without_roots_is_refused() -> None:
    with pytest.raises(ConfigError, match="not 1 mod"):
        root_of_unity(2**31 - 1, 2048)
