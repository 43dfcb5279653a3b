# SPDX-License-Identifier: Apache-2.0
"""Wire form of OpenFHE values and keys: our header around residues, checked before OpenFHE sees a byte.

A **ciphertext** travels as its residues alone. OpenFHE's own serialised form carries a context, types and lengths, has
no integrity check, and is parsed by code that trusts it. So ``Layout`` learns, from a ciphertext of zeros made in this
process, where the residues stand in that form; ``put`` copies checked residues into a fresh serialised zero. Of a
ciphertext nothing but residues below their primes reaches OpenFHE's parser.

**Evaluation keys** travel in OpenFHE's own form and do reach its parser. ``check_keys`` looks at them first: header and
digest, residue arrays of the ring's length under primes of the ring with every residue below its own, their number, and
little else beside them. The few bytes between the arrays (types, lengths, a context) are OpenFHE's and are parsed as
they come: a hostile client can crash the worker process that holds its keys, and no other.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import EngineError, WireError

Buffer = bytes | mmap.mmap
CIPHERTEXT = b"HFHEoCT\n"
KEY = b"HFHEoKY\n"
VERSION = 1
_HEAD = struct.Struct(
    "<8sHH32s16s32s32sQ"
)  # magic, version, level, params, key tag, name, payload digest, payload size


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What stands before a payload: which set and key it belongs to, its level or name, its digest."""

    magic: bytes
    level: int
    params_digest: str
    tag: str
    name: str = ""


def seal(header: Header, payload: bytes) -> bytes:
    """Header and payload as one blob."""
    head = _HEAD.pack(
        header.magic,
        VERSION,
        header.level,
        bytes.fromhex(header.params_digest),
        bytes.fromhex(header.tag),
        hashlib.sha256(header.name.encode()).digest(),
        hashlib.sha256(payload).digest(),
        len(payload),
    )
    return head + payload


def unseal(
    blob: bytes, magic: bytes, params_digest: str, *, tag: str | None = None, name: str = ""
) -> tuple[Header, memoryview]:
    """Inverse of seal; refuses another kind, version, parameter set, key, name, size or digest."""
    if len(blob) < _HEAD.size:
        raise WireError(f"an OpenFHE blob has at least {_HEAD.size} bytes, got {len(blob)}; it was cut short")
    found, version, level, params, found_tag, found_name, digest, size = _HEAD.unpack_from(blob)
    if found != magic:
        kind = "a ciphertext" if magic == CIPHERTEXT else "an evaluation key"
        raise WireError(f"not {kind} of the OpenFHE engine: it starts with other bytes")
    if version != VERSION:
        raise WireError(
            f"OpenFHE wire version {version}, this release reads {VERSION}; use the same release on both sides"
        )
    if params.hex() != params_digest:
        raise WireError("the blob was made for another parameter set; make keys for the server's plan again")
    if tag is not None and found_tag.hex() != tag:
        raise WireError("the blob was made under another key than this session's; send it with its own session")
    if found_name != hashlib.sha256(name.encode()).digest():
        raise WireError(f"the blob is not the key called {name!r}")
    payload = memoryview(blob)[_HEAD.size :]
    if size != len(payload):
        raise WireError(f"the header promises {size} bytes, {len(payload)} are there; the blob was cut or extended")
    if hashlib.sha256(payload).digest() != digest:
        raise WireError("digest of the payload does not match: the blob was altered on the way")
    return Header(magic=magic, level=level, params_digest=params_digest, tag=found_tag.hex(), name=name), payload


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the residues of a two-part ciphertext with ``limbs`` primes stand in OpenFHE's serialised form.

    Offsets count from the end: what stands before (a context that lists its bootstraps) may grow, the rest may not.
    """

    ring_dimension: int
    limbs: int
    from_end: tuple[int, ...]
    moduli: NDArray[np.uint64]

    @classmethod
    def learn(cls, zero: bytes, ring_dimension: int, limbs: int) -> Layout:
        """Find the residues in a serialised ciphertext whose residues are all zero."""
        mark = struct.pack("<Q", ring_dimension) + bytes(8 * ring_dimension)
        starts: list[int] = []
        at = zero.find(mark)
        while at >= 0:
            starts.append(at + 8)
            at = zero.find(mark, at + len(mark))
        if len(starts) != 2 * limbs:
            raise EngineError(
                f"this OpenFHE serialises ciphertexts otherwise than the releases we know: {len(starts)} residue "
                f"arrays where {2 * limbs} were expected; install openfhe 1.6.x"
            )
        moduli = np.array([struct.unpack_from("<Q", zero, s + 8 * ring_dimension)[0] for s in starts], dtype=np.uint64)
        if not np.array_equal(moduli[:limbs], moduli[limbs:]) or moduli.min() < 1 << 20:
            raise EngineError(
                "this OpenFHE serialises moduli otherwise than the releases we know; install openfhe 1.6.x"
            )
        from_end = tuple(len(zero) - s for s in starts)
        return cls(ring_dimension=ring_dimension, limbs=limbs, from_end=from_end, moduli=moduli)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all residues."""
        return 16 * self.limbs * self.ring_dimension

    def take(self, serialised: bytes) -> bytes:
        """The residues of a serialised ciphertext, limb after limb, first part then second.

        What stands between them differs with a value's history, so each array is found by its length and its prime.
        """
        width, mark, at, found = 8 * self.ring_dimension, struct.pack("<Q", self.ring_dimension), 0, []
        for q in self.moduli:
            prime = struct.pack("<Q", int(q))
            at = serialised.find(mark, at)
            while at >= 0 and serialised[at + 8 + width : at + 16 + width] != prime:
                at = serialised.find(mark, at + 1)
            if at < 0:
                raise EngineError(
                    f"a ciphertext does not serialise to {self.limbs} limbs of its primes; install openfhe 1.6.x"
                )
            found.append(serialised[at + 8 : at + 8 + width])
            at += 8 + width
        return b"".join(found)

    def put(self, payload: memoryview, zero: bytes) -> bytes:
        """A serialised ciphertext with these residues; refuses any that is not below its prime."""
        if len(payload) != self.payload_bytes:
            raise WireError(f"a ciphertext of {self.limbs} limbs has {self.payload_bytes} bytes, got {len(payload)}")
        residues = np.frombuffer(payload, dtype="<u8").reshape(2 * self.limbs, self.ring_dimension)
        if (residues >= self.moduli[:, None]).any():
            raise WireError("a residue is not below its prime: not a ciphertext of this parameter set")
        out, width = bytearray(zero), 8 * self.ring_dimension
        for row, back in enumerate(self.from_end):
            start = len(out) - back
            out[start : start + width] = payload[row * width : (row + 1) * width]
        return bytes(out)


