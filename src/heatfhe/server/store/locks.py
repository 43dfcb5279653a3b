# SPDX-License-Identifier: Apache-2.0
"""Locks between processes: one for every client, files beside the clients' folders; and patience for the folder's own.

A process that is killed gives its locks back. The files stay, empty.
"""

from __future__ import annotations

import fcntl
import threading
import time
from pathlib import Path
from typing import BinaryIO

from heatfhe.errors import ConfigError
from heatfhe.server.store.hold import FolderLock

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


def await_folder(folder: Path, seconds: float) -> FolderLock:
    """The right to serve a folder, as soon as a process that is about to end gives it back."""
    ends = time.monotonic() + seconds
    while True:
        try:
            return FolderLock(folder)
        except ConfigError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)
