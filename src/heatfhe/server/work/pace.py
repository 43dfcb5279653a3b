# SPDX-License-Identifier: Apache-2.0
"""When a job's state is stored: as often as a tenth of its computing pays for, and no more often than is of use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heatfhe.planning import SNAPSHOT_SECONDS, SNAPSHOT_SHARE


class Pace:
    """Keeps the accounts of one worker: what the last snapshot cost, and what the job at hand has computed and stored.

    A snapshot is due when ``least`` seconds were computed since the last one and the budget pays for it and for the
    one at the job's end, which is always taken. The first of a worker is due at once: nobody knows yet what it costs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cost: float | None = None
        self.begin(SNAPSHOT_SECONDS)

    def begin(self, least: float) -> None:
        """Another job, or another turn of one."""
        self._least = least
        self.computed = self.stored = self._since = 0.0

    @property
    def due(self) -> bool:
        """Whether the unit that has just ended should be stored."""
        if self._cost is None:
            return True
        return self._since >= self._least and self.stored + 2 * self._cost <= SNAPSHOT_SHARE * self.computed

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A unit is computed meanwhile."""
        began = self._clock()
        yield
        spent = self._clock() - began
        self.computed, self._since = self.computed + spent, self._since + spent

    @contextmanager
    def storing(self) -> Iterator[None]:
        """A snapshot is stored meanwhile."""
        began = self._clock()
        yield
        self._cost = self._clock() - began
        self.stored, self._since = self.stored + self._cost, 0.0
