# SPDX-License-Identifier: Apache-2.0
"""The wire format: round trips, half-size keys, and two thousand mutations of which none passes."""

from __future__ import annotations

import hashlib
import random
import struct

import numpy as np
import pytest

from heatfhe.ckks.archive import CIPHERTEXT, DIGEST, FRESH, HEADER, KEY, SECRET, Archive, seal, unseal
from heatfhe.ckks.keys import GALOIS, RELINEARISE, TO_DENSE, TO_SPARSE, KeyId, SwitchKey, fresh_half, galois_element
from heatfhe.errors import WireError
from tests.ckks.seeded import HASH, Scheme, small_chain

N = 64
CHAIN = small_chain(N)
S = Scheme(CHAIN, device="reference", rotations=())
ARCHIVE = Archive(CHAIN, S.ring.kernels, HASH)
GALOIS_ID = KeyId(kind=GALOIS, element=galois_element(3, N), cap=3)


def reseal(blob: bytes, change: bytes, at: int) -> bytes:
    """A blob with some body bytes changed and a digest that fits again: what a hostile sender would make."""
    body = bytearray(blob[:-DIGEST])
    body[at : at + len(change)] = change
    return bytes(body) + hashlib.sha256(body).digest()


@pytest.mark.parametrize("level", range(6))
def test_ciphertexts_come_back_as_they_were(level: int) -> None:
    fresh = S.maker.encrypt(np.arange(8) / 8, level)
    seeded = ARCHIVE.parse(ARCHIVE.dump_fresh(fresh))
    b, a = S.ring.kernels.download(seeded.data)
    assert np.array_equal(b, fresh.b)
    assert np.array_equal(a, fresh_half(fresh.seed, level, CHAIN, HASH))
    blob = ARCHIVE.dump(seeded)
    again = ARCHIVE.parse(blob)
    assert (again.level, again.scale) == (level, S.ring.scales[level])
    assert np.array_equal(S.ring.kernels.download(again.data), [b, a])
    assert ARCHIVE.dump(again) == blob
    assert np.abs(S.error(again, np.arange(8) / 8)).max() < 1e-6


def test_a_seed_halves_the_size() -> None:
    fresh = S.maker.encrypt(np.ones(1), 4)
    whole = ARCHIVE.dump(ARCHIVE.parse(ARCHIVE.dump_fresh(fresh)))
    overhead = HEADER.size + DIGEST + 16
    assert 2 * (len(ARCHIVE.dump_fresh(fresh)) - overhead - 32) == len(whole) - overhead


@pytest.mark.parametrize(
    "key",
    [
        KeyId(kind=RELINEARISE, cap=CHAIN.top), GALOIS_ID, KeyId(kind=GALOIS, element=2 * N - 1, cap=2),
        KeyId(kind=TO_SPARSE), KeyId(kind=TO_DENSE, cap=CHAIN.top),
    ],
)  # fmt: skip
def test_keys_come_back_as_they_were(key: KeyId) -> None:
    made = S.maker.switch_key(key)
    back = ARCHIVE.parse_key(ARCHIVE.dump_key(made), key)
    assert (back.id, back.seed) == (made.id, made.seed)
    assert np.array_equal(back.b, made.b)


def mutations(blob: bytes, count: int, seed: int) -> list[bytes]:
    """Flips, cuts, insertions, swaps and splices of a valid blob, none equal to it."""
    rng = random.Random(seed)
    out = []
    while len(out) < count:
        data = bytearray(blob)
        kind = rng.randrange(6)
        at = rng.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 64))
        elif kind == 3:
            data[at : at + 8] = rng.randbytes(8)
        elif kind == 4:
            other = rng.randrange(len(data))
            data[at], data[other] = data[other], data[at]
        else:
            data[: HEADER.size] = rng.randbytes(HEADER.size) if rng.random() < 0.5 else data[4 : HEADER.size + 4]
        if bytes(data) != blob:
            out.append(bytes(data))
    return out


def test_two_thousand_mutations_are_refused() -> None:
    key = S.maker.switch_key(GALOIS_ID)
    fresh = ARCHIVE.dump_fresh(S.maker.encrypt(np.ones(1), 2))
    whole = ARCHIVE.dump(ARCHIVE.parse(fresh))
    for bad in mutations(ARCHIVE.dump_key(key), 1000, 1):
        with pytest.raises(WireError):
            ARCHIVE.parse_key(bad, GALOIS_ID)
    for blob, seed in ((fresh, 2), (whole, 3)):
        for bad in mutations(blob, 500, seed):
            with pytest.raises(WireError):
                ARCHIVE.parse(bad)


