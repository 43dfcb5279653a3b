# SPDX-License-Identifier: Apache-2.0
"""A store of encoded plaintexts with an owner and a byte count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Key = tuple[Any, int]


class Encodings:
    """Encoded plaintexts by key and level, within a byte budget. What fits stays, the rest is made each time.

    Nothing leaves for its equals: a plan walks through its plaintexts in a cycle, and whatever a cycle evicts it soon
    needs again. Spare ones, which a conversation meets once, leave where another has no room beside them.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._lock = threading.RLock()
        self._held: dict[Key, Any] = {}
        self._spare: dict[Key, int] = {}  # bytes

    def get(self, key: Key, size: int, make: Callable[[bool], Any], *, spare: bool = False) -> Any:
        """The encoding under this key; make is told whether what it makes will be kept."""
        with self._lock:
            if not spare:
                self._spare.pop(key, None)  # from now on it stays
            if key in self._held:
                return self._held[key]
            if not spare:
                self._make_room(size)
            kept = self.used + size <= self.budget
            plain = make(kept)
            if kept:
                self._held[key] = plain
                self.used += size
                if spare:
                    self._spare[key] = size
            return plain

    def _make_room(self, size: int) -> None:
        """Let go of as many spare ones as it takes, of none where all are too few."""
        if self.used - sum(self._spare.values()) + size > self.budget:
            return
        while self.used + size > self.budget:
            key, freed = self._spare.popitem()
            del self._held[key]
            self.used -= freed
