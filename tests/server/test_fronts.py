# SPDX-License-Identifier: Apache-2.0
"""Fronts that share a desk on a real Ray, started here: one server for its clients, whichever process is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from heatfhe.client import Client
from heatfhe.files import read_json
from heatfhe.server import ClientBook, ModelSource, Settings, create_front, start_desk
from heatfhe.server.store.jobs import ACTIVE, KIND, VERSION
from heatfhe.wire import KeyEntry, KeyManifest
from tests.server.serving import AppTransport, BigKeyring, ServerProcess, served_circuit, wait_for
from tests.server.small_ray import small_ray
from tests.server.test_app import post, request_bytes
from tests.server.test_ray import children

ray = pytest.importorskip("ray", reason="a desk on Ray needs the ray extra")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_ray():
        yield


@dataclass
class Fronts:
    """Two fronts in this process and their desk in another."""

    settings: Settings
    desk: Any
    transports: list[AppTransport]

    def client(self, name: str, front: int = 0, **options: Any) -> Client:
        token = ClientBook(self.settings.folder / "clients.json").add(name)
        folder = self.settings.folder.parent / name
        options = {"simulate": True, "folder": folder, "patience": 120.0, "keyring": BigKeyring, **options}
        return Client("http://front", token=token, transport=self.transports[front], **options)


@contextmanager
def fronts(source: ModelSource, home: Path, **options: Any) -> Iterator[Fronts]:
    fast = {"requests_per_second": 1e6, "request_burst": 1_000_000, "reserve_bytes": 0, "resident_workers": 4}
    settings = Settings(
        folder=home / "server", models=(source,), simulate=True, joined=True, ray="local", fronts=2,
        **{**fast, "seats": (1, 1), **options},
    )  # fmt: skip
    desk = start_desk(settings)
    transports = [AppTransport(create_front(settings)) for _ in range(2)]
    try:
        yield Fronts(settings, desk, transports)
    finally:
        for transport in transports:
            transport.shut()
        desk.close()


def expected(number: int, steps: int = 6) -> list[int]:
    return list(served_circuit().generate([number + 1, 2], steps).tokens)


def records(folder: Path) -> list[dict[str, Any]]:
    """Every job on disk."""
    return [read_json(path, KIND, (VERSION,)) for path in folder.glob("clients/*/jobs/*/job.json")]


def metric(text: str, name: str) -> float:
    """A counter's sum over the labels that are not named, or a gauge."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(name)]
    return sum(float(value) for label, value in lines if label == name or label.startswith(f"{name}{{"))


def test_one_idempotency_key_sent_to_two_fronts_at_once_is_one_job(source: ModelSource, tmp_path: Path) -> None:
    """Opened once and queued once, each with one fresh answer; the keys went half through each front."""
    with fronts(source, tmp_path) as served:
        client = served.client("alice")
        client.upload_keys()
        headers = client._link._client.headers
        https = [httpx.Client(base_url="http://f", transport=t, headers=headers, timeout=60) for t in served.transports]
        asked = {"config_id": client.config.config_id, "key_set": client.upload_keys()}
        with ThreadPoolExecutor(8) as pool:
            opened = list(pool.map(lambda i: post_session(https[i % 2], asked), range(8)))
            assert sorted(answer.status_code for answer in opened) == [200] * 7 + [201]
            (session,) = {answer.json()["session"] for answer in opened}
            data = request_bytes(client)
            sent = list(pool.map(lambda i: post(https[i % 2], session, data, "one-key-for-all"), range(8)))
        assert sorted(answer.status_code for answer in sent) == [200] * 7 + [202]
        (job,) = {answer.json()["job"] for answer in sent}
        wait_for(lambda: https[0].get(f"/v1/jobs/{job}").json()["state"] == "done", seconds=120)
        assert https[1].get(f"/v1/jobs/{job}/outputs/1").content == https[0].get(f"/v1/jobs/{job}/outputs/1").content
        assert https[0].get(f"/v1/sessions/{session}").json()["position"] == 3  # two inputs and the first of two steps
        assert len(records(served.settings.folder)) == 1
        assert list((served.settings.folder / "clients" / "alice" / "incoming").iterdir()) == []


def post_session(http: httpx.Client, asked: dict[str, str]) -> httpx.Response:
    return http.post("/v1/sessions", json=asked, headers={"idempotency-key": "one-session-key"})


