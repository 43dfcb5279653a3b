# SPDX-License-Identifier: Apache-2.0
"""A fair queue: who was served longest ago comes next, a client's jobs stay in order, a session runs one at a time."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from heatfhe.wire import Refusal


class FairQueue:
    """Bounded, least recently served client first. ``take`` blocks until a job may run; ``close`` wakes everyone.

    A turn is remembered after its job has ended, so that a client who has just been served does not come before one
    who has not. A job that gave up its turn goes back to the head of its client's row.
    """

    def __init__(self, *, most: int, most_per_client: int) -> None:
        self._most, self._most_per_client = most, most_per_client
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[tuple[str, str]]] = OrderedDict()
        self._busy: set[str] = set()
        self._served: dict[str, int] = {}  # client -> number of its last turn, for registered clients only
        self._turns = 0
        self._closed = False

    def check_room(self, client: str, *, seconds_per_job: float) -> None:
        """Refuse a job that would not fit, with an estimate of when it would."""
        with self._changed:
            total = sum(len(q) for q in self._waiting.values())
            mine = len(self._waiting.get(client, ()))
        wait = max(1.0, seconds_per_job)
        if mine >= self._most_per_client:
            raise Refusal(
                "queue_full", f"{mine} of this client's jobs are waiting", "let one end first", retry_after=wait
            )
        if total >= self._most:
            raise Refusal("busy", f"{total} jobs are waiting", "try again later", retry_after=wait)

    def put(self, client: str, session: str, job: str, *, first: bool = False) -> None:
        """Add a job that passed check_room; ``first`` puts back one that gave up its turn."""
        with self._changed:
            row = self._waiting.setdefault(client, deque())
            (row.appendleft if first else row.append)((session, job))
            self._changed.notify_all()

    def take(self, timeout: float | None = None) -> str | None:
        """The next job whose turn it is, or None after ``timeout`` or on close. The caller ends with ``release``."""
        with self._changed:
            while not self._closed:
                for client in self._order():
                    row = self._waiting[client]
                    ready = next((pair for pair in row if pair[0] not in self._busy), None)
                    if ready is None:
                        continue
                    row.remove(ready)
                    if not row:
                        del self._waiting[client]
                    self._turns += 1
                    self._served[client] = self._turns
                    self._busy.add(ready[0])
                    return ready[1]
                if not self._changed.wait(timeout):
                    return None
            return None

    def others_wait(self, client: str) -> bool:
        """Whether a job of another client could run now."""
        with self._changed:
            return any(
                pair[0] not in self._busy for other, row in self._waiting.items() if other != client for pair in row
            )

    def _order(self) -> list[str]:
        """Waiting clients, the one served longest ago first; those never served as they came."""
        return sorted(self._waiting, key=lambda client: self._served.get(client, 0))

    def release(self, session: str) -> None:
        """A session's job has ended."""
        with self._changed:
            self._busy.discard(session)
            self._changed.notify_all()

    def remove(self, job: str) -> bool:
        """Take a waiting job out; False if it is not waiting."""
        with self._changed:
            for client, row in self._waiting.items():
                for pair in row:
                    if pair[1] == job:
                        row.remove(pair)
                        if not row:
                            del self._waiting[client]
                        return True
            return False

    def ahead(self, job: str) -> int | None:
        """How many jobs run before this one if nobody else comes: a public fact. None if it is not waiting."""
        with self._changed:
            order = self._order()
            for rank, client in enumerate(order):
                for place, pair in enumerate(self._waiting[client]):
                    if pair[1] == job:
                        sooner = sum(min(len(self._waiting[c]), place + 1) for c in order[:rank])
                        return place + sooner + sum(min(len(self._waiting[c]), place) for c in order[rank + 1 :])
            return None

    def __len__(self) -> int:
        with self._changed:
            return sum(len(q) for q in self._waiting.values())

    def close(self) -> None:
        """Wake every taker with None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
