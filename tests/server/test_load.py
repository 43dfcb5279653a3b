# SPDX-License-Identifier: Apache-2.0
"""Eight clients at once on the clear engine: no session lost or mixed, turns are fair, waiting times are reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from heatfhe.client import Client
from heatfhe.server import ClientBook, ModelSource
from tests.server.serving import ServerProcess, served_circuit

CLIENTS = 8


def load(source: ModelSource, home: Path, *, seconds: float, most: int) -> tuple[list[int], list[float]]:
    """Every client asks again and again with prompts of its own; returns jobs per client and every queue time."""
    server = ServerProcess(source, home / "server", "--workers", str(CLIENTS), "--rate", "10000")
    book = ClientBook(home / "server" / "clients.json")
    tokens = [book.add(f"client-{i}") for i in range(CLIENTS)]
    done, waits, failures = [0] * CLIENTS, [], []
    end = time.monotonic() + seconds

    def ask(i: int) -> None:
        rng, circuit = np.random.default_rng(i), served_circuit()
        headers = {"authorization": f"Bearer {tokens[i]}"}
        try:
            with (
                Client(server.url, token=tokens[i], folder=home / f"c{i}", simulate=True) as client,
                httpx.Client(base_url=server.url, headers=headers, timeout=60) as http,
            ):
                client.upload_keys()
                while time.monotonic() < end and done[i] < most:
                    prompt = [int(t) for t in rng.integers(0, 63, size=int(rng.integers(1, 4)))]
                    answer = client.generate(prompt, 2, keep=True)
                    (job,) = http.get("/v1/jobs").json()["jobs"]  # its own, and no other's
                    client.delete_session(answer.session)
                    waits.append(job["started"] - job["created"])
                    done[i] += 1
                    if list(answer.tokens) != circuit.generate(prompt, 2).tokens:
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
        text = httpx.get(f"{server.url}/metrics", timeout=30).text
        ended = [line.split() for line in text.splitlines() if line.startswith("heatfhe_jobs_total")]
        assert [(name, float(count)) for name, count in ended] == [
            ('heatfhe_jobs_total{outcome="done"}', float(sum(done)))
        ]
        return done, sorted(waits)
    finally:
        server.stop()


def check(done: list[int], waits: list[float], report: Callable[[str, object], None]) -> None:
    assert min(done) >= 1
    assert max(done) <= 3 * min(done) + 3  # turns are taken: nobody gets far ahead
    report("jobs per client", done)
    report("queue seconds, p50 and p99", (waits[len(waits) // 2], waits[int(0.99 * (len(waits) - 1))]))


def test_eight_clients_for_a_moment(
    source: ModelSource, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    check(*load(source, tmp_path, seconds=40, most=1), record_property)


@pytest.mark.slow
def test_eight_clients_for_five_minutes(
    source: ModelSource, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done, waits = load(source, tmp_path, seconds=300, most=10**6)
    check(done, waits, record_property)
    assert waits[int(0.99 * (len(waits) - 1))] <= 60
