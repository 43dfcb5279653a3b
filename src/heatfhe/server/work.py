# SPDX-License-Identifier: Apache-2.0
"""The work of one job, unit by unit: run a program, store the output, journal the state, tell the public facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from heatfhe.errors import WireError
from heatfhe.files import atomic_write
from heatfhe.server.journal import Journal, Snapshot
from heatfhe.server.quota import client_bytes, over_quota
from heatfhe.wire import JobHead, JobOutput, MessageFile, Refusal

Tick = Callable[[int, int], None]  # bootstraps done, bootstraps in all
Emit = Callable[[Mapping[str, Any]], None]


class Runner(Protocol):
    """A model opened for one client's keys. It holds one session's encrypted state at a time."""

    def restore(self, values: Mapping[str, bytes]) -> None:
        """Take a state over; an empty mapping is an empty session."""
        ...

    def values(self) -> dict[str, bytes]:
        """The state in wire form."""
        ...

    def prompt(self, token: bytes | None, position: int, tick: Tick) -> None:
        """Put a token into the cache: an encrypted input, or None for the fed-back one."""
        ...

    def generate(self, token: bytes | None, noise: tuple[bytes, ...], position: int, tick: Tick) -> tuple[bytes, ...]:
        """The same, then the near one-hot row of the next token, whose embedding becomes the fed-back one.

        ``noise`` is empty for greedy choice, else one ciphertext per part of the vocabulary.
        """
        ...

    def logits(self, token: bytes | None, position: int, tick: Tick) -> tuple[bytes, ...]:
        """The same as prompt, then the logits."""
        ...


class CancelledWork(Exception):
    """The owner cancelled the job. The session stays as it was after the last complete unit."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One run of a program: what it does and which input it reads (None: the fed-back token)."""

    kind: str
    source: int | None
    step: int | None = None


def units(mode: str, steps: int, inputs: int, pending: bool) -> list[Unit]:
    """The units of a job, from public numbers alone: all but the last input fill the cache, then the steps."""
    sources: list[int | None] = [None] * pending + list(range(inputs))
    if not sources:
        raise WireError("job: an empty session needs at least one input")
    out = [Unit("prompt", source) for source in sources[:-1]]
    out.append(Unit("logits" if mode == "logits" else "generate", sources[-1], 0))
    return out + [Unit("generate", None, step) for step in range(1, steps)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One job, as a worker is told of it."""

    job: str
    job_folder: Path
    session_folder: Path
    pending: bool
    seconds_per_unit: float
    client_folder: Path
    client_bytes: int

    def need_room(self, size: int) -> None:
        """Refuse to store what the client's quota does not hold."""
        used = client_bytes(self.client_folder)
        if used + size > self.client_bytes:
            raise over_quota(size, used, self.client_bytes)


def perform(
    runner: Runner,
    message: MessageFile,
    task: Assignment,
    *,
    emit: Emit,
    cancelled: Callable[[], bool],
    yielding: Callable[[], bool] = lambda: False,
) -> bool:
    """Run what is left of a job. Every unit is journalled; a process killed at any moment goes on from the last one.

    False if the job gave up its turn: ``yielding`` is asked after every unit but the last, so that each turn gets on.
    """
    journal, request = Journal(task.session_folder), JobHead.from_header(message.header)
    with journal.lock():
        journal.tidy()
        snapshot = journal.read()
        plan = units(request.mode, request.steps, request.inputs, task.pending)
        done = snapshot.units if snapshot.job == task.job else 0
        position = snapshot.position
        if snapshot.job != task.job and position != request.start:
            # The session has gone on: this job ended before, and the disk did not take the record of it.
            if not all((task.job_folder / f"output-{step:04d}").exists() for step in range(request.steps)):
                raise Refusal("conflict", "the session has gone on without this job", "submit a new job")
            emit({"unit": len(plan), "units": len(plan), "outputs": request.steps})
            return True
        runner.restore(snapshot.values)
        ready = sum(unit.step is not None for unit in plan[:done])
        emit({"unit": done, "units": len(plan), "outputs": ready})
        started, spent = time.monotonic(), 0
        for index in range(done, len(plan)):
            unit = plan[index]
            mean = (time.monotonic() - started) / spent if spent else task.seconds_per_unit
            facts = {"unit": index, "units": len(plan), "kind": unit.kind, "steps": request.steps}
            if unit.step is not None:
                facts["step"] = unit.step
            emit({**facts, "eta_s": round(mean * (len(plan) - index), 1)})
            tick = _ticker(facts, emit, cancelled, mean, len(plan) - index)
            tick(0, 0)
            token = None if unit.source is None else message.block(f"input/{unit.source:04d}")
            outputs: tuple[bytes, ...] = ()
            if unit.kind == "prompt":
                runner.prompt(token, position, tick)
            elif unit.kind == "logits":
                outputs = runner.logits(token, position, tick)
            else:
                assert unit.step is not None
                noise = tuple(message.block(name) for name in request.noise_blocks(unit.step))
                outputs = runner.generate(token, noise, position, tick)
            position, spent, values = position + 1, spent + 1, runner.values()
            task.need_room(sum(map(len, outputs)) + sum(map(len, values.values())))
            if unit.step is not None:
                ready = unit.step + 1
                result = JobOutput(plan=request.plan, job=task.job, step=unit.step, outputs=outputs)
                with atomic_write(task.job_folder / f"output-{unit.step:04d}") as f:
                    f.write(result.pack())
            after = Snapshot(
                position=position, pending=unit.kind == "generate", job=task.job, units=index + 1, values=values
            )
            journal.write(after)
            emit({"unit": index + 1, "units": len(plan), "outputs": ready})
            if index + 1 < len(plan) and yielding():
                return False
    return True


def _ticker(facts: Mapping[str, Any], emit: Emit, cancelled: Callable[[], bool], mean: float, left: int) -> Tick:
    last = time.monotonic()

    def tick(done: int, total: int) -> None:
        nonlocal last
        if cancelled():
            raise CancelledWork
        now = time.monotonic()
        if total and (now - last > 0.25 or done == total):
            last = now
            share = left - done / total
            emit({**facts, "bootstrap": done, "bootstraps": total, "eta_s": round(mean * share, 1)})

    return tick
