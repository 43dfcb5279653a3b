# SPDX-License-Identifier: Apache-2.0
"""How much disk one client may fill: asked before every byte that is kept, uploads on their way included."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatfhe.server.store.disk import folder_bytes, need_room
from heatfhe.server.store.objects import Objects
from heatfhe.wire import Refusal

INCOMING = "incoming"  # uploads on their way; they count by what they were announced with


def client_bytes(folder: Path) -> int:
    """Bytes a client's folder holds, without uploads on their way."""
    return folder_bytes(folder) - folder_bytes(folder / INCOMING)


def stored_bytes(part: Objects) -> int:
    """The same for a client's part of an object store."""
    return sum(size for name, size in part.listing().items() if not name.startswith(f"{INCOMING}/"))


def over_quota(size: int, used: int, most: int) -> Refusal:
    """The refusal for bytes that do not fit."""
    return Refusal("quota", f"{size} bytes do not fit: {used} of {most} are used", "delete sessions or key sets")


class ClientLocks:
    """A lock for every client, so that nobody waits for another's disk work; as many as there are clients."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}

    def of(self, client: str) -> threading.RLock:
        """The lock of a client; its holder may take it again."""
        with self._guard:
            return self._locks.setdefault(client, threading.RLock())


class Quota:
    """The share of every client below one folder, and the free bytes that the disk must keep."""

    def __init__(self, folder: Path, *, most: int, reserve: int, objects: Objects | None = None) -> None:
        self._folder, self._most, self._reserve, self._objects = folder, most, reserve, objects
        self._held: Counter[str] = Counter()
        self._lock, self._locks = threading.Lock(), ClientLocks()

    def check(self, client: str, size: int) -> None:
        """Refuse bytes that this client, or the disk, has no room for."""
        with self._locks.of(client):
            self._take(client, size, kept=0)

    @contextmanager
    def hold(self, client: str, size: int) -> Iterator[None]:
        """Set bytes aside while an upload of this size is on its way: uploads at once cannot share the same room."""
        with self._locks.of(client):
            self._take(client, size, kept=size)
        try:
            yield
        finally:
            with self._lock:
                self._held[client] -= size

    def _take(self, client: str, size: int, *, kept: int) -> None:
        """Counting a client's files takes a while, so only the client's own lock is held meanwhile."""
        used = client_bytes(self._folder / client) + self._held[client]
        used += 0 if self._objects is None else stored_bytes(self._objects.below(client))
        if used + size > self._most:
            raise over_quota(size, used, self._most)
        with self._lock:
            need_room(self._folder, size + self._held.total(), reserve=self._reserve)
            self._held[client] += kept
