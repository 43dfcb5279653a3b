# SPDX-License-Identifier: Apache-2.0
"""Secret keys, the evaluation keys made from them, encryption and decryption: the client's side of the wall."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.expand import SEED_BYTES
from heatfhe.ckks.kernels import Rows, Words
from heatfhe.ckks.keys import (
    GALOIS,
    RELINEARISE,
    TO_DENSE,
    TO_SPARSE,
    Fresh,
    KeyId,
    SwitchKey,
    fold_rotations,
    fresh_half,
    galois_element,
    key_heads,
)
from heatfhe.ckks.ring import Ciphertext, Ring
from heatfhe.ckks.secret.sampling import SPARSE_WEIGHT, gaussian, sparse_ternary, ternary
from heatfhe.ckks.secret.source import SecretSource
from heatfhe.errors import ConfigError

DECODE_BITS = 110  # decryption reads as many limbs as hold this many bits
PLAUSIBLE_DEVIATIONS = 16.0  # a uniform ternary secret strays this far with a probability below 2^-180


class KeepsSecret:
    """What holds a secret is not pickled, copied or printed, by accident or through a library."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ConfigError(f"a {type(self).__name__} is not pickled or copied; save the keyring to a folder instead")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: not shown>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SecretKey(KeepsSecret):
    """The dense secret, and the sparse one that only bootstrapping passes through. Never printed, never sent."""

    dense: NDArray[np.int64]
    sparse: NDArray[np.int64]

    def __post_init__(self) -> None:
        n = self.dense.size
        if self.sparse.size != n or np.abs(self.dense).max(initial=0) > 1 or np.abs(self.sparse).max(initial=0) > 1:
            raise ConfigError("a secret key has two ternary polynomials of equal length")
        if np.count_nonzero(self.sparse) != min(SPARSE_WEIGHT, n // 2):
            raise ConfigError("the sparse secret has another weight than the parameters say")
        least = n / 3 - PLAUSIBLE_DEVIATIONS * math.sqrt(2 * n / 9)
        if not self.dense.any() or min(np.count_nonzero(self.dense == v) for v in (-1, 0, 1)) < least:
            raise ConfigError("the dense secret was not drawn uniformly; it would protect nothing, make new keys")


def make_secret(ring_dimension: int, source: SecretSource) -> SecretKey:
    """A new secret key."""
    dense = ternary(ring_dimension, source)
    return SecretKey(dense, sparse_ternary(ring_dimension, min(SPARSE_WEIGHT, ring_dimension // 2), source))


class KeyMaker(KeepsSecret):
    """Makes evaluation keys, encrypts and decrypts with one secret key."""

    def __init__(self, ring: Ring, secret: SecretKey, source: SecretSource, params_hash: bytes) -> None:
        if secret.dense.size != ring.chain.ring_dimension:
            raise ConfigError(
                f"the secret key has ring dimension {secret.dense.size}, the parameters {ring.chain.ring_dimension}"
            )
        self._ring, self._source, self._hash = ring, source, params_hash
        self._secret = secret
        self._dense = ring.kernels.evaluate(secret.dense, np.arange(len(ring.chain.moduli), dtype=np.int64))

    def _multiply(self, x: Words, y: Words, rows: Rows) -> Words:
        k = self._ring.kernels
        return k.product(x, k.prepare(y, rows), rows)

    def _dense_at(self, level: int, limbs: int | None = None) -> Words:
        """The dense secret modulo the primes of a level, or the first of them."""
        rows = self._ring.chain.rows(level)
        return self._ring.kernels.limbs(self._dense, rows.start, len(rows) if limbs is None else limbs)

    def _secrets(self, key: KeyId, rows: Rows) -> tuple[Words, Words]:
        """(from, to) of a key: it turns what the first decrypts into what the second does."""
        kernels = self._ring.kernels
        dense = kernels.evaluate(self._secret.dense, rows)
        if key.kind == RELINEARISE:
            return self._multiply(dense, dense, rows), dense
        if key.kind == GALOIS:
            inverse = pow(key.element, -1, 2 * self._ring.chain.ring_dimension)
            return dense, kernels.automorphism(dense, inverse)
        if key.kind == TO_SPARSE:
            return dense, kernels.evaluate(self._secret.sparse, rows)
        if key.kind == TO_DENSE:
            return kernels.evaluate(self._secret.sparse, rows), dense
        raise ConfigError(f"no key has kind {key.kind}")

    def switch_key(self, key: KeyId) -> SwitchKey:
        """An evaluation key, its uniform half from a new seed of its own."""
        ring, chain, kernels = self._ring, self._ring.chain, self._ring.kernels
        key.check(chain)
        rows = np.array(key.rows(chain), dtype=np.int64)
        special = [int(r) for r in rows if int(r) in chain.special_rows]
        factor = math.prod(chain.moduli[r] for r in special)
        source, target = self._secrets(key, rows)
        factors = ring.constant(factor, rows)
        fold = fold_rotations(chain.ring_dimension // 2) if key.kind == TO_DENSE else ()
        seed = self._source.take(SEED_BYTES)
        width, count = len(chain.special), key.digits(chain)
        out = np.empty((count, len(rows), chain.ring_dimension), dtype=np.uint32)
        halves = kernels.uniform(key_heads(key, seed, chain, self._hash), rows)
        for digit in range(count):
            a = kernels.polynomial(halves, digit)
            error = kernels.evaluate(gaussian(chain.ring_dimension, self._source), rows)
            b = kernels.sub(error, self._multiply(a, target, rows), rows)
            if fold:
                message = kernels.scale(source, factors, rows)
                message = kernels.automorphism(message, galois_element(fold[digit], chain.ring_dimension))
            else:
                digits = rows // width if count > 1 else np.full_like(rows, digit)
                own = (digits == digit) & ~np.isin(rows, special)
                message = kernels.scale(source, np.where(own, factors, 0).astype(np.uint32), rows)
            out[digit] = kernels.download(kernels.add(b, message, rows))
        return SwitchKey(key, seed, out, self._hash)

    def encrypt(self, values: NDArray[Any], level: int) -> Fresh:
        """A fresh ciphertext at the canonical scale of a normal level."""
        ring, kernels = self._ring, self._ring.kernels
        if not 0 <= level <= ring.chain.normal_levels:
            raise ConfigError(f"fresh ciphertexts have levels 0 to {ring.chain.normal_levels}, got {level}")
        rows, scale = ring.rows(level), ring.scales[level]
        seed = self._source.take(SEED_BYTES)
        a = kernels.upload(fresh_half(seed, level, ring.chain, self._hash))
        coefficients = ring.encoder.encode(values, scale) + gaussian(ring.chain.ring_dimension, self._source)
        hidden = self._multiply(a, self._dense_at(level), rows)
        b = kernels.sub(kernels.evaluate(coefficients, rows), hidden, rows)
        return Fresh(level, scale, seed, kernels.download(b))

    def phase(self, ciphertext: Ciphertext) -> NDArray[np.float64]:
        """b + a s as real coefficients, centred."""
        ring, chain = self._ring, self._ring.chain
        every = list(chain.rows(ciphertext.level))
        count, bits = 0, 0.0
        while count < len(every) and bits < DECODE_BITS:
            bits += math.log2(chain.moduli[every[count]])
            count += 1
        rows = np.array(every[:count], dtype=np.int64)
        k = ring.kernels
        low = k.limbs(ciphertext.data, 0, count)
        hidden = self._multiply(k.polynomial(low, 1), self._dense_at(ciphertext.level, count), rows)
        residues = k.coefficients(k.add(k.polynomial(low, 0), hidden, rows), rows)
        return centred([chain.moduli[r] for r in rows], residues)

    def decrypt(self, ciphertext: Ciphertext) -> NDArray[np.complex128]:
        """All slots of a ciphertext."""
        return self._ring.encoder.decode(self.phase(ciphertext) / ciphertext.scale)


def centred(moduli: list[int], residues: NDArray[np.uint32]) -> NDArray[np.float64]:
    """Centred representatives of a residue system, as doubles, by mixed radix."""
    total = math.prod(moduli)
    value = np.zeros(residues.shape[-1], dtype=object)
    for p, row in zip(moduli, residues):
        rest = total // p
        value = value + row.astype(object) * (rest * pow(rest, -1, p))
    value = value % total
    value = np.where(value > total // 2, value - total, value)
    return value.astype(np.float64)
