# SPDX-License-Identifier: Apache-2.0
"""A fair queue: who was served longest ago comes next, a client's jobs stay in order, a session runs one at a time.

Opening a key set takes as long as many tokens. So a seat may pass over a client whose keys are open on another
seat, or whose opening would end a worker that has work, for as long as an opening took when last measured. It counts
from the first time the client was passed over since its last turn: after that, waiting has cost more than opening.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from heatfhe.server.work.seats import Key, Seat
from heatfhe.wire import Refusal


class _Waiting(NamedTuple):
    session: str
    job: str
    key: Key  # what its worker has open; empty where nobody knows
    since: float


class FairQueue:
    """Bounded, least recently served client first. ``take`` blocks until a job may run; ``close`` wakes everyone.

    A turn is remembered after its job has ended, so that a client who has just been served does not come before one
    who has not. A job that gave up its turn goes back to the head of its client's row. Seats that have joined are
    served with affinity, as above; a ``take`` without a seat knows none.
    """

    def __init__(self, *, most: int, most_per_client: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._most_per_client, self._clock = most, most_per_client, clock
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        self._busy: dict[str, Key] = {}  # session -> what its job's worker has open
        self._served: dict[str, int] = {}  # client -> number of its last turn, for registered clients only
        self._seats: dict[str, tuple[Seat, Key]] = {}  # name -> the seat and what it was last given
        self._passed: dict[str, float] = {}  # client -> when it was first passed over, since its last turn
        self._opening: dict[str, float] = {}  # configuration -> seconds its last opening took
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

    def put(self, client: str, session: str, job: str, *, key: Key | None = None, first: bool = False) -> None:
        """Add a job that passed check_room; ``first`` puts back one that gave up its turn, whose key is known."""
        with self._changed:
            row = self._waiting.setdefault(client, deque())
            known = self._busy.get(session, ()) if key is None else key
            (row.appendleft if first else row.append)(_Waiting(session, job, known, self._clock()))
            self._changed.notify_all()

    def join(self, seat: Seat) -> None:
        """A seat begins to take jobs; from now on the others know what it has open."""
        with self._changed:
            self._seats[seat.name] = (seat, ())

    def leave(self, seat: Seat) -> None:
        """A seat takes no more jobs: what it had open is open nowhere, and its ``take`` ends with None."""
        with self._changed:
            self._seats.pop(seat.name, None)
            self._changed.notify_all()

    def opened(self, key: Key, seconds: float) -> None:
        """A seat has opened a key set, in this time."""
        with self._changed:
            self._opening[key[0]] = seconds

    def take(self, timeout: float | None = None, *, seat: Seat | None = None) -> str | None:
        """The next job whose turn it is, or None after ``timeout`` or on close. The caller ends with ``release``."""
        ends = None if timeout is None else self._clock() + timeout
        with self._changed:
            if seat is not None and seat.name in self._seats:
                self._seats[seat.name] = (seat, ())
            while not self._closed and (seat is None or seat.name in self._seats):
                client, again = self._choose(seat)
                if client is not None:
                    return self._give(client, seat)
                now = self._clock()
                if ends is not None and now >= ends:
                    return None
                wait = min((t - now for t in (ends, again) if t is not None), default=None)
                self._changed.wait(wait)
            return None

    def _give(self, client: str, seat: Seat | None) -> str:
        """A client's turn: its first job that may run."""
        row, ready = self._waiting[client], self._ready(client)
        assert ready is not None
        row.remove(ready)
        if not row:
            del self._waiting[client]
        self._turns += 1
        self._served[client] = self._turns
        self._passed.pop(client, None)
        self._busy[ready.session] = ready.key
        if seat is not None:
            self._seats[seat.name] = (seat, ready.key)
        return ready.job

    def _choose(self, seat: Seat | None, running: str = "") -> tuple[str | None, float | None]:
        """Whose turn it is on a seat, and if nobody's, when to look again. ``running`` has the seat now."""
        order = [(client, ready) for client in self._order() if client != running and (ready := self._ready(client))]
        if seat is None:
            return (order[0][0] if order else None), None
        here = set(seat.open_keys())
        mine = bool(running) or any(ready.key in here for _, ready in order)
        now, again = self._clock(), list[float]()
        for client, ready in order:
            cost = self._cost(ready.key, seat, here, mine)
            due = self._passed.get(client, now) + cost
            if now >= due:
                return client, None
            self._passed.setdefault(client, now)
            again.append(due)
        return None, min(again, default=None)

    def _cost(self, key: Key, seat: Seat, here: set[Key], mine: bool) -> float:
        """Seconds of opening that taking a job to a seat costs beyond what it costs anyway: where its keys are open
        on another seat, and where a full seat has to end a worker though it has work (``mine``) or another has room."""
        if not key or key in here:
            return 0.0
        others = [({*other.open_keys(), last} - {()}, other.resident) for name, (other, last) in self._seats.items()
                  if name != seat.name]  # fmt: skip
        elsewhere = any(key in there for there, _ in others)
        ends = len(here) >= seat.resident and (mine or any(len(there) < most for there, most in others))
        return self._opening.get(key[0], 0.0) * (elsewhere + ends)

    def _ready(self, client: str) -> _Waiting | None:
        """A client's first job whose session is free."""
        return next((each for each in self._waiting[client] if each.session not in self._busy), None)

    def longest_wait(self) -> float:
        """For how many seconds the job that could run now and has waited longest has done so; 0 where there is none."""
        with self._changed:
            ready = [each.since for client in self._waiting if (each := self._ready(client))]
            return self._clock() - min(ready, default=self._clock())

    def others_wait(self, client: str, *, seat: Seat | None = None) -> bool:
        """Whether a job of another client should run now, in place of this client's, which has the seat."""
        with self._changed:
            return self._choose(seat, running=client)[0] is not None

    def _order(self) -> list[str]:
        """Waiting clients, the one served longest ago first; those never served as they came."""
        return sorted(self._waiting, key=lambda client: self._served.get(client, 0))

    def release(self, session: str) -> None:
        """A session's job has ended."""
        with self._changed:
            self._busy.pop(session, None)
            self._changed.notify_all()

    def remove(self, job: str) -> bool:
        """Take a waiting job out; False if it is not waiting."""
        with self._changed:
            for client, row in self._waiting.items():
                for pair in row:
                    if pair.job == job:
                        row.remove(pair)
                        if not row:
                            del self._waiting[client]
                            self._passed.pop(client, None)
                        return True
            return False

    def ahead(self, job: str) -> int | None:
        """How many jobs run before this one if nobody else comes: a public fact. None if it is not waiting."""
        with self._changed:
            order = self._order()
            for rank, client in enumerate(order):
                for place, pair in enumerate(self._waiting[client]):
                    if pair.job == job:
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
