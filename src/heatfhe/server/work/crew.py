# SPDX-License-Identifier: Apache-2.0
"""How many seats a server has: as few as it may, more while jobs wait too long, fewer again once seats are idle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from heatfhe.errors import HeatError, MissingExtraError
from heatfhe.server.faults import log_fault
from heatfhe.server.metrics import Metrics
from heatfhe.server.settings import Settings
from heatfhe.server.work.dispatch import Dispatcher
from heatfhe.server.work.queue import FairQueue
from heatfhe.server.work.seats import Seat, WorkerDied

if TYPE_CHECKING:
    from heatfhe.server.work.ray_desk import OwnedDesk, RayDesk

logger = logging.getLogger(__name__)
_LOOKS_PER_WAIT = 4  # how often it looks within the time after which a seat is added or taken away


class Crew:
    """Keeps ``least`` to ``most`` seats, made by ``make`` from a number of their own.

    A seat is added when a job that could run has waited for ``grow_seconds`` and the last change is as long ago, so
    that one seat can show what it changes before the next comes. One that has had nothing to do for ``idle_seconds``
    goes; it ends the job it has, if one comes at that moment, and then its workers.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        queue: FairQueue,
        make: Callable[[int], Seat],
        *,
        least: int,
        most: int,
        grow_seconds: float,
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher, self._queue, self._make, self._clock = dispatcher, queue, make, clock
        self._least, self._most, self._grow, self._idle = least, most, grow_seconds, idle_seconds
        self._made, self._changed = 0, clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Add the seats there always are, and watch the queue if there may be more."""
        for _ in range(self._least):
            self._add()
        if self._most > self._least:
            self._thread.start()

    def look(self) -> None:
        """Add a seat, take one away, or leave it."""
        now, idle = self._clock(), self._dispatcher.idle()
        if idle:
            longest, seat = max(((now - since, seat) for seat, since in idle), key=lambda pair: pair[0])
            if longest >= self._idle and len(self._dispatcher.seats) > self._least:
                self._dispatcher.remove(seat)
                self._changed = now
                logger.info("a seat was idle and goes seats=%d", len(self._dispatcher.seats))
        elif (
            len(self._dispatcher.seats) < self._most and self._queue.longest_wait() >= self._grow <= now - self._changed
        ):
            self._add()
            logger.info("jobs waited and a seat comes seats=%d", len(self._dispatcher.seats))

    def close(self) -> None:
        """Stop watching; the dispatcher ends the seats."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _add(self) -> None:
        self._made += 1
        self._dispatcher.add(self._make(self._made))
        self._changed = self._clock()

    def _watch(self) -> None:
        while not self._stop.wait(min(self._grow, self._idle) / _LOOKS_PER_WAIT):
            try:
                self.look()
            except (HeatError, WorkerDied, OSError) as err:
                log_fault(logger, "the number of seats could not be changed", err)


class Cluster(Protocol):
    """Machines that seats are made on."""

    def seat(self, number: int) -> Seat:
        """A seat that can take jobs."""

    def close(self) -> None:
        """Leave the cluster; its seats end."""


@contextmanager
def _extra() -> Iterator[None]:
    """Say what to install where Ray is missing."""
    try:
        yield
    except ModuleNotFoundError as err:
        if err.name != "ray":
            raise
        raise MissingExtraError("ray", needed_by="a server with seats or fronts on Ray") from err


def connect(settings: Settings) -> Cluster:
    """The Ray cluster that settings name."""
    with _extra():
        from heatfhe.server.work.ray_seat import Cluster as RayCluster
    return RayCluster(settings)


def start_desk(settings: Settings) -> OwnedDesk:
    """A desk on the cluster that settings name, for fronts in other processes."""
    with _extra():
        from heatfhe.server.work.ray_desk import OwnedDesk
    return OwnedDesk(settings)


def reach_desk(settings: Settings, metrics: Metrics, address: str) -> RayDesk:
    """The desk that another process has started on the cluster at an address."""
    with _extra():
        from heatfhe.server.work.ray_desk import RayDesk
    return RayDesk(settings, metrics, address=address)


def hire(settings: Settings, cluster: Cluster, dispatcher: Dispatcher, queue: FairQueue) -> Crew:
    """A crew on a cluster, as settings say."""
    least, most = settings.seats
    return Crew(
        dispatcher,
        queue,
        cluster.seat,
        least=least,
        most=most,
        grow_seconds=settings.grow_seconds,
        idle_seconds=settings.idle_seconds,
    )
