# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a job cost at most a tenth of its computing; what they left out is computed again, to the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from heatfhe.planning import SNAPSHOT_SHARE
from heatfhe.server.store.journal import Journal
from heatfhe.server.store.memory_objects import MemoryObjects
from heatfhe.server.work.orders import Completed, Progress
from heatfhe.server.work.pace import Pace
from heatfhe.server.work.perform import CancelledWork, perform
from tests.server.test_work import Chain, message, outputs, task


class Killed(BaseException):
    """kill -9 at this point."""


class Slow:
    """A clock, a runner whose units take a second of it, and a store whose snapshots take ``cost``."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost, self.ran = 0.0, cost, list[int]()
        self.snapshots: list[int] = []
        self.pace = Pace(lambda: self.now)
        slow = self

        class Runner(Chain):
            def run(self, program: str, inputs: Any, position: int, reporter: Any) -> dict[str, list[bytes]]:
                slow.now += 1.0
                slow.ran.append(position)
                return super().run(program, inputs, position, reporter)

        class Store(MemoryObjects):
            def put(self, name: str, data: bytes) -> str:
                if "/state-" in name:
                    slow.now += slow.cost / 2  # the cache, and the fed-back value
                return super().put(name, data)

        self.runner, self.store = cast(Any, Runner()), Store()

    def work(
        self, folder: Path, steps: int, *, least: float = 0.0, emit: Any = lambda _fact: None, **more: Any
    ) -> bool:
        from dataclasses import replace

        order = replace(task(folder, quota=1 << 40), snapshot_seconds=least)
        names = {name: Path("alice", name) for name in ("job_folder", "session_folder")}
        order = replace(order, **names, client_folder=Path("alice"))
        options = {"cancelled": lambda: False, **more}
        work = message(folder, 1, steps)

        def note(fact: Progress) -> None:
            if isinstance(fact, Completed):
                self.snapshots.append(Journal(self.store.below("alice/session_folder")).head().units)
            emit(fact)

        return perform(self.runner, work, order, emit=note, store=self.store, pace=self.pace, **options)

    @property
    def taken(self) -> list[int]:
        """After which units a snapshot was taken."""
        return sorted({units for units in self.snapshots if units})

    def outputs(self) -> list[bytes]:
        found = self.store.listing("alice/job_folder")
        return [self.store.read(name) or b"" for name in found]


@pytest.mark.parametrize("cost", [0.01, 0.1, 0.3, 1.0, 4.0])
def test_storing_costs_at_most_a_tenth_of_computing(tmp_path: Path, cost: float) -> None:
    steps = 200
    slow = Slow(cost)
    assert slow.work(tmp_path, steps)
    assert (slow.pace.computed, len(slow.ran)) == (pytest.approx(steps), steps)
    assert slow.pace.stored <= SNAPSHOT_SHARE * slow.pace.computed
    assert slow.pace.stored == pytest.approx(cost * len(slow.taken))
    assert {1, steps} <= set(slow.taken)  # the first, to learn the price, and the last
    most = SNAPSHOT_SHARE * steps / cost
    assert len(slow.taken) >= min(steps, most / 2 - 1)  # and the tenth is made use of
    slow.ran.clear()
    gaps = [b - a for a, b in zip(slow.taken, slow.taken[1:])]
    assert max(gaps) <= max(1, 3 * cost / SNAPSHOT_SHARE)  # what a kill can cost


def test_more_often_than_of_use_is_not_often(tmp_path: Path) -> None:
    slow = Slow(0.001)
    assert slow.work(tmp_path, 100, least=30.0)
    assert slow.taken == [1, 31, 61, 91, 100]


@pytest.mark.parametrize("at", [1, 2, 5, 31, 44, 59, 60])
def test_killed_since_the_last_snapshot_it_computes_the_same_bytes_again(tmp_path: Path, at: int) -> None:
    whole, slow = Slow(0.1), Slow(0.1)
    assert whole.work(tmp_path, 60, least=30.0)

    def emit(fact: Progress) -> None:
        if isinstance(fact, Completed) and fact.unit == at:
            raise Killed

    with pytest.raises(Killed):
        slow.work(tmp_path, 60, least=30.0, emit=emit)
    before = slow.outputs()
    assert len(before) == at
    slow.ran.clear()
    assert slow.work(tmp_path, 60, least=30.0)
    last = max(unit for unit in (1, 31, 60) if unit <= at)
    assert slow.ran == list(range(last, 60))  # from the last snapshot on, and nothing before it
    assert slow.outputs()[:at] == before
    assert slow.outputs() == whole.outputs()
    journals = [Journal(each.store.below("alice/session_folder")).read() for each in (slow, whole)]
    assert journals[0] == journals[1]


def test_a_cancelled_or_yielding_job_is_stored_as_it_is(tmp_path: Path) -> None:
    slow, journal = Slow(0.1), Journal
    with pytest.raises(CancelledWork):
        slow.work(tmp_path, 60, least=30.0, cancelled=lambda: len(slow.ran) == 18)
    assert slow.ran == list(range(18))
    assert journal(slow.store.below("alice/session_folder")).head().units == 17  # the 18th was cut short
    slow.ran.clear()
    assert not slow.work(tmp_path, 60, least=30.0, yielding=lambda: len(slow.ran) == 20)
    assert journal(slow.store.below("alice/session_folder")).head().units == 37
    assert slow.ran == list(range(17, 37))
    assert slow.work(tmp_path, 60, least=30.0)
    assert outputs(tmp_path / "job") == []  # everything is in the store
    assert len(slow.outputs()) == 60
