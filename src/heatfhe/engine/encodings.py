# SPDX-License-Identifier: Apache-2.0
"""A cache of encoded plaintexts with an owner and a byte count."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class Encodings:
    """Encoded plaintexts by key and level, least recently used ones leaving first, within a byte budget."""

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[Any, int], tuple[Any, int]] = OrderedDict()

    def get(self, key: tuple[Any, int], size: int, make: Callable[[], Any]) -> Any:
        """The encoding under this key, made and kept if it is not there and fits."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key][0]
        plain = make()
        with self._lock:
            if key not in self._held and size <= self.budget:
                self._held[key] = plain, size
                self.used += size
                while self.used > self.budget:
                    _, (_, freed) = self._held.popitem(last=False)
                    self.used -= freed
        return plain
