# SPDX-License-Identifier: Apache-2.0
"""Uploads that fronts are writing: room is set aside for each until it becomes a job, is given up, or is too late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from heatfhe.server.service import Service
from heatfhe.wire import Refusal


class Holds:
    """One per desk. A front that was killed gives nothing back, so no upload has its room for longer than ``seconds``;
    whoever comes later than that is refused, and sends it again."""

    def __init__(self, service: Service, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._service, self._seconds, self._clock = service, seconds, clock
        self._lock = threading.Lock()
        self._held: dict[str, tuple[ExitStack, float]] = {}  # name in the folder -> how to end it, and when

    def give(self, client: str, size: int) -> str:
        """Set room aside; the name of the file that may be written, in the server's folder."""
        with self._lock:
            late = [name for name, (_, ends) in self._held.items() if ends < self._clock()]
        for name in late:
            self.end(name)
        stack = ExitStack()
        path = stack.enter_context(self._service.incoming(client, size))
        name = str(path.relative_to(self._service.settings.folder))
        with self._lock:
            self._held[name] = (stack, self._clock() + self._seconds)
        return name

    def end(self, name: str) -> None:
        """Give the room back; what was written goes, unless it became a job."""
        with self._lock:
            stack, _ = self._held.pop(name, (None, 0.0))
        if stack is not None:
            stack.close()

    @contextmanager
    def taken(self, name: str) -> Iterator[Path]:
        """The file of an upload that is to become a job now. One that nobody here gave room to is of a former desk."""
        with self._lock:
            stack, _ = self._held.pop(name, (None, 0.0))
        if stack is None:
            raise gone()
        with stack:
            yield self._service.settings.folder / name


def gone() -> Refusal:
    """The refusal while a desk is starting again, or for what only a former one knew."""
    return Refusal("busy", "the server is starting again", "try again in a moment", retry_after=1)
