# SPDX-License-Identifier: Apache-2.0
"""Worker processes and the threads that feed them: one running job per device, one process per device and key set."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatfhe.server.work.orders import (
    Assignment,
    Broken,
    Cancel,
    Ended,
    GiveWay,
    Opening,
    Order,
    Progress,
    pack,
    unpack,
)
from heatfhe.server.work.seats import Key, WorkerDied, WorkerRefused

logger = logging.getLogger(__name__)


class WorkerProcess:
    """One worker and the pipes to it."""

    def __init__(self, opening: Opening, environment: Mapping[str, str]) -> None:
        source = str(Path(__file__).resolve().parents[3])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH", "")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "heatfhe.server.work.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
            text=True,
            encoding="utf-8",
        )
        self._lock = threading.Lock()
        self._tell(opening)
        first = self._listen()
        if isinstance(first, Broken):
            self.stop()
            raise WorkerRefused(first.code, first.message)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def run(self, order: Assignment) -> Iterator[Progress | Ended]:
        """Give a job; yields its progress, and last its end."""
        self._tell(order)
        while True:
            said = self._listen()
            yield said
            if isinstance(said, Ended):
                return

    def cancel(self, job: str) -> None:
        """Ask for the end of a job; it comes at the next bootstrap."""
        self._tell(Cancel(job))

    def give_way(self, job: str) -> None:
        """Ask a job to give up its turn; it does after the unit it is at."""
        self._tell(GiveWay(job))

    def stop(self) -> None:
        """End the process."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _tell(self, order: Opening | Order) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(pack(order))
                self._process.stdin.flush()
        except (OSError, ValueError) as err:
            raise WorkerDied from err

    def _listen(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerDied
        return unpack(line)


class Device:
    """A seat on this machine: the workers of one device, at most ``resident`` processes."""

    def __init__(self, name: str, *, resident: int, environment: Mapping[str, str], store: Path) -> None:
        """``store`` is the server's folder, as this machine sees it."""
        self._store = store.resolve()
        self.name, self.resident, self._environment = name, resident, dict(environment)
        self._workers: OrderedDict[Key, WorkerProcess] = OrderedDict()
        self._lock = threading.Lock()

    def open_keys(self) -> tuple[Key, ...]:
        """What is open, least recently used first."""
        with self._lock:
            return tuple(key for key, worker in self._workers.items() if worker.alive)

    def worker(self, key: Key, opening: Opening) -> WorkerProcess:
        """The process for a model and key set, started if need be."""
        with self._lock:
            found = self._workers.pop(key, None)
            if found is not None and not found.alive:
                found.stop()
                found = None
            extra = []
            while len(self._workers) >= self.resident:
                extra.append(self._workers.popitem(last=False)[1])
        for old in extra:
            old.stop()
        if found is None:
            began = time.monotonic()
            found = WorkerProcess(replace(opening, device=self.name, store=self._store), self._environment)
            logger.info("worker started device=%s seconds=%.2f", self.name, time.monotonic() - began)
        with self._lock:
            self._workers[key] = found
        return found

    def drop(self, key: Key) -> None:
        """End the worker of a key set, if there is one."""
        with self._lock:
            found = self._workers.pop(key, None)
        if found is not None:
            found.stop()

    def drop_where(self, test: Callable[[Key], bool]) -> None:
        """End every worker whose key passes a test."""
        with self._lock:
            keys = [key for key in self._workers if test(key)]
        for key in keys:
            self.drop(key)

    @property
    def count(self) -> int:
        """Processes alive."""
        with self._lock:
            return sum(w.alive for w in self._workers.values())

    def close(self) -> None:
        """End every worker."""
        self.drop_where(lambda _key: True)