def test_two_fronts_write_one_key_and_neither_doubles_a_chunk(source: ModelSource, tmp_path: Path) -> None:
    key = bytes(range(256)) * 1000
    name, pieces = sha256(key).hexdigest(), [key[i : i + 32_000] for i in range(0, len(key), 32_000)]
    with fronts(source, tmp_path) as served:
        client = served.client("alice")
        headers = client._link._client.headers
        https = [httpx.Client(base_url="http://f", transport=t, headers=headers, timeout=60) for t in served.transports]
        manifest = KeyManifest(
            config_id=client.config.config_id, keys=(KeyEntry(name="rotation-1", size=len(key), sha256=name),)
        )
        key_set = https[0].post("/v1/keysets", json=manifest.as_json()).json()["key_set"]

        def put(front: int, number: int) -> httpx.Response:
            piece = pieces[number]
            return https[front].put(
                f"/v1/keysets/{key_set}/blobs/{name}", params={"offset": 32_000 * number}, content=piece,
                headers={"content-type": "application/octet-stream", "x-chunk-sha256": sha256(piece).hexdigest()},
            )  # fmt: skip

        with ThreadPoolExecutor(2) as pool:
            for number in range(len(pieces)):
                told = list(pool.map(partial(put, number=number), range(2)))
                last = number == len(pieces) - 1  # a whole key answers everyone with its size
                assert sorted(answer.status_code for answer in told) == ([200, 200] if last else [200, 409])
        assert https[1].get(f"/v1/keysets/{key_set}").json()["complete"] is True
        assert (served.settings.folder / "clients" / "alice" / "blobs" / name).read_bytes() == key


def test_metrics_are_sums_over_seats_and_fronts(source: ModelSource, tmp_path: Path) -> None:
    with fronts(source, tmp_path, seats=(2, 2)) as served, ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda i: served.client(f"client-{i}", front=i).generate([i + 1, 2], 6), range(2)))
        assert [list(answer.tokens) for answer in said] == [expected(i) for i in range(2)]
        https = [httpx.Client(base_url="http://f", transport=t, timeout=60) for t in served.transports]
        for front, times in ((0, 3), (1, 4)):
            for _ in range(times):
                assert https[front].get("/nowhere").status_code == 404

        def missed() -> float:
            https[1].get("/metrics")  # a front hands its own counts over before it answers this
            return metric(https[0].get("/metrics").text, 'heatfhe_requests_total{status="404"}')

        wait_for(lambda: missed() == 3 + 4)
        text = https[0].get("/metrics").text
        assert (metric(text, "heatfhe_seats"), metric(text, "heatfhe_jobs_total")) == (2, 2)
        assert metric(text, "heatfhe_steps_total") == 2 * 7
        assert metric(text, "heatfhe_received_bytes_total") > 2 * sum(BigKeyring.sizes)


def actors(kind: str) -> list[int]:
    """Processes of the living actors of a class on this module's cluster."""
    found = ray._private.state.actors().values()
    return [row["Pid"] for row in found if row["ActorClassName"] == kind and row["State"] == "ALIVE"]


@pytest.mark.parametrize("victim", ["seat", "worker", "desk", "fronts", "server"])
def test_whichever_process_is_killed_nothing_is_lost_and_nothing_doubled(
    source: ModelSource, tmp_path: Path, victim: str
) -> None:
    """Eight conversations on two seats; a kill -9 while some have ended and others run or wait. All have the tokens of
    a single machine, and there is one job for each.

    ``fronts`` are both HTTP processes: every event stream is cut, and its listener asks again. ``server`` is the
    process that started the others, which end with it; it is started again.
    """
    folder, struck = tmp_path / "server", threading.Event()
    address = ray.get_runtime_context().gcs_address
    server = ServerProcess(source, folder, "--ray", address, "--seats", "2", "--fronts", "2", "--workers", "4")
    book = ClientBook(folder / "clients.json")
    seats = actors("_Place")
    targets = {
        "seat": lambda: seats[:1],
        "worker": lambda: [child for pid in seats for child in children(pid)][:1],
        "desk": lambda: [server.facts["desk"]],
        "fronts": lambda: server.facts["fronts"],
        "server": lambda: [server.process.pid],
    }
    clients = [
        Client(
            server.url, token=book.add(f"client-{i}"), simulate=True, folder=tmp_path / f"client-{i}",
            keyring=BigKeyring, patience=240.0,
        )
        for i in range(8)
    ]  # fmt: skip

    def talk(number: int) -> list[int]:
        said = []
        for token in clients[number].stream([number + 1, 2], 6, keep=True):
            said.append(token)
            busy = [job for job in records(folder) if job["state"] in ACTIVE]
            if len(said) >= 2 and busy and not struck.is_set():
                struck.set()
                pids = targets[victim]()
                assert pids
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                if victim == "server":
                    server.process.wait()
                    server.restart()
        return said

    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(talk, range(8))) == [expected(i) for i in range(8)]
        assert struck.is_set()
        jobs = records(folder)
        assert sorted(job["client"] for job in jobs) == [f"client-{i}" for i in range(8)]  # one each
        assert {(job["state"], job["done"], job["outputs"]) for job in jobs} == {("done", 7, 6)}
        assert [client.sessions()[0]["position"] for client in clients] == [7] * 8
        assert server.process.poll() is None
        if victim == "desk":
            assert actors("_Desk") != [server.facts["desk"]]
    finally:
        server.stop()
    wait_for(lambda: actors("_Desk") == actors("_Place") == [], seconds=60)
