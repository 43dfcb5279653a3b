# SPDX-License-Identifier: Apache-2.0
"""Events of running jobs, from dispatcher threads to listeners of server-sent events. Public facts only."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

_KEPT, _KEPT_OF_ENDED = 256, 16
FACTS = frozenset(
    {"state", "ahead", "unit", "units", "kind", "step", "steps", "bootstrap", "bootstraps", "eta_s", "outputs", "error"}
    | {"exceeded"}  # of simulated models alone
)


class EventHub:
    """The last events of every job, numbered, and a way to wait for the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, deque[tuple[int, dict[str, Any]]]] = {}
        self._numbers: dict[str, int] = {}
        self._waiters: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    def publish(self, job: str, **facts: Any) -> None:
        """Add an event. A fact outside the public list is a programming error."""
        if not FACTS.issuperset(facts):
            raise ValueError(f"not a public fact: {sorted(set(facts) - FACTS)}")
        with self._lock:
            number = self._numbers.get(job, 0) + 1
            self._numbers[job] = number
            self._events.setdefault(job, deque(maxlen=_KEPT)).append((number, facts))
            waiters = list(self._waiters.get(job, ()))
        for loop, event in waiters:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # that loop has ended with its listener

    def since(self, job: str, number: int) -> list[tuple[int, dict[str, Any]]]:
        """Events after a number; those too old to be kept are left out."""
        with self._lock:
            return [pair for pair in self._events.get(job, ()) if pair[0] > number]

    def settle(self, job: str) -> None:
        """Keep only the last events of a job that has ended: records of ended jobs stay for a day."""
        with self._lock:
            if (row := self._events.get(job)) is not None:
                self._events[job] = deque(list(row)[-_KEPT_OF_ENDED:], maxlen=_KEPT_OF_ENDED)

    def forget(self, job: str) -> None:
        """Drop the events of a job that is gone."""
        with self._lock:
            self._events.pop(job, None)
            self._numbers.pop(job, None)

    async def wait(self, job: str, number: int, timeout: float) -> None:
        """Return when there is an event after ``number``, or after ``timeout`` seconds."""
        entry = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiters.setdefault(job, set()).add(entry)
        try:
            if not self.since(job, number):
                await asyncio.wait_for(entry[1].wait(), timeout)
        except asyncio.TimeoutError:
            return
        finally:
            with self._lock:
                waiters = self._waiters.get(job, set())
                waiters.discard(entry)
                if not waiters:
                    self._waiters.pop(job, None)