def test_resealed_headers_and_fields_never_pass_for_another_meaning() -> None:
    """A hostile sender can make the digest fit; every field is then checked on its own."""
    fresh = ARCHIVE.dump_fresh(S.maker.encrypt(np.ones(1), 2))
    body = HEADER.size
    p = CHAIN.moduli[CHAIN.rows(2)[0]]
    for change, at in (
        (b"X", 0),  # magic
        (struct.pack("<H", 3), 8),  # version
        (struct.pack("<H", KEY), 10),  # kind
        (struct.pack("<H", SECRET), 10),
        (b"\1", 12),  # reserved
        (b"\xff", 16),  # parameter hash
        (struct.pack("<Q", 1 << 60), 48),  # length
        (struct.pack("<I", 3), body),  # level, then limbs do not fit
        (struct.pack("<I", 99), body),
        (struct.pack("<I", 1), body + 4),  # reserved
        (struct.pack("<d", 2.0**35 * 1.001), body + 8),  # scale
        (struct.pack("<d", float("nan")), body + 8),
        (struct.pack("<d", -(2.0**35)), body + 8),
        (struct.pack("<I", p), body + 48),  # a residue equal to its prime
        (struct.pack("<I", 2**32 - 1), body + 48),
    ):
        with pytest.raises(WireError):
            ARCHIVE.parse(reseal(fresh, change, at))


def test_hostile_keys_are_refused() -> None:
    made = S.maker.switch_key(GALOIS_ID)
    blob = ARCHIVE.dump_key(made)
    others = [
        KeyId(kind=GALOIS, element=galois_element(4, N), cap=3), KeyId(kind=GALOIS, element=GALOIS_ID.element, cap=4),
        KeyId(kind=RELINEARISE, cap=3),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(WireError, match="another key"):
            ARCHIVE.parse_key(blob, other)
    even = KeyId(kind=GALOIS, element=4, cap=3)
    with pytest.raises(WireError, match="not a Galois element"):
        ARCHIVE.parse_key(ARCHIVE.dump_key(SwitchKey(even, made.seed, made.b, HASH)), even)
    high = KeyId(kind=TO_SPARSE, cap=3)
    with pytest.raises(WireError, match="level 0 only"):
        ARCHIVE.parse_key(ARCHIVE.dump_key(SwitchKey(high, made.seed, made.b, HASH)), high)
    sparse = KeyId(kind=TO_SPARSE)
    with pytest.raises(WireError, match="digits"):  # an encapsulation key over more primes than it may have
        ARCHIVE.parse_key(ARCHIVE.dump_key(SwitchKey(sparse, made.seed, made.b, HASH)), sparse)
    with pytest.raises(WireError, match="zero"):
        ARCHIVE.parse_key(ARCHIVE.dump_key(SwitchKey(GALOIS_ID, made.seed, 0 * made.b, HASH)), GALOIS_ID)


def test_transparent_ciphertexts_are_refused() -> None:
    rows = S.ring.rows(1)
    data = np.ones((2, len(rows), N), dtype=np.uint32)
    from heatfhe.ckks.ring import Ciphertext

    for bad in (data, data * np.array([1, 0], dtype=np.uint32)[:, None, None]):
        with pytest.raises(WireError, match="hides nothing"):
            ARCHIVE.parse(ARCHIVE.dump(Ciphertext(1, S.ring.scales[1], S.ring.kernels.upload(bad))))


def test_containers_check_kind_and_parameters() -> None:
    blob = seal(CIPHERTEXT, HASH, b"body")
    assert unseal(blob, (CIPHERTEXT, FRESH), HASH)[0] == CIPHERTEXT
    with pytest.raises(WireError, match="kind"):
        unseal(blob, (KEY,), HASH)
    with pytest.raises(WireError, match="another parameter set"):
        unseal(blob, (CIPHERTEXT,), bytes(32))
    with pytest.raises(WireError, match="too short"):
        unseal(b"", (CIPHERTEXT,), HASH)
