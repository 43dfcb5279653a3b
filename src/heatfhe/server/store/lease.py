# SPDX-License-Identifier: Apache-2.0
"""The right to change a session, for a time and under a number: whoever is cut off cannot write over its successor.

    turns/00000007/lease.json     who has turn 7 and how often it has said that it lives; written by that holder alone
    turns/00000007/journal.json   what the session is, as of that turn (journal.py)

A turn is taken by creating the next number's lease, which one process alone can do. A holder says that it lives every
few seconds; one whose lease has not changed for as long as a lease lasts, by the clock of whoever waits, has lost it.
So has one that is known to be gone: this machine knows its own processes, and on a folder a file lock ends with its
process. Numbers only grow, and readers look at the highest: what a former holder still writes lands under its own
number, where nobody looks.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heatfhe.server.store.folder_objects import FolderObjects
from heatfhe.server.store.objects import Objects

KIND, VERSION = "heatfhe-lease", 1
TURNS = "turns"
LEASE_SECONDS = 30.0
_BEATS = 3  # said within the time of one lease, so that one lost beat costs nothing
_LOOKS = 30  # at a lease while waiting for its end, within its time


class LeaseLost(Exception):
    """Another process has taken the session over; what this one wanted to write was not taken."""


def turn_name(number: int, what: str) -> str:
    """The name of a turn's lease or journal."""
    return f"{TURNS}/{number:08d}/{what}.json"


def turns(objects: Objects, what: str) -> list[int]:
    """The turns that have a lease, or a journal, lowest first."""
    names = [name.split("/") for name in objects.listing(TURNS)]
    return sorted(int(parts[1]) for parts in names if len(parts) == 3 and parts[2] == f"{what}.json")


class Lease:
    """One process's turn at a session. The time, the waiting and the saying that it lives can be given by a test."""

    def __init__(
        self,
        objects: Objects,
        *,
        seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        beating: bool = True,
    ) -> None:
        self._objects, self._seconds, self._clock, self._sleep = objects, seconds, clock, sleep
        self._beating = beating
        self._holder, self._beats, self._locked = secrets.token_hex(16), 0, False
        self.number = 0

    @contextmanager
    def held(self) -> Iterator[int]:
        """Wait for the session, then have its next turn until the block ends; the turn's number."""
        with self._living() as mine:
            self._locked = False
            self._wait(mine)
            while not self._take():
                self._wait(mine)
            stop = threading.Event()
            beat = threading.Thread(target=self._beat, args=(stop,), daemon=True)
            if self._beating:
                beat.start()
            try:
                yield self.number
            finally:
                stop.set()
                if self._beating:
                    beat.join()
                with contextlib.suppress(OSError, LeaseLost):
                    self.say(ended=True)

    @contextmanager
    def free(self) -> Iterator[bool]:
        """Whether nobody has the session. On one machine's folder nobody gets it either until the block ends."""
        with self._living() as mine:
            here, (number, body) = isinstance(self._objects, FolderObjects), self._last()
            over = not number or body["ended"] or (here and body["locked"])
            yield over and (mine() or not here)

    def check(self) -> None:
        """LeaseLost unless this process still has the session."""
        if not self.number or turns(self._objects, "lease")[-1:] != [self.number]:
            raise LeaseLost

    def say(self, *, ended: bool = False) -> None:
        """Say that the holder lives, or that its turn is over."""
        self.check()
        self._beats += 1
        self._objects.put_record(turn_name(self.number, "lease"), KIND, VERSION, self._body(ended))

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self._seconds / _BEATS):
            try:
                self.say()
            except LeaseLost:
                return
            except OSError:  # the next one may be heard; if none is, the lease ends, which the next check says
                continue

    def _wait(self, mine: Callable[[], bool]) -> None:
        """Until the last holder is gone, has ended its turn, or has been silent for the time of a lease."""
        seen, since = self._last(), self._clock()
        look = 0.05 if isinstance(self._objects, FolderObjects) else math.inf  # a disk may be asked more often
        while True:
            self._locked = self._locked or mine()
            number, body = seen
            if not number or body["ended"] or (self._locked and body["locked"]) or _gone(body["process"]):
                return
            if self._clock() - since >= self._seconds:
                return
            self._sleep(min(look, self._seconds / _LOOKS))
            now = self._last()
            if now != seen:
                seen, since = now, self._clock()

    def _last(self) -> tuple[int, dict[str, Any]]:
        """The last turn, 0 if there was none, and what its holder said last."""
        for number in reversed(turns(self._objects, "lease")):
            body = self._objects.get_record(turn_name(number, "lease"), KIND, (VERSION,))
            if body is not None:
                return number, body
        return 0, {}

    def _body(self, ended: bool = False) -> dict[str, Any]:
        """``locked`` says that its holder has the file lock: whoever gets that knows it to be gone."""
        facts = {"holder": self._holder, "process": _process("self"), "beats": self._beats}
        return {**facts, "ended": ended, "locked": self._locked}

    def _take(self) -> bool:
        """Create the next turn's lease; False if another was quicker."""
        number = 1 + self._last()[0]
        name = turn_name(number, "lease")
        self._beats = 0
        if not self._objects.create_record(name, KIND, VERSION, self._body()):
            found = self._objects.get_record(name, KIND, (VERSION,))  # ours, if only the answer to it was lost
            if found is None or found["holder"] != self._holder:
                return False
        self.number = number
        return True

    @contextmanager
    def _living(self) -> Iterator[Callable[[], bool]]:
        """Whether no process of this machine has the session, asked by trying its file lock; elsewhere nobody knows."""
        if not isinstance(self._objects, FolderObjects):
            yield lambda: False
            return
        with _opened(self._objects.folder / "lock") as file:

            def mine() -> bool:
                try:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            yield mine


def _opened(path: Path) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _process(pid: str) -> str:
    """A process by the machine's boot, its space of process numbers, its number and its start; empty if there is none.

    One that has ended and waits for its parent is none.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        number, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" ")
        fields = rest.rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else f"{boot} {os.readlink('/proc/self/ns/pid')} {number} {fields[19]}"
    except OSError:
        return ""


def _gone(process: str) -> bool:
    """Whether a process was one of this machine, as this process sees it, and is no more."""
    *here, number, _ = process.split() if process else ("", "", "", "")
    return here == _process("self").split()[:2] and _process(number) != process
