# SPDX-License-Identifier: Apache-2.0
"""One server per folder: a lock taken before anything in it is read or changed, which ends with its process."""

from __future__ import annotations

import fcntl
from pathlib import Path

from heatfhe.errors import ConfigError


class FolderLock:
    """The right to serve a folder. Taking it changes nothing that a running server has."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "lock").open("ab")
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            self._file.close()
            raise ConfigError(
                f"{folder}: another server uses this folder; stop it first, or serve from another --folder"
            ) from err

    def close(self) -> None:
        """Give the folder back."""
        self._file.close()

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
