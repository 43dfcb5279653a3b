# SPDX-License-Identifier: Apache-2.0
"""Folders to the Hugging Face hub: a model repository of it holds one circuit, or one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError, MissingExtraError


def hub_library() -> Any:
    """The hub's own library, or the extra that brings it."""
    try:
        import huggingface_hub
    except ModuleNotFoundError as err:
        raise MissingExtraError("train", needed_by="the Hugging Face hub") from err
    return huggingface_hub


def upload_folder(folder: Path, name: str, message: str, *, private: bool, token: str | None) -> str:
    """Upload a folder as one commit of a model repository, made if need be; returns its address."""
    api = hub_library().HfApi(token=token)
    try:
        url = str(api.create_repo(name, private=private, exist_ok=True))
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    except (OSError, ValueError) as err:
        reason = str(err).strip().splitlines()[0]
        raise ConfigError(
            f"{name}: the hub does not take it ({reason}); log in with: hf auth login, or give token="
        ) from err
    return url
