# SPDX-License-Identifier: Apache-2.0
"""The three secret distributions: uniform ternary, sparse ternary, and the discrete Gaussian of the errors."""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.secret.source import SecretSource

SIGMA = Decimal("3.19")
TAIL = 42  # 13 sigma: mass beyond it is below 2^-121
SPARSE_WEIGHT = 32


def ternary(count: int, source: SecretSource) -> NDArray[np.int64]:
    """Each value -1, 0 or 1 with probability exactly 1/3: bytes below 255, modulo 3."""
    out = np.empty(0, dtype=np.int64)
    while out.size < count:
        drawn = np.frombuffer(source.take(count + 64), dtype=np.uint8)
        out = np.concatenate([out, drawn[drawn < 255].astype(np.int64) % 3 - 1])
    return out[:count]


def sparse_ternary(count: int, weight: int, source: SecretSource) -> NDArray[np.int64]:
    """A uniformly random vector of values -1, 0, 1 with exactly ``weight`` that are not zero; count a power of two."""
    out = np.zeros(count, dtype=np.int64)
    placed = 0
    while placed < weight:
        word = int.from_bytes(source.take(8), "little")
        place, sign = word % count, word >> 63  # count is a power of two: no bias
        if out[place] == 0:
            out[place] = 1 - 2 * sign
            placed += 1
    return out


@lru_cache(maxsize=1)
def gaussian_table() -> NDArray[np.uint64]:
    """floor(2^64 Pr[|x| <= k]) for k = 0 .. TAIL - 1, from 60 decimal digits."""
    with localcontext() as context:
        context.prec = 60
        weights = [(-(Decimal(k) ** 2) / (2 * SIGMA**2)).exp() * (1 if k == 0 else 2) for k in range(TAIL + 1)]
        total, running, table = sum(weights), Decimal(0), []
        for w in weights[:-1]:
            running += w
            table.append(int(running / total * (1 << 64)))
    return np.array(table, dtype=np.uint64)


def gaussian(count: int, source: SecretSource) -> NDArray[np.int64]:
    """Discrete Gaussian of standard deviation 3.19 by table inversion: within 2^-63 of its probabilities."""
    words = np.frombuffer(source.take(8 * count), dtype="<u8")
    magnitude = np.searchsorted(gaussian_table(), words, side="right").astype(np.int64)
    signs = np.frombuffer(source.take(count), dtype=np.uint8).astype(np.int64) & 1
    return magnitude * (1 - 2 * signs)
