# SPDX-License-Identifier: Apache-2.0
"""heat serve --fronts: a desk on Ray and HTTP processes on one listening socket; one that ends is started again."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from heatfhe.cli.listen import Surface
from heatfhe.errors import ConfigError
from heatfhe.files import plain
from heatfhe.server import Settings, start_desk

logger = logging.getLogger(__name__)
_LOOK_SECONDS, _END_SECONDS = 0.5, 15.0
_LEAST_LIFE = 5.0  # seconds between two starts of one front: whatever ends it must not take a core for itself


class Fronts:
    """The HTTP processes of this machine. The socket is this process's, so callers wait while a front is replaced."""

    def __init__(self, settings: Settings, surface: Surface, listener: socket.socket, address: str) -> None:
        told = {"settings": plain(settings), "surface": plain(surface)}
        self._told = json.dumps({**told, "address": address, "listener": listener.fileno()})
        self._listener = listener
        self._running = [self._start() for _ in range(settings.fronts)]
        self._began = [time.monotonic()] * settings.fronts

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [front.pid for front in self._running]

    def wait_ready(self) -> None:
        """Return when all of them serve."""
        for front in self._running:
            assert front.stdout is not None
            if not front.stdout.readline():
                raise ConfigError(f"a front did not start (exit code {front.wait()}); the log says why")

    def look(self) -> None:
        """Start those again that have ended."""
        for number, front in enumerate(self._running):
            code, now = front.poll(), time.monotonic()
            if code is not None and now - self._began[number] >= _LEAST_LIFE:
                logger.warning("a front ended and is started again code=%d", code)
                self._running[number], self._began[number] = self._start(), now

    def close(self) -> None:
        """End all: their inputs end, and whoever does not follow is terminated."""
        for front in self._running:
            assert front.stdin is not None
            front.stdin.close()
        for front in self._running:
            try:
                front.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                front.kill()
                front.wait()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "heatfhe.cli.front"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        front = subprocess.Popen(command, pass_fds=[self._listener.fileno()], **pipes)
        assert front.stdin is not None
        front.stdin.write(self._told + "\n")
        front.stdin.flush()
        return front


def serve_fronts(
    settings: Settings,
    surface: Surface,
    listener: socket.socket,
    *,
    announce: Callable[[dict[str, Any]], None],
    ends_with: int | None = None,
) -> None:
    """Serve until interrupted; ``announce`` is called once, with the processes, when everything answers."""
    stop = threading.Event()
    listener.listen(2048)
    desk = start_desk(settings)
    try:
        fronts = Fronts(settings, surface, listener, desk.address)
        try:
            fronts.wait_ready()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stop.set())
            announce({"fronts": fronts.pids, "desk": int(desk.facts()["pid"])})
            while not stop.wait(_LOOK_SECONDS):
                if ends_with is not None and os.getppid() != ends_with:
                    break
                fronts.look()
        finally:
            fronts.close()
    finally:
        desk.close()
