# SPDX-License-Identifier: Apache-2.0
"""Seats on a real Ray, started here: the tokens of one machine, also when a seat or a worker is killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from heatfhe.client import Client
from heatfhe.errors import ConfigError, HeatError
from heatfhe.server import ModelSource
from heatfhe.server.store.shelf import MARK
from heatfhe.server.work.orders import pack
from tests.server.serving import BigKeyring, Joined, ServerProcess, joined, served_circuit, wait_for
from tests.server.small_ray import small_ray

ray = pytest.importorskip("ray", reason="seats on Ray need the ray extra")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_ray():
        yield


def on_ray(source: ModelSource, home: Path, **options: Any) -> Any:
    return joined(source, home, ray="local", **{"seats": (2, 2), "resident_workers": 4, **options})


def talk(app: Joined, number: int, steps: int = 6) -> list[int]:
    """One conversation of a client of its own."""
    return list(app.client(f"client-{number}", patience=120.0).generate([number + 1, 2], steps).tokens)


def expected(number: int, steps: int = 6) -> list[int]:
    return list(served_circuit().generate([number + 1, 2], steps).tokens)


def metric(app: Joined, name: str) -> float:
    text = app.service.metrics.text(app.service.gauges())
    found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def pids(app: Joined) -> list[int]:
    return [int(seat.prepare()["pid"]) for seat in app.service.dispatcher.seats]


def children(pid: int) -> list[int]:
    """Worker processes of an actor."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"heatfhe.server.work.worker" in command:
            found.append(int(folder.name))
    return found


def test_eight_conversations_on_two_seats_have_the_tokens_of_one_machine(source: ModelSource, tmp_path: Path) -> None:
    with on_ray(source, tmp_path) as app, ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda i: talk(app, i), range(8)))
        assert said == [expected(i) for i in range(8)]
        assert (metric(app, "heatfhe_seats"), metric(app, "heatfhe_jobs_total")) == (2, 8)
        assert {seat.prepare()["mark"] for seat in app.service.dispatcher.seats} == {
            (tmp_path / "server" / MARK).read_text()
        }


def test_what_a_seat_is_told_names_things_in_the_folder_and_no_path_of_this_machine(
    source: ModelSource, tmp_path: Path
) -> None:
    with on_ray(source, tmp_path, seats=(1, 1)) as app:
        app.client("alice", patience=120.0).generate([1], 1, keep=True)
        (job,) = app.service.jobs.of("alice")
        _, opening, order = app.service._describe(job)
        paths = [value for record in (opening, order) for name in record.__slots__
                 if isinstance(value := getattr(record, name), Path)]  # fmt: skip
        assert len(paths) == 7
        assert [path for path in paths if path.is_absolute()] == []
        assert str(tmp_path) not in pack(opening) + pack(order)


@pytest.mark.parametrize("victim", ["seat", "worker"])
def test_a_killed_seat_or_worker_loses_and_doubles_nothing(source: ModelSource, tmp_path: Path, victim: str) -> None:
    with on_ray(source, tmp_path) as app, ThreadPoolExecutor(8) as pool:
        struck, hub = threading.Event(), app.service.events
        publish = hub.publish

        def strike(job: str, **facts: Any) -> None:
            publish(job, **facts)
            if facts.get("outputs") == 2 and not struck.is_set():  # in the middle of somebody's answer
                struck.set()
                targets = before if victim == "seat" else [child for pid in before for child in children(pid)]
                for pid in targets[:1]:
                    os.kill(pid, signal.SIGKILL)

        before = pids(app)
        app.service.events.publish = strike
        said = list(pool.map(lambda i: talk(app, i), range(8)))
        assert struck.is_set()
        assert said == [expected(i) for i in range(8)]
        assert metric(app, "heatfhe_jobs_total") == 8
        assert (pids(app) != before) == (victim == "seat")


def test_seats_grow_and_shrink_once(source: ModelSource, tmp_path: Path) -> None:
    times = {"grow_seconds": 0.2, "idle_seconds": 2.0}
    with on_ray(source, tmp_path, seats=(1, 2), **times) as app, ThreadPoolExecutor(6) as pool:
        most, dispatcher = [0], app.service.dispatcher
        add = dispatcher.add

        def added(seat: Any) -> None:
            add(seat)
            most.append(len(dispatcher.seats))

        dispatcher.add = added
        said = list(pool.map(lambda i: talk(app, i), range(6)))
        assert said == [expected(i) for i in range(6)]
        assert max(most) == 2
        wait_for(lambda: len(dispatcher.seats) == 1, seconds=120)


def test_a_job_on_a_seat_is_cancelled(source: ModelSource, tmp_path: Path) -> None:
    """The cancellation comes when the worker is open and before its job: it has to travel to the worker and back."""
    with on_ray(source, tmp_path, seats=(1, 1)) as app:
        (seat,) = app.service.dispatcher.seats
        real = seat.worker

        def opened(*args: Any) -> Any:
            worker = real(*args)
            for job in app.service.jobs.active(client="alice"):
                app.service.cancel("alice", job.job)
            return worker

        seat.worker = opened
        with pytest.raises(HeatError):
            app.client("alice", patience=120.0).generate([1, 2], 6, keep=True)
        assert 'heatfhe_jobs_total{outcome="cancelled"} 1\n' in app.service.metrics.text(app.service.gauges())
        assert talk(app, 3) == expected(3)


def test_a_server_killed_in_the_middle_goes_on_after_its_restart(source: ModelSource, tmp_path: Path) -> None:
    """The process that has HTTP, the queue and all records: its seats end with it, and a new one makes new ones."""
    address = ray.get_runtime_context().gcs_address
    server = ServerProcess(source, tmp_path / "server", "--ray", address, "--seats", "2")
    try:
        client = Client(
            server.url, token=server.token, simulate=True, folder=tmp_path / "alice", keyring=BigKeyring, patience=240.0
        )
        outputs = client.stream([5, 2], 6, conversation=client.open())
        said = [next(outputs)]
        server.kill()
        server.restart()
        said += list(outputs)
        assert said == expected(4)
    finally:
        server.stop()


def test_a_seat_that_sees_another_folder_is_refused(source: ModelSource, tmp_path: Path) -> None:
    from heatfhe.server.work.ray_seat import RaySeat

    with on_ray(source, tmp_path, seats=(1, 1)) as app:
        seat = RaySeat("other", app.settings, "0" * 32)
        with pytest.raises(ConfigError, match="does not see this server's folder"):
            seat.prepare()
