# SPDX-License-Identifier: Apache-2.0
"""Primes for negacyclic transforms: p = 1 mod 2N below 2^31, found near a target, and roots of exact order 2N."""

from __future__ import annotations

import math
from collections.abc import Iterator

from heatfhe.errors import ConfigError

WORD_LIMIT = 1 << 31  # every prime is below this: two residues add in 32 bits, four products fit 64
WORD_FLOOR = 1 << 21  # and above this: the fixed-point reciprocal of basis conversion keeps 32 bits


def is_prime(n: int) -> bool:
    """Miller-Rabin with bases that decide every n below 3.3e24 (Sorenson and Webster, 2015)."""
    if n < 2:
        return False
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    for p in bases:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def primes_near(target: float, ring_dimension: int) -> Iterator[int]:
    """Transform primes in order of distance from target; ends when the words run out."""
    stride = 2 * ring_dimension
    low = int(target) // stride * stride + 1
    high = low + stride
    while low > WORD_FLOOR or high < WORD_LIMIT:
        if low > WORD_FLOOR and (high >= WORD_LIMIT or target - low <= high - target):
            candidate, low = low, low - stride
        else:
            candidate, high = high, high + stride
        if candidate < WORD_LIMIT and is_prime(candidate):
            yield candidate


def primes_below(limit: int, ring_dimension: int) -> Iterator[int]:
    """Transform primes from limit downwards."""
    stride = 2 * ring_dimension
    candidate = (limit - 2) // stride * stride + 1
    while candidate > WORD_FLOOR:
        if is_prime(candidate):
            yield candidate
        candidate -= stride


def root_of_unity(prime: int, ring_dimension: int) -> int:
    """The root of exact order 2N that the smallest possible base gives: the same on every machine."""
    order = 2 * ring_dimension
    if prime % order != 1:
        raise ConfigError(f"{prime} is not 1 mod {order}; no negacyclic transform of length {ring_dimension} exists")
    for base in range(2, 1 << 16):
        root = pow(base, (prime - 1) // order, prime)
        if pow(root, ring_dimension, prime) == prime - 1:
            return root
    raise ConfigError(f"no root of order {order} found modulo {prime}; is it prime?")


def log2_product(primes: tuple[int, ...] | list[int]) -> float:
    """log2 of a product, summed exactly enough for the security table."""
    return math.fsum(math.log2(p) for p in primes)
