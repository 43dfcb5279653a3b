# SPDX-License-Identifier: Apache-2.0
"""The time that ages are judged by: the wall clock's while that behaves, and never far from what really passed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from heatfhe.errors import FileFormatError
from heatfhe.files import read_json, write_json

KIND, VERSION = "heatfhe-clock", 1
DOWN_SECONDS = 43_200.0


class SteadyClock:
    """Seconds since 1970, as a wall clock gives them that cannot jump.

    While the server runs, the monotonic clock leads: where the wall clock is ahead this one runs at most twice as fast,
    where it is behind at least half as fast, until they agree again. Between two runs at most half a day passes. So a
    thing that may be kept for t seconds is kept for at least (t - DOWN_SECONDS) / 2 seconds of serving, whatever an
    administrator, a virtual machine or a time server does to the wall clock meanwhile.
    """

    def __init__(
        self,
        path: Path,
        *,
        wall: Callable[[], float] = lambda: time.time(),
        passed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._wall, self._passed = path, wall, passed
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._now, self._then = wall(), passed()

    def start(self) -> None:
        """Go on from where the last run of this folder ended."""
        with self._lock:
            wall = self._wall()
            self._now, self._then = wall, self._passed()
            if self._path.exists():
                with contextlib.suppress(FileFormatError, TypeError, KeyError):
                    body = read_json(self._path, KIND, (VERSION,))
                    self._now = float(body["now"]) + min(max(wall - float(body["wall"]), 0.0), DOWN_SECONDS)
        self.save()

    def now(self) -> float:
        """The time now; it never goes back."""
        with self._lock:
            passed = self._passed()
            spent, self._then = max(0.0, passed - self._then), passed
            self._now += min(max(self._wall() - self._now, spent / 2), 2 * spent)
            return self._now

    def save(self) -> None:
        """Note where this run is, for the next one. A full disk is no reason to stop."""
        with self._saving, contextlib.suppress(OSError):
            body = {"now": self.now(), "wall": self._wall()}
            write_json(self._path, KIND, VERSION, body)
