# SPDX-License-Identifier: Apache-2.0
"""The client's half of the OpenFHE engine: makes keys, encrypts, decrypts, tests a bootstrap with throwaway keys."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.ckks.secret import KeepsSecret
from heatfhe.client.kept import kept_bits
from heatfhe.client.read import NO_RETRY
from heatfhe.engine import KeyRequest, Slots
from heatfhe.engine.openfhe import (
    KEY,
    Context,
    Header,
    OpenFHEEngine,
    ProcessKeys,
    needs_automorphisms,
    refusals,
    seal,
    unseal,
)
from heatfhe.errors import DecryptError, EngineError, FileFormatError, WireError
from heatfhe.files import atomic_write
from heatfhe.planning import preset

PIECE_BYTES = 64 << 20
SECRET_MARK = b"HEATFHE-SECRET\n"  # servers and clients refuse to move anything that starts with it
SECRET_FILE, PUBLIC_FILE = "openfhe-secret.key", "openfhe-public.key"


class OpenFHEKeyring(KeepsSecret):
    """Secret and public key of one client for one request; ``folder`` loads those saved before."""

    def __init__(self, request: KeyRequest, folder: Path | None = None) -> None:
        self._request = request
        self._context = Context(request.params)
        self._context.check_request(request)
        if folder is None:
            with refusals("make a key pair"):
                pair = self._context.cc.KeyGen()
            self._secret, self._public = pair.secretKey, pair.publicKey
        else:
            self._secret = self._read(folder / SECRET_FILE, "DeserializePrivateKeyString")
            self._public = self._read(folder / PUBLIC_FILE, "DeserializePublicKeyString")
        self._tag = str(self._public.GetKeyTag())
        if str(self._secret.GetKeyTag()) != self._tag:
            raise FileFormatError(f"{folder}: secret and public key are not a pair; restore both from one backup")

    @property
    def request(self) -> KeyRequest:
        """The keys this ring was made for."""
        return self._request

    def encrypt(self, values: Slots, *, level: int) -> bytes:
        """A fresh ciphertext, in wire form."""
        self._request.check_level(level)
        with refusals("encrypt"):
            fresh = self._context.cc.Encrypt(self._public, self._context.encode(values, level))
        return self._context.dump(fresh)

    def decrypt(self, blob: bytes) -> NDArray[np.complex128]:
        """Slot values of a ciphertext in wire form."""
        value = self._context.parse(blob, self._tag)
        try:
            plain = self._context.cc.Decrypt(self._secret, value)
        except RuntimeError as err:
            raise DecryptError(f"a ciphertext does not decrypt to a plausible value. {NO_RETRY}") from err
        slots = np.asarray(plain.GetCKKSPackedValueArray(), dtype=np.complex128)
        if slots.shape != (self._context.slots,) or not np.isfinite(slots).all():
            raise DecryptError(f"a ciphertext does not decrypt to a plausible value. {NO_RETRY}")
        return slots

    def _make_keys(self) -> None:
        """Fill this process's key maps with exactly the requested keys; those made before stay as they are."""
        cc, request, context = self._context.cc, self._request, self._context
        with refusals("make evaluation keys"):
            if self._tag not in cc.GetAllEvalMultKeys():
                cc.EvalMultKeyGen(self._secret)
            wanted = {context.rotation_index(r) for r in request.rotations if context.rotation(r)}
            if request.conjugation:
                wanted.add(context.conjugation_index)
            if wanted:
                cc.EvalAutomorphismKeyGen(self._secret, sorted(wanted))
            for period in request.bootstrap_periods:
                context.set_up_bootstrap(period, tables=False)
                cc.EvalBootstrapKeyGen(self._secret, context.bootstrap_slots(period))

    def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of every public evaluation key: relinearisation, then the automorphisms in pieces.

        OpenFHE keeps the keys themselves in this process until it ends, so a second call gives the same keys again.
        """
        o, cc = self._context.openfhe, self._context.cc
        self._make_keys()
        with refusals("write the relinearisation key"):
            body = o.SerializeEvalMultKeyString(o.BINARY, self._tag)
        yield self._sealed("relinearisation", body)
        if not needs_automorphisms(self._request):
            return
        with tempfile.TemporaryDirectory(prefix="heatfhe-") as folder:
            path = Path(folder) / "keys"
            with refusals("write the automorphism keys"):
                if not cc.SerializeEvalAutomorphismKey(str(path), o.BINARY, self._tag):
                    raise EngineError("the automorphism keys cannot be written; is the disk of temporary files full?")
            with path.open("rb") as f:
                count = 0
                while piece := f.read(PIECE_BYTES):
                    yield self._sealed(f"automorphisms/{count:04d}", piece)
                    count += 1

    def process_keys(self) -> ProcessKeys:
        """The same keys for an engine in this very process: nothing is copied."""
        self._make_keys()
        return ProcessKeys(tag=self._tag)

    def save(self, folder: Path) -> None:
        """Write the secret and the public key, files of mode 0600."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        o = self._context.openfhe
        for name, mark, key in ((SECRET_FILE, SECRET_MARK, self._secret), (PUBLIC_FILE, b"", self._public)):
            _, blob = self._sealed(name, o.Serialize(key, o.BINARY))
            with atomic_write(folder / name) as f:
                os.fchmod(f.fileno(), 0o600)
                f.write(mark + blob)

    def _sealed(self, name: str, body: bytes) -> tuple[str, bytes]:
        header = Header(magic=KEY, level=0, params_digest=self._request.params.digest, tag=self._tag, name=name)
        return name, seal(header, body)

    def _read(self, path: Path, parser: str) -> Any:
        """A key file written by save."""
        try:
            blob = path.read_bytes().removeprefix(SECRET_MARK)
            _, body = unseal(blob, KEY, self._request.params.digest, name=path.name)
        except FileNotFoundError as err:
            raise FileFormatError(f"{path}: no such key file; make a keyring and save it there first") from err
        except WireError as err:
            raise FileFormatError(f"{path}: {err}") from err
        o = self._context.openfhe
        with refusals(f"read {path.name}"):
            return getattr(o, parser)(bytes(body), o.BINARY)


def self_test(params: Params | None = None, *, threads: int = 1) -> float:
    """Bits a bootstrap keeps here (heatfhe.client.kept); the default is the smallest toy set."""
    params = params or preset("insecure-openfhe-11")
    request = KeyRequest(params=params, rotations=(), bootstrap_periods=(params.slots,))
    ring = OpenFHEKeyring(request)
    return kept_bits(OpenFHEEngine(request, ring.process_keys(), threads=threads), ring)
