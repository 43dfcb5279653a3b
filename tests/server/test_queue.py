# SPDX-License-Identifier: Apache-2.0
"""The queue is fair, bounded, and runs one job of a session at a time; limits refill; events are public facts."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.server.http.limits import RateLimiter
from heatfhe.server.metrics import Metrics
from heatfhe.server.work.events import EventHub
from heatfhe.server.work.queue import FairQueue
from heatfhe.wire import Refusal


@given(jobs=st.lists(st.sampled_from("abcd"), min_size=1, max_size=30))
def test_no_client_waits_for_two_jobs_of_another(jobs: list[str]) -> None:
    """Between two turns of a waiting client every other client gets at most one."""
    queue = FairQueue(most=100, most_per_client=100)
    for i, client in enumerate(jobs):
        queue.put(client, f"session-{i}", f"{client}{i}")
    taken = [job for _ in jobs if (job := queue.take(timeout=0)) is not None]
    assert sorted(taken) == sorted(f"{c}{i}" for i, c in enumerate(jobs))
    for client in set(jobs):
        mine = [i for i, job in enumerate(taken) if job[0] == client]
        assert [int(taken[i][1:]) for i in mine] == sorted(int(taken[i][1:]) for i in mine)
        for a, b in pairwise(mine):
            between = [job[0] for job in taken[a + 1 : b]]
            assert len(between) == len(set(between))


@given(steps=st.lists(st.tuples(st.sampled_from(["put", "take", "back"]), st.sampled_from("abc")), max_size=60))
def test_whoever_was_served_longest_ago_comes_next(steps: list[tuple[str, str]]) -> None:
    """Over any order of arrivals, ends and yields: of the clients that wait, the least recently served one is taken."""
    queue = FairQueue(most=100, most_per_client=100)
    waiting: dict[str, list[str]] = {c: [] for c in "abc"}
    served, running = dict.fromkeys("abc", 0), list[str]()
    for number, (what, client) in enumerate(steps, start=1):
        if what == "put":
            queue.put(client, f"s{number}", f"{client}{number}")
            waiting[client].append(f"{client}{number}")
        elif what == "take":
            job = queue.take(timeout=0)
            ready = [c for c in "abc" if waiting[c]]
            assert (job is None) == (not ready)
            if job is not None:
                assert served[job[0]] == min(served[c] for c in ready)
                assert job == waiting[job[0]].pop(0)
                served[job[0]] = number
                running.append(job)
        elif running:  # the oldest running job gives up its turn
            job = running.pop(0)
            assert queue.others_wait(job[0]) == any(waiting[c] for c in "abc" if c != job[0])
            queue.put(job[0], f"s{job[1:]}", job, first=True)
            queue.release(f"s{job[1:]}")
            waiting[job[0]].insert(0, job)


def test_a_client_that_was_just_served_does_not_come_before_one_that_was_not() -> None:
    queue = FairQueue(most=10, most_per_client=10)
    queue.put("long", "s", "first")
    assert queue.take(timeout=0) == "first"
    queue.put("long", "t", "second")  # while the first one runs, and before the other client comes
    queue.put("short", "u", "quick")
    assert (queue.ahead("quick"), queue.ahead("second")) == (0, 1)
    assert [queue.take(timeout=0), queue.take(timeout=0)] == ["quick", "second"]


def test_a_session_runs_one_job_at_a_time() -> None:
    queue = FairQueue(most=10, most_per_client=10)
    for job in ("one", "two"):
        queue.put("a", "s", job)
    queue.put("b", "t", "three")
    assert queue.ahead("two") == 2
    assert [queue.take(timeout=0) for _ in range(3)] == ["one", "three", None]
    queue.release("s")
    assert queue.take(timeout=0) == "two"


def test_a_full_queue_says_when_to_come_back() -> None:
    queue = FairQueue(most=3, most_per_client=2)
    for i in range(2):
        queue.put("a", f"s{i}", f"a{i}")
    with pytest.raises(Refusal) as caught:
        queue.check_room("a", seconds_per_job=30)
    assert (caught.value.status, caught.value.retry_after) == (429, 30)
    queue.put("b", "s", "b0")
    with pytest.raises(Refusal) as caught:
        queue.check_room("c", seconds_per_job=30)
    assert (caught.value.status, caught.value.retry_after) == (503, 30)
    assert queue.remove("a0")
    assert not queue.remove("a0")
    queue.check_room("c", seconds_per_job=30)


def test_close_wakes_a_waiting_taker() -> None:
    queue = FairQueue(most=3, most_per_client=2)
    found: list[str | None] = ["something"]
    thread = threading.Thread(target=lambda: found.append(queue.take()))
    thread.start()
    queue.close()
    thread.join(timeout=5)
    assert found == ["something", None]


def test_a_bucket_empties_and_refills() -> None:
    rates = RateLimiter(per_second=2, burst=3)
    for _ in range(3):
        rates.check("a", 0.0)
    with pytest.raises(Refusal) as caught:
        rates.check("a", 0.0)
    assert (caught.value.status, caught.value.retry_after) == (429, 0.5)
    rates.check("b", 0.0)
    rates.check("a", 0.5)
    with pytest.raises(Refusal):
        rates.check("a", 0.6)


def test_events_wake_listeners_and_refuse_private_facts() -> None:
    hub = EventHub()

    async def listen() -> list[dict[str, object]]:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, lambda: threading.Thread(target=hub.publish, args=("j",), kwargs={"unit": 3}).start())
        await hub.wait("j", 0, timeout=5)
        return [facts for _, facts in hub.since("j", 0)]

    assert asyncio.run(listen()) == [{"unit": 3}]
    with pytest.raises(ValueError, match="not a public fact"):
        hub.publish("j", token=5)


def test_metrics_are_prometheus_text() -> None:
    metrics = Metrics()
    metrics.count("heatfhe_requests_total", status="200")
    metrics.observe("heatfhe_queue_seconds", 0.5)
    text = metrics.text({"heatfhe_workers": 2})
    assert 'heatfhe_requests_total{status="200"} 1' in text
    assert 'heatfhe_queue_seconds_bucket{le="1"} 1' in text
    assert 'heatfhe_queue_seconds_bucket{le="0.1"} 0' in text
    assert "heatfhe_workers 2" in text
