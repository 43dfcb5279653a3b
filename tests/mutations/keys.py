# SPDX-License-Identifier: Apache-2.0
"""Ciphertexts and evaluation keys of the native engine, and the folder a client keeps its keys in."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from heatfhe.ckks import archive
from heatfhe.ckks.archive import Archive
from heatfhe.ckks.keys import GALOIS, RELINEARISE, KeyId, galois_element
from heatfhe.ckks.presets import native_set
from heatfhe.ckks.secret import SecretKey
from heatfhe.client.keyring_native import SECRET_FILE, NativeKeyring
from heatfhe.client.keys import KeyFolder
from heatfhe.files import write_json
from heatfhe.planning import preset
from heatfhe.wire import KeyManifest
from heatfhe.wire.messages import KeyEntry
from tests.ckks.seeded import HASH, Scheme, small_chain
from tests.mutations.law import Format, hold, same
from tests.mutations.messages import config
from tests.mutations.mutator import file_of, overwritten, plain, scrambled


def resealed(blob: bytes, rng: random.Random, *, head: int) -> bytes:
    """An archive with its header or body changed, its length and digest right again most of the time."""
    if rng.random() < 0.1:
        return scrambled(blob, rng)
    body = blob[archive.HEADER.size : -archive.DIGEST]
    if rng.random() < 0.7:
        body = overwritten(body, rng, head=head)
    whole = bytearray(blob[: archive.HEADER.size] + body)
    if rng.random() < 0.3:
        whole[: archive.HEADER.size] = overwritten(bytes(whole), rng, head=archive.HEADER.size)[: archive.HEADER.size]
    else:
        struct.pack_into("<Q", whole, archive.HEADER.size - 8, len(body))
    return bytes(whole) + hashlib.sha256(whole).digest()


def archives() -> Iterator[Format]:
    chain = small_chain(64)
    scheme = Scheme(chain, device="reference", rotations=())
    own = Archive(chain, scheme.ring.kernels, HASH)
    fresh = own.dump_fresh(scheme.maker.encrypt(np.arange(8) / 8, 3))
    whole = own.dump(own.parse(fresh))
    ids = (KeyId(kind=RELINEARISE, cap=chain.top), KeyId(kind=GALOIS, element=galois_element(3, 64), cap=3))
    keys = [own.dump_key(scheme.maker.switch_key(i)) for i in ids]

    def read(blob: bytes) -> None:
        made = own.parse(blob)
        primes = np.array([chain.moduli[r] for r in chain.rows(made.level)], dtype=np.uint32)[:, None]
        hold(
            bool((scheme.ring.kernels.download(made.data) < primes).all()) and made.scale == chain.scales()[made.level],
            "a residue past its prime",
        )
        again = own.dump(made)
        skip = archive.HEADER.size + 16
        if blob[10] == archive.CIPHERTEXT:
            hold(again[skip : -archive.DIGEST] == blob[skip : -archive.DIGEST], "other residues")
            hold(again[: skip - 8] == blob[: skip - 8], "another header")
        else:
            half = (len(again) - skip - archive.DIGEST) // 2
            hold(again[skip : skip + half] == blob[skip + 32 : -archive.DIGEST], "other residues")

    def read_key(case: tuple[int, bytes]) -> None:
        hold(own.dump_key(own.parse_key(case[1], ids[case[0]])) == case[1], "written again it is another key")

    def change_key(rng: random.Random) -> tuple[int, bytes]:
        k = rng.randrange(len(keys))
        return k, resealed(keys[k], rng, head=56)

    yield Format("ciphertext", 2, lambda rng: resealed(whole, rng, head=32), read)
    yield Format("fresh", 2, lambda rng: resealed(fresh, rng, head=64), read)
    yield Format("key", 2, change_key, read_key)


def key_files(folder: Path) -> Iterator[Format]:
    """The client's folder: the manifest of its evaluation keys, and the file of its secret."""
    keys = KeyFolder(folder / "keys", config())
    keys.folder.mkdir(parents=True)
    manifest = KeyManifest(
        config_id=config().config_id, keys=tuple(KeyEntry(name=f"k{i}", size=3, sha256=f"{i:064x}") for i in range(3))
    )
    path = keys.folder / "manifest.json"
    write_json(path, "heatfhe-client-keys", 1, manifest.as_json())
    body = json.loads(path.read_text())["body"]
    native = native_set(preset("insecure-native-11"))
    n = native.chain.ring_dimension
    rng = np.random.default_rng(0)
    sparse = np.zeros(n, dtype=np.int8)
    sparse[rng.permutation(n)[:32]] = 1
    words = np.concatenate([rng.integers(-1, 2, n).astype(np.int8), sparse])
    secret = archive.seal(archive.SECRET, native.hash, words.tobytes())
    loader = object.__new__(NativeKeyring)  # the loader alone: kernels and key making have nothing to do with it
    loader._native = native

    def read_manifest(data: bytes) -> None:
        path.write_bytes(data)
        made = keys.manifest()
        said = plain(data)["body"]
        hold(all(same(made.as_json()[k], said[k]) for k in made.as_json()), "read as something else")

    def read_secret(data: bytes) -> None:
        (folder / SECRET_FILE).write_bytes(data)
        made: SecretKey = loader._load(folder)
        again = np.concatenate([made.dense, made.sparse]).astype(np.int8).tobytes()
        hold(archive.seal(archive.SECRET, native.hash, again) == data, "another secret")

    yield Format("key folder", 2, lambda rng: file_of("heatfhe-client-keys", 1, body, rng), read_manifest)
    yield Format("secret key", 1, lambda rng: resealed(secret, rng, head=2 * n), read_secret)
