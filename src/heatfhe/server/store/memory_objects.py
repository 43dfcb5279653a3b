# SPDX-License-Identifier: Apache-2.0
"""Objects in a dictionary: one process, gone with it."""

from __future__ import annotations

import threading

from heatfhe.server.store.objects import Objects, checked_name, sha256_of


class MemoryObjects(Objects):
    """What an object store does, without one."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes) -> str:
        with self._lock:
            self._held[checked_name(name)] = bytes(data)
        return sha256_of(data)

    def create(self, name: str, data: bytes) -> bool:
        with self._lock:
            return self._held.setdefault(checked_name(name), mine := bytes(bytearray(data))) is mine

    def read(self, name: str) -> bytes | None:
        with self._lock:
            return self._held.get(checked_name(name))

    def listing(self, prefix: str = "") -> dict[str, int]:
        start = f"{checked_name(prefix)}/" if prefix else ""
        with self._lock:
            return {name: len(data) for name, data in sorted(self._held.items()) if name.startswith(start)}

    def delete(self, name: str) -> None:
        with self._lock:
            self._held.pop(checked_name(name), None)
