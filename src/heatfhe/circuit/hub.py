# SPDX-License-Identifier: Apache-2.0
"""Circuits on the Hugging Face hub: a circuit's directory is the content of a model repository."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heatfhe.circuit import store
from heatfhe.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from heatfhe.circuit.circuit import Circuit

FILES = ["circuit.json", "calibration.json", "weights.safetensors", "tokenizer/*"]


def fetched(name: str, revision: str | None, token: str | None) -> Path:
    """The directory of a circuit by its name on the hub: downloaded, or from the cache where that is all there is."""
    library, failure = _library(), ""
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
    library = _library()
    api = library.HfApi(token=token)
    try:
        with tempfile.TemporaryDirectory() as place:
            store.save(circuit, Path(place) / "circuit")
            url = str(api.create_repo(name, private=private, exist_ok=True))
            words = f"Circuit {circuit.name}, {circuit.digest[:12]}"
            api.upload_folder(repo_id=name, folder_path=Path(place) / "circuit", commit_message=words)
    except (OSError, ValueError) as err:
        reason = str(err).strip().splitlines()[0]
        raise ConfigError(
            f"{name}: the hub does not take it ({reason}); log in with: hf auth login, or give token="
        ) from err
    return url


def _library() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError as err:
        raise MissingExtraError("train", needed_by="the Hugging Face hub") from err
    return huggingface_hub
