# SPDX-License-Identifier: Apache-2.0
"""Where a client keeps its things on disk: folders that only their owner may read."""

from __future__ import annotations

from pathlib import Path

from heatfhe.errors import ConfigError


def default_home() -> Path:
    """Where keys are kept unless a user says otherwise."""
    return Path.home() / ".heatfhe"


def client_folder(folder: Path | None = None) -> Path:
    """Make a client's folder at mode 0700; the default is ~/.heatfhe.

    The default one is tightened if others may read it. A folder that a user named may be shared on purpose, and keeps
    its mode.
    """
    folder = default_home() if folder is None else folder
    return private_folder(folder, tighten=folder == default_home())


def private_folder(folder: Path, *, tighten: bool = True) -> Path:
    """Make a folder that only its owner may read; ``tighten`` one that is there already."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if tighten and folder.stat().st_mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError as err:
            raise ConfigError(
                f"{folder}: others on this machine may read it, and it cannot be made private ({err.strerror}); "
                "choose another folder with --keys"
            ) from err
    return folder
