# SPDX-License-Identifier: Apache-2.0
"""Jobs that wait for each other, spread over processes of one machine: the longest way to the end begins first."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from heatfhe.errors import ConfigError, HeatError

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

log = logging.getLogger(__name__)


class Waits(Protocol):
    """A job, as far as its turn depends on it: ``cost`` in any unit, ``after`` the names of those it needs."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def cost(self) -> int: ...
    @property
    def after(self) -> tuple[str, ...]: ...


J = TypeVar("J", bound=Waits)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Processes for the jobs of some kinds; with ``hide_gpu`` torch finds no GPU in them."""

    kinds: frozenset[str]
    processes: int
    hide_gpu: bool = False


class Waiting(Generic[J]):
    """Jobs that were not begun yet. Of those that may begin, the one with the longest way to the end comes first.

    A job's way is its own cost and the longest way among those that wait for it.
    """

    def __init__(self, jobs: Sequence[J]) -> None:
        ways: dict[str, int] = {}
        for job in reversed(in_order(jobs)):
            ways[job.name] = job.cost + max((ways[other.name] for other in jobs if job.name in other.after), default=0)
        self._jobs = sorted(jobs, key=lambda job: -ways[job.name])
        self._ended: set[str] = set()

    def take(self, kinds: Collection[str]) -> J | None:
        """The next job of these kinds, or None where none may begin."""
        fits = (job for job in self._jobs if job.kind in kinds and self._ended >= set(job.after))
        if (found := next(fits, None)) is not None:
            self._jobs.remove(found)
        return found

    def end(self, job: J) -> None:
        """A job is done: those that waited for it may begin."""
        self._ended.add(job.name)


def in_order(jobs: Sequence[J]) -> list[J]:
    """Every job behind those that it needs, otherwise as given."""
    found: dict[str, J] = {}
    while left := [job for job in jobs if job.name not in found]:
        ready = {job.name: job for job in left if found.keys() >= set(job.after)}
        if not ready:
            raise ConfigError(f"{left[0].name}: needs {' and '.join(left[0].after)}, which are not among the jobs")
        found |= ready
    return list(found.values())


def spread_over(lanes: Sequence[Lane], jobs: Sequence[J], do: Callable[[J], R]) -> Iterator[tuple[J, R]]:
    """Jobs and what they gave, as they end; every process has one thread.

    A job that fails with an error of ours is left out, with those that need it; the others are done before its error
    is raised. Any other error, or Ctrl-C, ends all processes at once.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    context = get_context("spawn")
    stop = context.Event()
    used = [lane for lane in lanes if any(job.kind in lane.kinds for job in jobs)]
    pools = [
        ProcessPoolExecutor(
            lane.processes, mp_context=context, initializer=_begin, initargs=(os.getpid(), stop, lane.hide_gpu)
        )
        for lane in used
    ]
    free = [lane.processes for lane in used]
    waiting, failed = Waiting(jobs), dict[str, HeatError]()
    running: dict[Future[R], tuple[J, int]] = {}
    try:
        while True:
            for number, lane in enumerate(used):
                while free[number] and (job := waiting.take(lane.kinds)) is not None:
                    free[number] -= 1
                    running[pools[number].submit(do, job)] = job, number
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, number = running.pop(future)
                free[number] += 1
                try:
                    found = future.result()
                except HeatError as err:
                    log.warning("%s failed: %s", job.name, err)
                    failed[job.name] = err
                    continue
                waiting.end(job)
                yield job, found
    except BaseException:  # nothing goes on behind the back of who asked for it
        stop.set()
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        raise
    for pool in pools:
        pool.shutdown()
    for name, first in failed.items():
        raise ConfigError(f"{name}: {first} ({len(failed)} of {len(jobs)} failed; what is done is kept)") from first


def _begin(parent: int, stop: Event, hide_gpu: bool) -> None:
    """In a worker: end at once when told to, or when the command is gone. Jobs go on from their checkpoints."""
    if hide_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which tells us

    def watch() -> None:
        while not stop.wait(0.5) and os.getppid() == parent:
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
