# SPDX-License-Identifier: Apache-2.0
"""The client's half of the native engine: makes keys, encrypts, decrypts, tests a bootstrap with throwaway keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import MAX_LOG_SPARSE_MODULUS, Params, Ring, key_ids, native_set, sparse_modulus_bits
from heatfhe.ckks.kernels import load_kernels
from heatfhe.ckks.secret import SECRET, KeepsSecret, KeyMaker, OsSource, SecretKey, make_secret, seal, unseal
from heatfhe.client.kept import kept_bits
from heatfhe.client.read import NO_RETRY
from heatfhe.engine import KeyRequest, MemoryKeys, NativeEngine, Slots
from heatfhe.errors import ConfigError, DecryptError, FileFormatError, WireError
from heatfhe.files import atomic_write
from heatfhe.planning import preset

SECRET_FILE = "native-secret.key"
PLAUSIBLE = 2.0**20  # no slot of a plan is larger


class NativeKeyring(KeepsSecret):
    """The secret key of one client for one request; ``folder`` loads the one saved before.

    All secret randomness is the operating system's. Every key and every fresh ciphertext has a seed of its own: asked
    twice for the same key, a keyring gives two different ones.
    """

    def __init__(
        self, request: KeyRequest, folder: Path | None = None, *, device: str = "cpu", threads: int = 1
    ) -> None:
        native = native_set(request.params)
        chain = native.chain
        limit = MAX_LOG_SPARSE_MODULUS.get(chain.ring_dimension, 0.0)
        if request.params.security_bits and sparse_modulus_bits(chain) > limit:
            raise ConfigError(f"{request.params.name}: the sparse secret's modulus exceeds {limit:g} bits")
        self._request, self._native = request, native
        ring = Ring(chain, load_kernels(device, chain.ring_dimension, chain.moduli, threads=threads))
        self._archive = native.archive(ring.kernels)
        source = OsSource()
        self._secret = make_secret(chain.ring_dimension, source) if folder is None else self._load(folder)
        self._maker = KeyMaker(ring, self._secret, source, native.hash)

    @property
    def request(self) -> KeyRequest:
        """The keys this ring was made for."""
        return self._request

    def encrypt(self, values: Slots, *, level: int) -> bytes:
        """A fresh ciphertext, in wire form: half of it is a seed."""
        self._request.check_level(level)
        return self._archive.dump_fresh(self._maker.encrypt(np.asarray(values), level + self._native.floor))

    def decrypt(self, blob: bytes) -> NDArray[np.complex128]:
        """Slot values of a ciphertext in wire form. They, and whether this succeeds, stay with the client."""
        slots = self._maker.decrypt(self._archive.parse(blob))
        if not np.isfinite(slots).all() or float(np.abs(slots).max()) > PLAUSIBLE:
            raise DecryptError(f"a ciphertext does not decrypt to a plausible value. {NO_RETRY}")
        return slots

    def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of every public evaluation key, made one at a time."""
        r = self._request
        for key in key_ids(self._native, r.rotations, r.conjugation, r.bootstrap_periods, r.rotation_levels):
            yield key.name, self._archive.dump_key(self._maker.switch_key(key))

    def save(self, folder: Path) -> None:
        """Write the secret key, a file of mode 0600."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        body = np.concatenate([self._secret.dense, self._secret.sparse]).astype(np.int8).tobytes()
        with atomic_write(folder / SECRET_FILE) as f:
            os.fchmod(f.fileno(), 0o600)
            f.write(seal(SECRET, self._native.hash, body))

    def _load(self, folder: Path) -> SecretKey:
        path = folder / SECRET_FILE
        n = self._native.chain.ring_dimension
        try:
            _, body, _ = unseal(path.read_bytes(), (SECRET,), self._native.hash, self._native.older)
        except FileNotFoundError as err:
            raise FileFormatError(f"{path}: no such key file; make a keyring and save it there first") from err
        except WireError as err:
            raise FileFormatError(f"{path}: {err}") from err
        if len(body) != 2 * n:
            raise FileFormatError(f"{path}: not a secret key of ring dimension {n}")
        words = np.frombuffer(body, dtype=np.int8).astype(np.int64)
        try:
            return SecretKey(words[:n], words[n:])
        except ConfigError as err:
            raise FileFormatError(f"{path}: {err}") from err


def self_test(params: Params | None = None, *, threads: int = 1) -> float:
    """Bits a bootstrap keeps here (heatfhe.client.kept); the default is the smallest toy set."""
    params = params or preset("insecure-native-11")
    request = KeyRequest(params=params, rotations=(), bootstrap_periods=(params.slots,))
    ring = NativeKeyring(request, threads=threads)
    return kept_bits(NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())), threads=threads), ring)
