# SPDX-License-Identifier: Apache-2.0
"""What scripts share that run in pieces of so many seconds: a clock that stops them, and a word on how far they are."""

from __future__ import annotations

import sys
import time

from heatfhe.progress import Reporter

EVERY = 20.0  # seconds between two words


class Used(Exception):
    """The seconds given are used up."""


class Clock(Reporter):
    """Stops the work at a time, where it reports progress, and says now and then how far it is."""

    def __init__(self, end: float) -> None:
        self.end, self.drawn = end, time.time()

    def advance(self, task: str, **facts: float | int | str) -> None:
        now = time.time()
        if now - self.drawn > EVERY:
            self.drawn = now
            say(f"{task}: {facts}, {self.end - now:.0f} s left")
        if now > self.end:
            raise Used


def say(words: str) -> None:
    """A line for who watches; results go to stdout."""
    print(words, file=sys.stderr, flush=True)


def pair(text: str) -> tuple[int, int]:
    """Two whole numbers of an option."""
    first, second = (int(part) for part in text.split(","))
    return first, second
