# SPDX-License-Identifier: Apache-2.0
"""From queue to worker: one thread per seat takes jobs in fair order, follows them, and keeps their records."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from heatfhe.errors import HeatError
from heatfhe.server.faults import log_fault
from heatfhe.server.metrics import Metrics
from heatfhe.server.store.jobs import ENDED, Job, JobStore
from heatfhe.server.work.events import EventHub
from heatfhe.server.work.orders import Assignment, Completed, Ended, Opening, Progress, facts
from heatfhe.server.work.queue import FairQueue
from heatfhe.server.work.seats import Key, Seat, Worker, WorkerDied, WorkerRefused

logger = logging.getLogger(__name__)
_TRIES = 3


class Dispatcher:
    """Runs jobs. ``describe(job)`` gives the worker's key, its opening order and the job's own order."""

    def __init__(
        self,
        seats: Sequence[Seat],
        queue: FairQueue,
        jobs: JobStore,
        events: EventHub,
        metrics: Metrics,
        describe: Callable[[Job], tuple[Key, Opening, Assignment]],
        ended: Callable[[Job], None],
        turn_seconds: float = 1.0,
    ) -> None:
        """While another client waits, a job has its seat for ``turn_seconds``, and for four times as long as its
        worker took to open, so that changing turns costs at most a fifth of the time."""
        self._queue, self._jobs = queue, jobs
        self._events, self._metrics, self._describe, self._ended = events, metrics, describe, ended
        self._turn_seconds = turn_seconds
        self._running: dict[str, Worker] = {}
        self._cancelled: set[str] = set()
        self._lock = threading.Lock()
        self._closing = False
        self._first = list(seats)
        self._seats: dict[str, tuple[Seat, threading.Thread]] = {}
        self._idle: dict[str, float] = {}  # seat -> since when it has nothing to do

    def start(self) -> None:
        """Queue the jobs that a former process left unfinished, then begin."""
        for job in self._jobs.active():
            self._jobs.update(job.job, state="queued")
            self._queue.put(job.client, job.session, job.job, key=self._key(job))
        for seat in self._first:
            self.add(seat)

    def add(self, seat: Seat) -> None:
        """A seat begins to take jobs."""
        thread = threading.Thread(target=self._serve, args=(seat,), daemon=True)
        with self._lock:
            self._seats[seat.name] = (seat, thread)
        self._queue.join(seat)
        thread.start()

    def remove(self, seat: Seat) -> None:
        """A seat ends once the job that it has, if any, does."""
        with self._lock:
            self._seats.pop(seat.name, None)
        self._queue.leave(seat)

    @property
    def seats(self) -> list[Seat]:
        """Those that take jobs now."""
        with self._lock:
            return [seat for seat, _ in self._seats.values()]

    def idle(self) -> list[tuple[Seat, float]]:
        """Seats without a job, and since when (by the monotonic clock)."""
        with self._lock:
            return [(seat, self._idle[name]) for name, (seat, _) in self._seats.items() if name in self._idle]

    @property
    def running(self) -> int:
        """Jobs on a seat now."""
        with self._lock:
            return len(self._running)

    def _key(self, job: Job) -> Key:
        """What a job's worker has open; empty where its model is not served now, which its turn will say."""
        try:
            return self._describe(job)[0]
        except (HeatError, OSError):
            return ()

    def cancel(self, job: Job) -> None:
        """End a job: at once if it waits, at its next bootstrap if it runs."""
        with self._lock:
            self._cancelled.add(job.job)
            worker = self._running.get(job.job)
        if self._queue.remove(job.job):
            self._end(job.job, "cancelled")
        elif worker is not None:
            with contextlib.suppress(WorkerDied):  # its seat's thread sees the same and settles the job
                worker.cancel(job.job)

    def close(self) -> None:
        """Stop taking jobs and end the workers; running jobs stay active on disk and go on at the next start."""
        self._closing = True
        self._queue.close()
        with self._lock:
            seats = list(self._seats.values())
        for seat, _ in seats:
            seat.close()
        with self._lock:
            for worker in self._running.values():
                worker.stop()
        for _, thread in seats:
            if thread.is_alive():
                thread.join(timeout=5)

    def _serve(self, seat: Seat) -> None:
        while not self._closing:
            with self._lock:
                self._idle[seat.name] = time.monotonic()
            name = self._queue.take(seat=seat)
            with self._lock:
                self._idle.pop(seat.name, None)
                leaves = seat.name not in self._seats
            if name is None:
                if leaves:
                    break
                continue
            session = ""
            try:
                job = self._jobs.update(name, state="running")
                session = job.session
                if job.state == "running":
                    if not job.started:  # else it gave way before and has another turn
                        job = self._jobs.update(name, started=time.time())
                        self._metrics.observe("heatfhe_queue_seconds", max(0.0, job.started - job.created))
                    self._follow(seat, job)
            except KeyError:
                continue  # deleted while it waited
            except Exception as err:
                log_fault(logger, "a job failed outside its worker", err)
                self._end(name, "failed", "internal", "the server failed; the operator's log says why")
            finally:
                self._queue.release(session)
        seat.close()

    def _follow(self, seat: Seat, job: Job) -> None:
        self._events.publish(job.job, state="running")
        key, opening, order = self._describe(job)
        for attempt in range(1, _TRIES + 1):
            try:
                with self._lock:
                    if job.job in self._cancelled:
                        break
                fresh, began = key not in seat.open_keys(), time.monotonic()
                worker = seat.worker(key, opening)
                if fresh:
                    self._queue.opened(key, time.monotonic() - began)
                    self._metrics.count("heatfhe_openings_total")
                with self._lock:
                    self._running[job.job] = worker
                    late = job.job in self._cancelled
                if late:
                    worker.cancel(job.job)
                now = time.monotonic()
                turn_ends: float | None = now + max(self._turn_seconds, 4 * (now - began))
                for said in worker.run(order):
                    if isinstance(said, Ended):
                        self._settle(job, said)
                        return
                    self._note(job.job, said)
                    waits = turn_ends and self._queue.others_wait(job.client, seat=seat)
                    if turn_ends and waits and time.monotonic() > turn_ends:
                        turn_ends = None  # once is enough
                        worker.give_way(job.job)
            except WorkerRefused as err:
                self._end(job.job, "failed", err.code, err.message)
                return
            except WorkerDied:
                seat.drop(key)
                if self._closing:
                    return
                logger.warning("worker died seat=%s attempt=%d", seat.name, attempt)
            finally:
                with self._lock:
                    self._running.pop(job.job, None)
        with self._lock:
            cancelled = job.job in self._cancelled
        if cancelled:
            self._end(job.job, "cancelled")
        else:
            message = f"the worker process died {_TRIES} times; it may have reached its memory cap"
            self._end(job.job, "failed", "engine_failed", message)

    def _settle(self, job: Job, end: Ended) -> None:
        """What a worker said last: the job has ended, or goes back to the head of its client's row."""
        if end.state != "yielded":
            self._end(job.job, end.state, end.error, end.message)
            return
        with self._lock:  # a cancellation comes before this and is seen, or after it and finds the job in the queue
            cancelled = job.job in self._cancelled
            if not cancelled:
                self._jobs.update(job.job, state="queued")
                self._queue.put(job.client, job.session, job.job, first=True)
        if cancelled:
            self._end(job.job, "cancelled")
        else:
            self._events.publish(job.job, state="queued", ahead=self._queue.ahead(job.job) or 0)

    def _note(self, job: str, progress: Progress) -> None:
        if isinstance(progress, Completed):
            old = self._jobs.update(job, durable=False)
            self._jobs.update(job, done=progress.unit, outputs=max(old.outputs, progress.outputs))
            if progress.unit > old.done:  # a turn begins by telling what the journal has, which is no new step
                self._metrics.count("heatfhe_steps_total", progress.unit - old.done)
        self._events.publish(job, **facts(progress))

    def _end(self, name: str, state: str, error: str = "", message: str = "") -> None:
        changes: dict[str, Any] = {"state": state, "ended": time.time(), "error": error, "message": message}
        record = self._jobs.update(name, durable=False)
        if record.state in ENDED:
            return
        if state == "done":
            changes |= {"done": record.units, "outputs": record.steps}
        record = self._jobs.update(name, **changes)
        with self._lock:
            self._cancelled.discard(name)
        self._metrics.count("heatfhe_jobs_total", outcome=state)
        if record.started:
            self._metrics.observe("heatfhe_job_seconds", record.ended - record.started)
        logger.info(
            "job ended state=%s error=%s units=%d seconds=%.2f",
            state,
            error or "-",
            record.done,
            record.ended - record.created,
        )
        self._events.publish(name, state=state, outputs=record.outputs, **({"error": error} if error else {}))
        self._ended(record)
