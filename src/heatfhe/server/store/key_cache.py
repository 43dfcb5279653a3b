# SPDX-License-Identifier: Apache-2.0
"""Keys from an object store, kept on a seat's own disk within a budget: the ones used longest ago go first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from heatfhe.files import atomic_write
from heatfhe.server.store.objects import Objects


def cache_folder(what: str) -> Path:
    """Where keys or models of an object store are kept on this machine: in HEATFHE_CACHE, or in the user's cache."""
    named = os.environ.get("HEATFHE_CACHE", "")
    return (Path(named) if named else Path.home() / ".cache" / "heatfhe") / what


class KeyCache:
    """Files named by hash in a folder of this machine, at most ``most`` bytes of them. Several workers may share it."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)

    def get(self, objects: Objects, name: str, sha256: str) -> bytes:
        """An object from here, or from its store; checked against its hash either way, and never used unchecked."""
        path = self._folder / sha256
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == sha256:
                _touch(path)
                return data
            path.unlink()
        data = objects.get(name, sha256)
        if len(data) <= self._most:
            with contextlib.suppress(OSError):  # a full disk: the key was fetched, and is used without being kept
                self._make_room(len(data))
                with atomic_write(path) as f:
                    f.write(data)
                _touch(path)
        return data

    def _make_room(self, size: int) -> None:
        held = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                held.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(each for _, each, _ in held) + size
        for _, each, path in sorted(held):
            if total <= self._most:
                return
            path.unlink(missing_ok=True)
            total -= each


def _touch(path: Path) -> None:
    """Note that a file is used now, more finely than a file system does by itself."""
    os.utime(path, ns=(time.time_ns(),) * 2)
