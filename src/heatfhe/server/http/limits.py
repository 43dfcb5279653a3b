# SPDX-License-Identifier: Apache-2.0
"""What one caller may use at once: a bucket of requests, slots for transfers, lanes of threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from heatfhe.wire import Refusal

_MOST_CALLERS = 10_000


class RateLimiter:
    """Allows ``per_second`` requests on average and ``burst`` at once, for every caller by itself."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, caller: str, now: float, *, cost: float = 1.0) -> None:
        """Take from the caller's bucket, or refuse with the seconds until it would do. No cost exceeds a full one."""
        cost = min(cost, float(self._burst))
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


class Slots:
    """At most ``most`` transfers of one kind for every client at once. For the event loop alone."""

    def __init__(self, what: str, most: int, *, retry_after: float = 1.0) -> None:
        self._what, self._most, self._wait = what, most, retry_after
        self._held: Counter[str] = Counter()

    def check(self, client: str) -> None:
        """Refuse where every slot of a client is taken."""
        if self._held[client] >= self._most:
            what = f"{self._most} {self._what} of this client are on their way"
            raise Refusal("rate", what, "let one end first", retry_after=self._wait)

    @contextmanager
    def taken(self, client: str) -> Iterator[None]:
        """Hold a slot."""
        self.check(client)
        self._held[client] += 1
        try:
            yield
        finally:
            self._held[client] -= 1
            if not self._held[client]:
                del self._held[client]


class Lanes:
    """Every client has ``wide`` lanes: who finds its own full waits, and takes nothing that others wait for.

    All requests share one pool of threads. Without lanes one client whose calls are slow would fill it.
    """

    def __init__(self, wide: int) -> None:
        self._wide = wide
        self._lanes: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a lane and hold it."""
        free, users = self._lanes.setdefault(client, (asyncio.Semaphore(self._wide), []))
        users.append(None)
        try:
            async with free:
                yield
        finally:
            users.pop()
            if not users:
                self._lanes.pop(client, None)
