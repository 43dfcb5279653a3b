# SPDX-License-Identifier: Apache-2.0
"""Uniform polynomials from public seeds: SHAKE128, exactly uniform, any limb on its own.

Word j of attempt k of a limb is a 64-bit little-endian word of SHAKE128(tag, parameters, seed, label, prime, attempt,
chunk), chunks of 4096 words. The first attempt whose word lies below the largest multiple of the prime gives the value,
word mod prime: no bias at all. Values are evaluations in natural order of exponents 1, 3, 5, ...
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError

TAG = b"heatfhe/ckks32/v1/uniform"
SEED_BYTES = 32
CHUNK = 4096


def label(kind: int, element: int, digit: int) -> bytes:
    """What a uniform polynomial is for; no two labels of one seed collide."""
    return struct.pack("<III", kind, element, digit)


def _words(head: bytes, prime: int, attempt: int, count: int) -> NDArray[np.uint64]:
    parts = []
    for chunk in range(-(-count // CHUNK)):
        size = min(CHUNK, count - chunk * CHUNK)
        xof = hashlib.shake_128(head + struct.pack("<III", prime, attempt, chunk))
        parts.append(np.frombuffer(xof.digest(8 * size), dtype="<u8"))
    return np.concatenate(parts)


def uniform(seed: bytes, params_hash: bytes, what: bytes, primes: list[int], count: int) -> NDArray[np.uint32]:
    """Uniform residues (len(primes), count), evaluations in natural order."""
    if len(seed) != SEED_BYTES or len(params_hash) != 32:
        raise ConfigError("a seed and a parameter hash have 32 bytes each")
    head = TAG + params_hash + seed + struct.pack("<I", len(what)) + what
    out = np.empty((len(primes), count), dtype=np.uint32)
    for row, p in zip(out, primes):
        limit = np.uint64((1 << 64) // p * p - 1)
        words = _words(head, p, 0, count)
        row[:] = words % np.uint64(p)
        missing = np.flatnonzero(words > limit)
        attempt = 1
        while missing.size:
            words = _words(head, p, attempt, count)[missing]
            row[missing] = words % np.uint64(p)
            missing = missing[words > limit]
            attempt += 1
    return out
