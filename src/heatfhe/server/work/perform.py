# SPDX-License-Identifier: Apache-2.0
"""The work of one job, unit by unit: run a program, store the output, now and then the state, tell the public facts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from heatfhe.engine import Conversation, Runner
from heatfhe.errors import WireError
from heatfhe.planning import Plan, ProgramName
from heatfhe.progress import Reporter
from heatfhe.server.store.folder_objects import FolderObjects
from heatfhe.server.store.journal import Journal, Snapshot
from heatfhe.server.store.lease import LeaseLost
from heatfhe.server.store.objects import Objects
from heatfhe.server.store.outputs import has_outputs, put_output
from heatfhe.server.store.quota import client_bytes, over_quota, stored_bytes
from heatfhe.server.work.orders import Assignment, Completed, Progress, Running
from heatfhe.server.work.pace import Pace
from heatfhe.wire import JobHead, JobOutput, MessageFile, Refusal, unit_kind

Emit = Callable[[Progress], None]


class CancelledWork(Exception):
    """The owner cancelled the job. The session stays as it was after the last complete unit."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of a program, and which input it reads (None: the fed-back token; a prefill and an image read those from
    here on)."""

    program: ProgramName
    source: int | None
    step: int | None = None


def units(program: ProgramName, steps: int, inputs: int, pending: bool, packed: int = 0) -> list[Unit]:
    """The units of a job, from public numbers alone: all but the last input fill the cache, then the steps; or, of
    images, one for each."""
    if program is ProgramName.CLASSIFY:
        return [Unit(program, step * (inputs // steps), step) for step in range(steps)]
    sources: list[int | None] = [None] * pending + list(range(packed, inputs))
    if not sources:
        raise WireError("job: an empty session needs at least one input")
    out = [Unit(ProgramName.PREFILL, 0)] if packed else []
    out += [Unit(ProgramName.PROMPT, source) for source in sources[:-1]]
    out.append(Unit(program, sources[-1], 0))
    return out + [Unit(program, None, step) for step in range(1, steps)]


def perform(
    runner: Runner,
    message: MessageFile,
    task: Assignment,
    *,
    emit: Emit,
    cancelled: Callable[[], bool],
    yielding: Callable[[], bool] = lambda: False,
    store: Objects | None = None,
    pace: Pace | None = None,
) -> bool:
    """Run what is left of a job. A process killed at any moment goes on from the last snapshot; the units since are run
    again, to the same bytes.

    False if the job gave up its turn: ``yielding`` is asked after every unit but the last, so that each turn gets on.
    What is stored goes to ``store``; without one the paths of the task can be opened. ``pace`` knows what storing
    costs, and says when a snapshot is due. There is always one at the end, whatever ends the job.
    """
    session, place = _part(store, task.session_folder), _part(store, task.job_folder)
    journal, request = Journal(session), JobHead.from_header(message.header)
    pace = Pace() if pace is None else pace
    with journal.lock():
        journal.tidy()
        snapshot = journal.read()
        plan = units(request.program, request.steps, request.inputs, task.pending, request.packed)
        done = snapshot.units if snapshot.job == task.job else 0
        if snapshot.job != task.job and snapshot.position != request.start:
            # The session has gone on: this job ended before, and the disk did not take the record of it.
            if not has_outputs(place, request.steps):
                raise Refusal("conflict", "the session has gone on without this job", "submit a new job")
            emit(Completed(unit=len(plan), units=len(plan), outputs=request.steps))
            return True
        watch = _Watch(runner.plan, plan, emit, cancelled, task.seconds_per_unit)
        talk = Conversation.restore(runner, snapshot.values, snapshot.position, reporter=watch)
        keeper = _Keeper(journal, task.job, pace, talk, done)
        ready = sum(unit.step is not None for unit in plan[:done])
        emit(Completed(unit=done, units=len(plan), outputs=ready))
        before, held = _exceeded(runner), sum(map(len, snapshot.values.values()))
        del snapshot
        pace.begin(task.snapshot_seconds)
        try:
            for index in range(done, len(plan)):
                unit = plan[index]
                watch.begin(index, request.steps)
                with pace.computing():
                    outputs = _answer(talk, unit, request, message)
                    _finished(runner)
                _need_room(store, task, sum(map(len, outputs)) + max(held, keeper.size))
                journal.check()
                if unit.step is not None:
                    ready = unit.step + 1
                    result = JobOutput(plan=request.plan, job=task.job, step=unit.step, outputs=outputs)
                    put_output(place, unit.step, result.pack())
                keeper.note(index + 1)
                last = index + 1 == len(plan)
                if last or pace.due:
                    keeper.store()
                beyond = _exceeded(runner) - before or None
                emit(Completed(unit=index + 1, units=len(plan), outputs=ready, exceeded=beyond))
                if not last and yielding():
                    keeper.store()
                    return False
        except Exception as err:
            keeper.rescue(err)
            raise
    return True


def _part(store: Objects | None, path: Path) -> Objects:
    return FolderObjects(path) if store is None else store.below(path.as_posix())


def _finished(runner: Runner) -> None:
    """Wait for a device that computes on its own, so that its time does not look like that of storing."""
    getattr(runner.engine, "synchronize", lambda: None)()


class _Keeper:
    """The last complete unit of a job, and whether it is stored. A unit that fails changes none of its values."""

    def __init__(self, journal: Journal, job: str, pace: Pace, talk: Conversation, units: int) -> None:
        self._journal, self._job, self._pace, self._talk = journal, job, pace, talk
        self.size = 0
        self._kept, self._units = talk.copy(), units
        self._stored = units

    def note(self, units: int) -> None:
        """So many units are complete, and what the conversation holds is theirs."""
        self._kept, self._units = self._talk.copy(), units

    def store(self) -> None:
        """Write a snapshot of the last complete unit, unless it is there."""
        if self._stored == self._units:
            return
        with self._pace.storing():
            kept = self._kept
            values = kept.values()
            pending = kept.next is not None
            self._journal.write(
                Snapshot(position=kept.position, pending=pending, job=self._job, units=self._units, values=values)
            )
        self._stored, self.size = self._units, sum(map(len, values.values()))

    def rescue(self, err: Exception) -> None:
        """Store what is complete although the job has failed; where that fails too, the last snapshot stays."""
        if not isinstance(err, LeaseLost):
            with contextlib.suppress(OSError, MemoryError, LeaseLost):
                self.store()


def _exceeded(runner: Runner) -> int:
    return int(getattr(runner.engine, "exceeded", 0))  # only the clear engine can see it


def _answer(talk: Conversation, unit: Unit, request: JobHead, message: MessageFile) -> tuple[bytes, ...]:
    """Run one unit with what it reads of the message."""
    if unit.program is ProgramName.PREFILL:
        talk.fill([message.block(f"input/{k:04d}") for k in range(request.packed)], request.prefill[0])
        return ()
    if unit.program is ProgramName.CLASSIFY:
        assert unit.source is not None
        blocks = range(unit.source, unit.source + request.inputs // request.steps)
        return talk.label([message.block(f"input/{k:04d}") for k in blocks])
    token = None if unit.source is None else message.block(f"input/{unit.source:04d}")
    noise = () if unit.step is None else request.noise_blocks(unit.step)
    return talk.answer(unit.program, token, [message.block(name) for name in noise])


def _need_room(store: Objects | None, task: Assignment, size: int) -> None:
    """Refuse to store what the client's quota does not hold."""
    used = client_bytes(task.client_folder) if store is None else stored_bytes(_part(store, task.client_folder))
    if used + size > task.client_bytes:
        raise over_quota(size, used, task.client_bytes)


