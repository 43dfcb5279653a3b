# SPDX-License-Identifier: Apache-2.0
"""Eight clients at once on the clear engine: no session lost or mixed, turns are fair, waiting times are reported."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from heatfhe.client import Client
from heatfhe.server import ClientBook, ModelSource
from tests.server.serving import ServerProcess, served_circuit

CLIENTS = 8


def load(source: ModelSource, home: Path, *, seconds: float, most: int) -> tuple[list[list[float]], float, float]:
    """Every client asks again and again with prompts of its own; returns its times and the queue's p50 and p99."""
    server = ServerProcess(source, home / "server", "--workers", str(CLIENTS), "--rate", "10000")
    book = ClientBook(home / "server" / "clients.json")
    tokens = [book.add(f"client-{i}") for i in range(CLIENTS)]
    end, times = time.monotonic() + seconds, [[] for _ in range(CLIENTS)]
    failures: list[str] = []

    def ask(i: int) -> None:
        rng, circuit = np.random.default_rng(i), served_circuit()
        try:
            with Client(server.url, token=tokens[i], folder=home / f"c{i}", simulate=True) as client:
                client.upload_keys()
                while time.monotonic() < end and len(times[i]) < most:
                    prompt = [int(t) for t in rng.integers(0, 63, size=int(rng.integers(1, 4)))]
                    began = time.monotonic()
                    found = list(client.generate(prompt, 2).tokens)
                    times[i].append(time.monotonic() - began)
                    if found != circuit.generate(prompt, 2).tokens:
                        failures.append(f"client {i}: wrong tokens for {prompt}")
        except Exception as err:
            failures.append(f"client {i}: {type(err).__name__}: {err}")

    try:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=seconds + 120)
        assert failures == []
        text = httpx.get(f"{server.url}/metrics").text
        jobs = _metric(text, 'heatfhe_jobs_total{outcome="done"}')
        assert jobs == sum(len(t) for t in times)
        assert not [line for line in text.splitlines() if line.startswith("heatfhe_jobs_total") and "done" not in line]
        waits = sorted(_waits(server, home))
        return times, waits[len(waits) // 2], waits[int(0.99 * (len(waits) - 1))]
    finally:
        server.stop()


def _metric(text: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def _waits(server: ServerProcess, home: Path) -> list[float]:
    """Queue times from the buckets of the metric: the upper bound of each job's bucket."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counts = [
        (float(x.split('"')[1]), float(x.split()[-1])) for x in lines if "queue_seconds_bucket" in x and "+Inf" not in x
    ]
    out: list[float] = []
    for bound, count in counts:
        out += [bound] * int(count - len(out))
    return out or [0.0]


def check(times: list[list[float]], p50: float, p99: float, record_property: object) -> None:
    done = [len(t) for t in times]
    assert min(done) >= 1
    assert max(done) <= 3 * min(done) + 3  # turns are taken: nobody gets far ahead
    record_property("jobs per client", done)  # type: ignore[operator]
    record_property("queue seconds p50 and p99 (bucket bounds)", (p50, p99))  # type: ignore[operator]


def test_eight_clients_for_a_moment(source: ModelSource, tmp_path: Path, record_property: object) -> None:
    check(*load(source, tmp_path, seconds=40, most=2), record_property)


@pytest.mark.slow
def test_eight_clients_for_five_minutes(source: ModelSource, tmp_path: Path, record_property: object) -> None:
    times, p50, p99 = load(source, tmp_path, seconds=300, most=10**6)
    check(times, p50, p99, record_property)
    assert p99 <= 60