FRAME_BYTES = 1 << 16  # of OpenFHE's own before the first residue array: the context (2.2 kB in openfhe 1.6)
GAP_BYTES = 1 << 12  # and between two arrays, or after the last: lengths, primes, an index (33 to 725 bytes)


def residue_arrays(body: Buffer, ring_dimension: int) -> Iterator[tuple[int, int]]:
    """(offset, prime) of every residue array in OpenFHE's serialised form: a length, the residues, their prime."""
    mark, width, at = struct.pack("<Q", ring_dimension), 8 * ring_dimension, 0
    while (at := body.find(mark, at)) >= 0 and at + 16 + width <= len(body):
        prime = struct.unpack_from("<Q", body, at + 8 + width)[0]
        if 1 << 20 < prime < 1 << 61 and prime % (2 * ring_dimension) == 1:
            yield at + 8, prime
            at += 16 + width
        else:
            at += 1


def check_keys(body: Buffer, ring_dimension: int, moduli: NDArray[np.uint64], name: str, *, digits: int = 0) -> int:
    """Number of residue arrays; refuses keys whose arrays, primes, residues or size are not those of this chain.

    ``digits`` is given for a single key: it then has two arrays per digit and prime, in one order throughout, the
    chain's ``moduli`` first.
    """
    primes: list[int] = []
    end, widest = 0, 0
    for at, prime in residue_arrays(body, ring_dimension):
        if primes:
            widest = max(widest, at - end)
        elif at > FRAME_BYTES:
            break
        end = at + 8 * ring_dimension
        if not (np.frombuffer(body, dtype="<u8", count=ring_dimension, offset=at) < prime).all():
            raise WireError(f"key {name}: a residue is not below its prime: not a key of this parameter set")
        primes.append(prime)
    widest = max(widest, len(body) - end)
    if not primes or widest > GAP_BYTES:
        raise WireError(
            f"key {name}: {len(primes)} residue arrays and {widest} bytes in a row that are none; it was altered or "
            "cut, make it again"
        )
    own = {int(q) for q in moduli}
    if not own & set(primes):
        raise WireError(f"key {name}: its primes are not those of this parameter set; make keys for the server's plan")
    if digits:
        each, rest = divmod(len(primes), 2 * digits)
        row = primes[:each]
        if rest or primes != row * (2 * digits) or row[: len(moduli)] != [int(q) for q in moduli]:
            raise WireError(f"key {name}: {len(primes)} residue arrays do not make {digits} digits over its primes")
    return len(primes)