class _Watch(Reporter):
    """Reports one job's units: tells what they do and what time is left, and raises if the job is cancelled."""

    def __init__(
        self, plan: Plan, units: Sequence[Unit], emit: Emit, cancelled: Callable[[], bool], seconds_per_unit: float
    ) -> None:
        self._units, self._emit, self._cancelled = units, emit, cancelled
        self._totals = {name: len(plan.program(name).bootstraps()) for name in {unit.program for unit in units}}
        self._mean, self._spent = seconds_per_unit, 0
        self._started = self._last = 0.0
        self._now: Running | None = None
        self._done = self._total = self._left = 0

    def begin(self, index: int, steps: int) -> None:
        """The next unit begins; its time is guessed from those before."""
        unit, self._last = self._units[index], time.monotonic()
        if self._spent:
            self._mean = (self._last - self._started) / self._spent
        else:
            self._started = self._last
        self._spent, self._left = self._spent + 1, len(self._units) - index
        self._done, self._total = 0, self._totals[unit.program]
        self._now = Running(
            unit=index,
            units=len(self._units),
            kind=unit_kind(unit.program),
            steps=steps,
            step=unit.step,
            eta_s=round(self._mean * self._left, 1),
        )
        self._emit(self._now)
        self._check()

    def advance(self, task: str, **facts: float | int | str) -> None:
        if not str(facts.get("kind", "")).startswith("bootstrap"):
            return
        self._done += 1
        self._check()
        now = time.monotonic()
        if self._now is not None and (now - self._last > 0.25 or self._done == self._total):
            self._last = now
            eta = round(self._mean * (self._left - self._done / self._total), 1)
            self._emit(replace(self._now, bootstrap=self._done, bootstraps=self._total, eta_s=eta))

    def _check(self) -> None:
        if self._cancelled():
            raise CancelledWork
