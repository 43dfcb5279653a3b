# SPDX-License-Identifier: Apache-2.0
"""Rate limits: one token bucket per caller, kept in bounded memory."""

from __future__ import annotations

import threading
from collections import OrderedDict

from heatfhe.wire import Refusal

_MOST_CALLERS = 10_000


class RateLimiter:
    """Allows ``per_second`` requests on average and ``burst`` at once, for every caller by itself."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, caller: str, now: float, *, cost: float = 1.0) -> None:
        """Take from the caller's bucket, or refuse with the seconds until it would do."""
        with self._lock:
            left, then = self._buckets.pop(caller, (float(self._burst), now))
            left = min(self._burst, left + max(0.0, now - then) * self._per_second)
            allowed = left >= cost
            self._buckets[caller] = (left - cost if allowed else left, now)
            while len(self._buckets) > _MOST_CALLERS:
                self._buckets.popitem(last=False)
        if not allowed:
            wait = (cost - left) / self._per_second
            raise Refusal("rate", "too many requests", f"wait {wait:.1f} s and try again", retry_after=wait)
