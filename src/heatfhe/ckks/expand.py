# SPDX-License-Identifier: Apache-2.0
"""Uniform polynomials from public seeds: SHAKE128, exactly uniform, any limb on its own.

Word j of attempt k of a limb is a 64-bit little-endian word of SHAKE128(head, prime, attempt, chunk), chunks of 4096
words; the head holds tag, parameters, seed and label. The first attempt whose word lies below the largest multiple of
the prime gives the value, word mod prime: no bias at all. Values are evaluations in natural order of exponents
1, 3, 5, ...
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError

TAG = b"heatfhe/ckks32/v1/uniform"
SEED_BYTES = 32
CHUNK = 4096
RATE = 168  # bytes of a block of SHAKE128
LANES = RATE // 8


def label(kind: int, element: int, digit: int) -> bytes:
    """What a uniform polynomial is for; no two labels of one seed collide."""
    return struct.pack("<III", kind, element, digit)


def expansion_head(seed: bytes, params_hash: bytes, what: bytes) -> bytes:
    """What every hash of one polynomial begins with."""
    if len(seed) != SEED_BYTES or len(params_hash) != 32:
        raise ConfigError("a seed and a parameter hash have 32 bytes each")
    return TAG + params_hash + seed + struct.pack("<I", len(what)) + what


def _words(head: bytes, prime: int, attempt: int, count: int) -> NDArray[np.uint64]:
    parts = []
    for chunk in range(-(-count // CHUNK)):
        size = min(CHUNK, count - chunk * CHUNK)
        xof = hashlib.shake_128(head + struct.pack("<III", prime, attempt, chunk))
        parts.append(np.frombuffer(xof.digest(8 * size), dtype="<u8"))
    return np.concatenate(parts)


def uniform_limb(head: bytes, prime: int, count: int) -> NDArray[np.uint32]:
    """One limb, in natural order."""
    limit = np.uint64((1 << 64) // prime * prime - 1)
    words = _words(head, prime, 0, count)
    out = (words % np.uint64(prime)).astype(np.uint32)
    missing = np.flatnonzero(words > limit)
    attempt = 1
    while missing.size:
        words = _words(head, prime, attempt, count)[missing]
        out[missing] = words % np.uint64(prime)
        missing = missing[words > limit]
        attempt += 1
    return out


def uniform(seed: bytes, params_hash: bytes, what: bytes, primes: Sequence[int], count: int) -> NDArray[np.uint32]:
    """Uniform residues (len(primes), count), evaluations in natural order."""
    out: NDArray[np.uint32] = expanded([expansion_head(seed, params_hash, what)], primes, count)[0]
    return out


def expanded(heads: Sequence[bytes], primes: Sequence[int], count: int) -> NDArray[np.uint32]:
    """Uniform residues (len(heads), len(primes), count), evaluations in natural order."""
    return np.stack([np.stack([uniform_limb(head, p, count) for p in primes]) for head in heads])


def padded_blocks(heads: Sequence[bytes], primes: Sequence[int], count: int) -> NDArray[np.uint64]:
    """The input blocks of every hash of the first attempt, padded as SHAKE128 does: (heads, primes, chunks, lanes)."""
    chunks = -(-count // CHUNK)
    out = np.zeros((len(heads), len(primes), chunks, RATE), dtype=np.uint8)
    for i, head in enumerate(heads):
        size = len(head) + 12
        if size >= RATE:
            raise ConfigError(f"a head of {len(head)} bytes does not fit one block of SHAKE128")
        out[i, :, :, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        for j, prime in enumerate(primes):
            for chunk in range(chunks):
                out[i, j, chunk, len(head) : size] = np.frombuffer(struct.pack("<III", prime, 0, chunk), dtype=np.uint8)
        out[i, :, :, size] = 0x1F
        out[i, :, :, RATE - 1] |= 0x80
    return out.view("<u8")
