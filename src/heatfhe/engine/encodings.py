# SPDX-License-Identifier: Apache-2.0
"""A store of encoded plaintexts with an owner and a byte count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Encodings:
    """Encoded plaintexts by key and level, within a byte budget. What fits stays, the rest is made each time.

    Nothing leaves: a plan walks through its plaintexts in a cycle, and whatever a cycle evicts it soon needs again.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._lock = threading.RLock()
        self._held: dict[tuple[Any, int], Any] = {}

    def get(self, key: tuple[Any, int], size: int, make: Callable[[bool], Any]) -> Any:
        """The encoding under this key; make is told whether what it makes will be kept."""
        with self._lock:
            if key in self._held:
                return self._held[key]
            kept = self.used + size <= self.budget
            plain = make(kept)
            if kept:
                self._held[key] = plain
                self.used += size
            return plain
