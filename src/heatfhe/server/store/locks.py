# SPDX-License-Identifier: Apache-2.0
"""A lock for every client that several processes share: files beside the clients' folders, locked by the system.

A process that is killed gives its locks back. The files stay, empty.
"""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path
from typing import BinaryIO

LOCKS = "locks"


class SharedLock:
    """A lock between threads and processes; its holder may take it again."""

    def __init__(self, path: Path) -> None:
        self._path, self._threads = path, threading.RLock()
        self._depth = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> None:
        self._threads.acquire()
        try:
            if self._file is None:
                file = self._path.open("ab")
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX)
                except BaseException:
                    file.close()
                    raise
                self._file = file
            self._depth += 1
        except BaseException:
            self._threads.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._file is not None:
            self._file.close()
            self._file = None
        self._threads.release()


class SharedLocks:
    """A shared lock for every client of a server's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / LOCKS
        self._guard = threading.Lock()
        self._locks: dict[str, SharedLock] = {}
        self._folder.mkdir(parents=True, exist_ok=True)

    def of(self, client: str) -> SharedLock:
        """The lock of a client."""
        with self._guard:
            return self._locks.setdefault(client, SharedLock(self._folder / client))
