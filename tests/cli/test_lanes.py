# SPDX-License-Identifier: Apache-2.0
"""Jobs over processes: who begins first, who waits, what a failure takes with it, and which processes see a GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from heatfhe.cli.lanes import Lane, Waiting, in_order, spread_over
from heatfhe.errors import ConfigError


@dataclass(frozen=True)
class Task:
    name: str
    cost: int = 1
    after: tuple[str, ...] = ()
    kind: str = "trained"


def test_the_longest_way_to_the_end_begins_first_whoever_is_on_it() -> None:
    """A cheap job that a long one waits for comes before dearer ones that nothing waits for."""
    waiting = Waiting([Task("long", 5), Task("search", 9, ("cheap",)), Task("cheap", 1), Task("short", 2)])
    taken = [waiting.take({"trained"}) for _ in range(4)]
    assert [job and job.name for job in taken] == ["cheap", "long", "short", None]
    assert taken[0] is not None
    waiting.end(taken[0])
    assert waiting.take({"searched"}) is None
    assert waiting.take({"trained"}) == Task("search", 9, ("cheap",))


def test_one_process_meets_every_job_behind_those_it_needs() -> None:
    jobs = [Task("c", after=("b",)), Task("b", after=("a",)), Task("a"), Task("d")]
    assert [job.name for job in in_order(jobs)] == ["a", "d", "b", "c"]
    with pytest.raises(ConfigError, match="e: needs f"):
        in_order([*jobs, Task("e", after=("f",))])


def visible(job: Task) -> str | None:
    if job.name.startswith("bad"):
        raise ConfigError("no such value; give another")
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def test_a_failure_is_raised_after_the_others_and_the_gpu_is_seen_in_its_own_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "0")
    lanes = [
        Lane(kinds=frozenset({"trained"}), processes=1, hide_gpu=True),
        Lane(kinds=frozenset({"searched"}), processes=1),
    ]
    jobs = [
        Task("bad", 9), Task("waits", after=("bad",)), Task("fine"), Task("search", kind="searched", after=("fine",)),
    ]  # fmt: skip
    found = {}
    with pytest.raises(ConfigError, match="bad: no such value; give another"):
        for job, answer in spread_over(lanes, jobs, visible):
            found[job.name] = answer
    assert found == {"fine": "", "search": "0"}
