# SPDX-License-Identifier: Apache-2.0
"""The clear engine's keyring: NOT encryption. Values travel in the open; for tests and simulation only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heatfhe.engine import ClearEngine, KeyRequest, Slots
from heatfhe.errors import FileFormatError
from heatfhe.files import read_json, write_json

KIND, VERSION, FILE = "heatfhe-clear-keyring", 1, "clear-keyring.json"


class ClearKeyring:
    """Has the shape of a keyring and no secret: whoever sees its bytes sees the values."""

    def __init__(self, request: KeyRequest, folder: Path | None = None) -> None:
        self._request = request
        self._engine = ClearEngine(request.params)
        if folder is not None:
            body = read_json(folder / FILE, KIND, (VERSION,))
            if body.get("params") != request.params.digest:
                raise FileFormatError(f"{folder / FILE}: was made for other parameters; make a keyring for this plan")

    @property
    def request(self) -> KeyRequest:
        return self._request

    def encrypt(self, values: Slots, *, level: int) -> bytes:
        """The values themselves, in the clear engine's wire form."""
        return self._engine.dump(self._engine.value(np.asarray(values), level))

    def decrypt(self, blob: bytes) -> NDArray[np.complex128]:
        """The values back."""
        return np.asarray(self._engine.parse(blob).slots, dtype=np.complex128)

    def evaluation_keys(self) -> Iterable[tuple[str, bytes]]:
        """One empty blob per key a real engine would need, so that uploads can be rehearsed."""
        yield "relinearisation", b"clear"
        if self._request.conjugation:
            yield "conjugation", b"clear"
        for k in self._request.rotations:
            yield f"rotation-{k}", b"clear"

    def save(self, folder: Path) -> None:
        """Nothing secret to write; the file says which parameters the keyring is for."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(folder / FILE, KIND, VERSION, {"params": self._request.params.digest})
        (folder / FILE).chmod(0o600)
