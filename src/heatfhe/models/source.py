# SPDX-License-Identifier: Apache-2.0
"""Where a checkpoint lies: the embedded default, a folder, or a model of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from heatfhe.assets import default_parent
from heatfhe.errors import ConfigError, MissingExtraError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt"]


def model_folder(name: str | Path, *, fetch: bool = True) -> Path:
    """The checkpoint folder behind a name: the embedded one, a folder, or a model of the hub, fetched if need be."""
    name = str(name)
    if name == "default":
        return default_parent()
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if folder.suffix == ".gguf":
        raise ConfigError(f"{name}: unpack it first: heat prepare {name} -o FOLDER, then give the folder")
    if folder.exists() or not _HUB_NAME.fullmatch(name):
        raise ConfigError(
            f"{name}: no checkpoint there (config.json is missing); give a Hugging Face model folder, the name of a "
            "model on the hub, or 'default'"
        )
    return _hub_folder(name, fetch)


def _hub_folder(name: str, fetch: bool) -> Path:
    """Where the hub's files of a model lie: in its cache, or downloaded into it."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as err:
        raise MissingExtraError("train", needed_by="a model named on the Hugging Face hub") from err
    failure: Exception | None = None
    for cached in (True, False) if fetch else (True,):
        try:
            folder = Path(
                snapshot_download(name, allow_patterns=_HUB_FILES, ignore_patterns=["*/*"], local_files_only=cached)
            )
        except (OSError, ValueError) as err:
            failure = err
            continue
        if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
            return folder
        failure = ConfigError("it holds no config.json, or no safetensors weights")
    reason = str(failure).strip().splitlines()[0]
    raise ConfigError(
        f"{name}: neither a folder here, nor in the Hugging Face cache, nor to be had from the hub ({reason}); "
        "check the name and the connection, or give a folder"
    )
