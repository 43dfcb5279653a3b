# SPDX-License-Identifier: Apache-2.0
"""Circuits on the Hugging Face hub: a circuit's directory is the content of a model repository."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from heatfhe.circuit import store
from heatfhe.errors import ConfigError
from heatfhe.models import hub_library, upload_folder

if TYPE_CHECKING:
    from heatfhe.circuit.circuit import Circuit

FILES = ["circuit.json", "calibration.json", "weights.safetensors", "tokenizer/*"]


def fetched(name: str, revision: str | None, token: str | None) -> Path:
    """The directory of a circuit by its name on the hub: downloaded, or from the cache where that is all there is."""
    library, failure = hub_library(), ""
    for cached in (False, True):
        try:
            return Path(
                library.snapshot_download(
                    name, revision=revision, token=token, allow_patterns=FILES, local_files_only=cached
                )
            )
        except (OSError, ValueError) as err:
            failure = failure or str(err).strip().splitlines()[0]
    raise ConfigError(
        f"{name}: neither a directory here nor a circuit of the hub ({failure}); check the name and the connection"
    )


def pushed(circuit: Circuit, name: str, *, private: bool, token: str | None) -> str:
    """Upload a circuit as one commit; returns where it is."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "circuit"
        store.save(circuit, folder)
        words = f"Circuit {circuit.name}, {circuit.digest[:12]}"
        return upload_folder(folder, name, words, private=private, token=token)
