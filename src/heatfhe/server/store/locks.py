# SPDX-License-Identifier: Apache-2.0
"""A lock for every client, so that nobody waits for another's disk work."""

from __future__ import annotations

import threading


class ClientLocks:
    """Locks by client. Their number is that of the registered clients, so none is ever dropped."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}

    def of(self, client: str) -> threading.RLock:
        """The lock of a client; its holder may take it again."""
        with self._guard:
            return self._locks.setdefault(client, threading.RLock())
