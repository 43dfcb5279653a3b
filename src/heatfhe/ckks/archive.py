# SPDX-License-Identifier: Apache-2.0
"""The wire format: versioned, hashed, and read with suspicion. Anything not exactly as it should be is a WireError.

    magic (8) | version u16 | kind u16 | zero u32 | parameter hash (32) | body length u64 | body | SHA-256 of all before

Words are little-endian, limbs in the chain's order, evaluations in natural order of exponents. The digest finds
accidents, it does not authenticate: the channel does.

Version 2 is written, 1 and 2 are read. They differ in the parameter hash alone: that of version 1 covered figures such
as noise (``NativeSet.older``). The hash also labels the expansion of seeds, so a blob is expanded under its own.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.chain import Chain
from heatfhe.ckks.expand import SEED_BYTES
from heatfhe.ckks.kernels import Kernels
from heatfhe.ckks.keys import Fresh, KeyId, SwitchKey, fresh_half
from heatfhe.ckks.ring import Ciphertext, same_scale
from heatfhe.errors import ConfigError, WireError

MAGIC = b"HEATCK32"
VERSION = 2
CIPHERTEXT, FRESH, KEY, SECRET = 1, 2, 3, 4
HEADER = struct.Struct("<8sHHI32sQ")
DIGEST = 32
_CIPHERTEXT = struct.Struct("<IId")
_KEY = struct.Struct("<IIIII")


def seal(kind: int, params_hash: bytes, body: bytes) -> bytes:
    """A body in its container."""
    whole = HEADER.pack(MAGIC, VERSION, kind, 0, params_hash, len(body)) + body
    return whole + hashlib.sha256(whole).digest()


def unseal(
    blob: bytes, kinds: tuple[int, ...], params_hash: bytes, older: Mapping[int, bytes] | None = None
) -> tuple[int, memoryview, bytes]:
    """Kind, body and parameter hash of a container; checks every field, the exact length and the digest.

    ``older`` holds the parameter hash of each earlier version that is accepted.
    """
    if len(blob) < HEADER.size + DIGEST:
        raise WireError(f"a blob of {len(blob)} bytes is too short; send it again")
    magic, version, kind, zero, found, length = HEADER.unpack_from(blob)
    if magic != MAGIC or zero != 0:
        raise WireError("not a blob of the native engine")
    hashes = {**(older or {}), VERSION: params_hash}
    if version not in hashes:
        known = ", ".join(map(str, sorted(hashes)))
        raise WireError(f"format version {version} is not among those read here ({known}); upgrade the older side")
    if kind not in kinds:
        raise WireError(f"a blob of kind {kind} where {kinds} is expected")
    if found != hashes[version]:
        why = "" if version == VERSION else f", or states other noise figures (format version {version} bound them)"
        raise WireError(f"the blob belongs to another parameter set{why}; make it for this plan")
    if length != len(blob) - HEADER.size - DIGEST:
        raise WireError(f"a body of {length} bytes in a blob of {len(blob)}; it is truncated or padded, send it again")
    view = memoryview(blob)
    if hashlib.sha256(view[:-DIGEST]).digest() != bytes(view[-DIGEST:]):
        raise WireError("the blob's digest does not match; it was altered on the way, send it again")
    return kind, view[HEADER.size : -DIGEST], found


def key_blob_bytes(chain: Chain, key: KeyId) -> int:
    """Bytes of a key as dump_key writes it: the computed half in words, the uniform half as a seed."""
    words = key.digits(chain) * len(key.rows(chain)) * chain.ring_dimension
    return HEADER.size + _KEY.size + SEED_BYTES + 4 * words + DIGEST


def _bytes(natural: NDArray[np.uint32]) -> bytes:
    return natural.astype("<u4", copy=False).tobytes()


@dataclass(frozen=True, slots=True, eq=False)
class Archive:
    """Reads and writes ciphertexts and keys of one chain."""

    chain: Chain
    kernels: Kernels
    params_hash: bytes
    floor: int = 0  # the lowest level a value may have
    older: Mapping[int, bytes] = field(default_factory=dict)  # parameter hash of each earlier version that is read

    def _read(self, body: memoryview, shape: tuple[int, ...], rows: list[int]) -> NDArray[np.uint32]:
        """Residues (..., limbs, N) in natural order, every one below its prime."""
        count = math.prod(shape)
        if len(body) != 4 * count:
            raise WireError(f"{len(body)} bytes of words where {4 * count} are expected; send it again")
        natural = np.frombuffer(body, dtype="<u4").reshape(shape).astype(np.uint32, copy=False)
        primes = np.array([self.chain.moduli[r] for r in rows], dtype=np.uint32)[:, None]
        if not (natural < primes).all():
            raise WireError("a residue is not below its prime; the sender is broken or hostile")
        return natural

    def _level(self, level: int, scale: float) -> list[int]:
        """Rows of a ciphertext's level, its scale checked to be canonical."""
        if not self.floor <= level <= self.chain.normal_levels:
            raise WireError(f"level {level} is outside {self.floor}..{self.chain.normal_levels}")
        canonical = self.chain.scales()[level]
        if not (math.isfinite(scale) and scale > 0 and same_scale(scale, canonical)):
            raise WireError(f"the scale is not the canonical one of level {level}")
        return list(self.chain.rows(level))

    def dump(self, a: Ciphertext) -> bytes:
        """Wire form of a ciphertext."""
        body = _CIPHERTEXT.pack(a.level, 0, a.scale) + _bytes(self.kernels.download(a.data))
        return seal(CIPHERTEXT, self.params_hash, body)

    def dump_fresh(self, a: Fresh) -> bytes:
        """Wire form of a fresh ciphertext: half of it is a seed."""
        body = _CIPHERTEXT.pack(a.level, 0, a.scale) + a.seed + _bytes(a.b)
        return seal(FRESH, self.params_hash, body)

    def parse(self, blob: bytes) -> Ciphertext:
        """A ciphertext from either form."""
        kind, body, params_hash = unseal(blob, (CIPHERTEXT, FRESH), self.params_hash, self.older)
        if len(body) < _CIPHERTEXT.size + SEED_BYTES:
            raise WireError("a ciphertext without words; send it again")
        level, zero, scale = _CIPHERTEXT.unpack_from(body)
        if zero:
            raise WireError("a reserved field is not zero")
        rows, n = self._level(level, scale), self.chain.ring_dimension
        rest = body[_CIPHERTEXT.size :]
        if kind == FRESH:
            seed = bytes(rest[:SEED_BYTES])
            b = self._read(rest[SEED_BYTES:], (len(rows), n), rows)
            data = np.stack([b, fresh_half(seed, level, self.chain, params_hash)])
        else:
            data = self._read(rest, (2, len(rows), n), rows)
        if data[0].any() and (not data[1].any() or np.array_equal(data[0], data[1])):  # all zero is a product with 0
            raise WireError("a transparent ciphertext: it hides nothing")
        return Ciphertext(level, self.chain.scales()[level], self.kernels.upload(data))

    def dump_key(self, key: SwitchKey) -> bytes:
        """Wire form of an evaluation key."""
        i = key.id
        body = _KEY.pack(i.kind, i.element, i.cap, *key.b.shape[:2]) + key.seed + _bytes(key.b)
        return seal(KEY, self.params_hash, body)

    def parse_key(self, blob: bytes, wanted: KeyId) -> SwitchKey:
        """An evaluation key, which must be the one expected."""
        _, body, params_hash = unseal(blob, (KEY,), self.params_hash, self.older)
        if len(body) < _KEY.size + SEED_BYTES:
            raise WireError("a key without words; send it again")
        kind, element, cap, digits, limbs = _KEY.unpack_from(body)
        if (kind, element, cap) != (wanted.kind, wanted.element, wanted.cap):
            raise WireError(f"key {wanted.name}: the blob holds another key; send the right one")
        try:
            wanted.check(self.chain)
        except ConfigError as err:
            raise WireError(str(err)) from err
        rows = wanted.rows(self.chain)
        if (digits, limbs) != (wanted.digits(self.chain), len(rows)):
            raise WireError(f"key {wanted.name}: {digits} digits of {limbs} limbs; the parameters say otherwise")
        rest = body[_KEY.size :]
        b = self._read(rest[SEED_BYTES:], (digits, limbs, self.chain.ring_dimension), rows)
        if not all(part.any() for part in b):
            raise WireError(f"key {wanted.name}: a digit is zero")
        return SwitchKey(wanted, bytes(rest[:SEED_BYTES]), b, params_hash)
