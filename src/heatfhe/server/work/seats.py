# SPDX-License-Identifier: Apache-2.0
"""What the dispatcher asks of a place where jobs run: a seat, which keeps the workers of a few key sets open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from heatfhe.server.work.orders import Assignment, Ended, Opening, Progress

Key = tuple[str, ...]  # configuration, client, key set: what a worker has open


class WorkerDied(Exception):
    """A worker process, or the seat that owned it, ended without ending its job."""


class WorkerRefused(Exception):
    """A worker could not open its model or its keys; holds the code and the reason."""

    def __init__(self, code: str, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


class Worker(Protocol):
    """A process with one key set open. Each method raises ``WorkerDied`` where the process has ended."""

    def run(self, order: Assignment) -> Iterator[Progress | Ended]:
        """Give a job; yields its progress, and last its end."""

    def cancel(self, job: str) -> None:
        """Ask for the end of a job; it comes at the next bootstrap."""

    def give_way(self, job: str) -> None:
        """Ask a job to give up its turn; it does after the unit it is at."""

    def stop(self) -> None:
        """End the process."""


class Seat(Protocol):
    """One running job at a time, on one device; at most ``resident`` workers, the least recently used ends first."""

    @property
    def name(self) -> str:
        """For logs and threads; no two seats of a server share it."""

    @property
    def resident(self) -> int:
        """How many key sets can be open."""

    def open_keys(self) -> tuple[Key, ...]:
        """What is open, least recently used first. Answers at once, from this process."""

    def worker(self, key: Key, opening: Opening) -> Worker:
        """The worker for a model and key set, started if need be; raises WorkerRefused if it cannot be opened."""

    def drop(self, key: Key) -> None:
        """End the worker of a key set, if there is one."""

    def drop_where(self, test: Callable[[Key], bool]) -> None:
        """End every worker whose key passes a test."""

    @property
    def count(self) -> int:
        """Workers alive."""

    def close(self) -> None:
        """End every worker."""
