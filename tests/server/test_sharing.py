# SPDX-License-Identifier: Apache-2.0
"""One client does not take what the others need: memory, the event loop, threads, locks, turns on a device."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from heatfhe.server import ModelSource
from heatfhe.server.http.limits import RateLimiter
from heatfhe.server.store.jobs import Job
from heatfhe.server.work.queue import FairQueue
from heatfhe.wire import MEDIA_TYPE, Refusal
from tests.server.serving import Joined, joined, on_socket, served_circuit, wait_for

LARGE, PIECE, DOWNLOADS = 8 << 20, 128 << 10, 8
JS = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def app(source: ModelSource, home: Path) -> Iterator[Joined]:
    with joined(source, home) as running:
        service = running.service
        service.models["large"] = replace(service.models["tiny"], bundle=bytes(range(256)) * (LARGE // 256))
        yield running


def bearer(app: Joined, name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {app.token(name)}"}


# -- answers nobody reads ----------------------------------------------------------------------------------------------


def test_a_large_answer_goes_out_in_pieces_each_after_the_one_before(app: Joined) -> None:
    sizes: list[int] = []

    async def ask() -> None:
        stuck = asyncio.Event()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": "/v1/models/large/bundle", "raw_path": b"", "query_string": b"", "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in bearer(app, "alice").items()],
            "client": ("127.0.0.1", 1), "server": ("joined", 80),
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            await stuck.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                sizes.append(len(message["body"]))
                if len(sizes) == 3:  # the caller stops reading here
                    stuck.set()
                    await asyncio.Event().wait()

        await app.app(scope, receive, send)

    asyncio.run(asyncio.wait_for(ask(), 60))
    assert sizes == [PIECE] * 3


def test_clients_that_do_not_read_hold_a_few_pieces_and_not_the_whole(app: Joined) -> None:
    """24 downloads of 8 MiB whose callers read one line: 8 have a piece each in memory, 16 are refused."""
    head = "".join(f"{k}: {v}\r\n" for k, v in bearer(app, "mallory").items())
    ask = f"GET /v1/models/large/bundle HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode()
    with on_socket(app, per_address=None) as url:
        links = [socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) for _ in range(24)]
        try:
            said = []
            for link in links:
                link.settimeout(60)
                link.sendall(ask)
                said.append(link.recv(12))
            assert sorted(said) == [b"HTTP/1.1 200"] * DOWNLOADS + [b"HTTP/1.1 429"] * (24 - DOWNLOADS)
            held = sum(link.transport.get_write_buffer_size() for link in list(app.connections))
            assert held <= DOWNLOADS * (PIECE + 4096)
            answer = httpx.get(f"{url}/v1/models/large/bundle", headers=bearer(app, "alice"), timeout=60)
            assert answer.content == bytes(range(256)) * (LARGE // 256)  # another client's is whole
        finally:
            for link in links:
                link.close()
        again = bearer(app, "mallory")
        wait_for(lambda: httpx.get(f"{url}/v1/models/large/bundle", headers=again, timeout=60).status_code == 200)


# -- work on the event loop --------------------------------------------------------------------------------------------


BODY = b'{"kind":"job"}'


class Parser:
    """In place of ``json.loads``: says that BODY has come, and goes on with it when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called, self.go, self._loads = threading.Event(), threading.Event(), json.loads
        monkeypatch.setattr(json, "loads", self.parse)

    def parse(self, text: str | bytes, **options: Any) -> Any:
        if text in (BODY, BODY.decode()):
            self.called.set()
            assert self.go.wait(20), "nobody else was served meanwhile"
        return self._loads(text, **options)


def message() -> bytes:
    return b"HEATFHE1\x01\x00\x00\x00" + len(BODY).to_bytes(4, "little") + BODY + bytes(400)


@pytest.mark.parametrize("kind", ["manifest", "session", "job"])
def test_others_are_served_while_a_body_is_parsed(app: Joined, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    client = app.client("mallory", model="tiny")
    session = client.open().session
    job = {"content-type": MEDIA_TYPE, "idempotency-key": "k" * 12}
    send: dict[str, Callable[[httpx.Client], httpx.Response]] = {
        "manifest": lambda http: http.post("/v1/keysets", content=BODY, headers=JS),
        "session": lambda http: http.post("/v1/sessions", content=BODY, headers=JS),
        "job": lambda http: http.post(f"/v1/sessions/{session}/jobs", content=message(), headers=job),
    }
    headers = dict(client._link._client.headers)
    with (
        httpx.Client(base_url="http://joined", transport=app.transport, headers=headers) as http,
        ThreadPoolExecutor(1) as pool,
    ):
        parser = Parser(monkeypatch)
        waiting = pool.submit(send[kind], http)
        assert parser.called.wait(20)
        served = pool_get(app, "/healthz")
        parser.go.set()
        assert (served, waiting.result(timeout=60).status_code) == (200, 400)


def pool_get(app: Joined, path: str) -> int:
    with httpx.Client(base_url="http://joined", transport=app.transport) as http, ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: http.get(path).status_code).result(timeout=15)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/keysets", b'{"config_id":"x","keys":[' + b"1," * 900_000 + b"1]}"),
        ("/v1/keysets", b"[" + b"[]," * 600_000 + b"1]"),
        ("/v1/sessions", b'{"a":[' + b"1," * 1900 + b"1]}"),
        ("/v1/sessions", b'{"a":"' + b"x" * 100_000 + b'"}'),
    ],
)
def test_a_body_with_too_many_values_is_refused_before_it_is_parsed(
    app: Joined, monkeypatch: pytest.MonkeyPatch, path: str, body: bytes
) -> None:
    calls, loads = list[int](), json.loads

    def parse(text: str | bytes, **options: Any) -> Any:
        calls.append(len(text))
        return loads(text, **options)

    with app.http("mallory") as http:
        monkeypatch.setattr(json, "loads", parse)
        answer = http.post(path, content=body, headers=JS)
    assert answer.status_code in (400, 413)
    assert [size for size in calls if size >= 1000] == []


def test_the_largest_legal_manifest_passes_the_early_caps(app: Joined) -> None:
    config = app.client("alice", model="tiny").config.config_id
    keys = [{"name": f"{i:0128d}", "size": 1 << 30, "sha256": f"{i:064x}"} for i in range(4096)]
    body = json.dumps({"config_id": config, "keys": keys}).encode()
    with app.http("carol") as http:
        answer = http.post("/v1/keysets", content=body, headers=JS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "quota")  # it was read; 4 TiB do not fit


def test_large_json_costs_more_of_a_clients_rate(source: ModelSource, tmp_path: Path) -> None:
    """1 MiB costs as much as 64 small requests, and is refused before its body is read."""
    with joined(source, tmp_path, requests_per_second=1e-6, request_burst=200) as app, app.http() as http:
        body = b'{"config_id":"' + b"x" * (1 << 20) + b'"}'
        answers = [http.post("/v1/keysets", content=body, headers=JS).status_code for _ in range(5)]
        assert answers == [400, 400, 400, 429, 429]


def test_no_cost_exceeds_a_full_bucket() -> None:
    rates = RateLimiter(per_second=1, burst=4)
    rates.check("a", 0.0, cost=1000.0)
    with pytest.raises(Refusal):
        rates.check("a", 0.0)
    rates.check("a", 1.0)


def test_whoever_asks_too_often_waits_for_the_refusal(source: ModelSource, tmp_path: Path) -> None:
    """A refusal that came at once would invite the next request: each of these takes a quarter of a second."""
    with joined(source, tmp_path, requests_per_second=0.1, request_burst=1) as app, app.http() as http:
        assert http.get("/v1/models").status_code == 200
        began = time.monotonic()
        assert [http.get("/v1/models").status_code for _ in range(4)] == [429] * 4
        assert time.monotonic() - began > 0.95


# -- threads and locks -------------------------------------------------------------------------------------------------


def test_one_clients_slow_calls_leave_threads_for_the_others(app: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests share 40 threads: 60 calls of one client that wait must not take them all."""
    go, real = threading.Event(), app.service.keys.all
    monkeypatch.setattr(app.service.keys, "all", lambda c: go.wait(40) and [] if c == "mallory" else real(c))
    with app.http("mallory") as mallory, app.http("alice") as alice, ThreadPoolExecutor(61) as pool:
        slow = [pool.submit(mallory.get, "/v1/keysets") for _ in range(60)]
        try:
            served = pool.submit(alice.get, "/v1/keysets").result(timeout=20)
            assert served.status_code == 200
        finally:
            go.set()
        assert {call.result(timeout=60).status_code for call in slow} == {200}


def test_a_clients_long_hash_holds_up_nobody_else(app: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last chunk of a key is hashed whole, for a second per gigabyte: other clients' key sets go on meanwhile."""
    from heatfhe.server.store import keys

    config = app.client("alice", model="tiny").config.config_id
    started, go, real = threading.Event(), threading.Event(), keys.file_digest

    def digest(path: Path) -> str:
        started.set()
        assert go.wait(20), "nobody else was served meanwhile"
        return real(path)

    def upload(http: httpx.Client, data: bytes) -> int:
        sha = hashlib.sha256(data).hexdigest()
        manifest = {"config_id": config, "keys": [{"name": "r", "size": len(data), "sha256": sha}]}
        key_set = http.post("/v1/keysets", json=manifest).json()["key_set"]
        headers = {"content-type": "application/octet-stream", "x-chunk-sha256": sha}
        path = f"/v1/keysets/{key_set}/blobs/{sha}?offset=0"
        return http.put(path, content=data, headers=headers).status_code

    with app.http("mallory") as mallory, app.http("alice") as alice, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(keys, "file_digest", digest)
        slow = pool.submit(upload, mallory, np.random.default_rng(1).bytes(1000))
        try:
            assert started.wait(20)
            monkeypatch.setattr(keys, "file_digest", real)
            assert pool.submit(upload, alice, np.random.default_rng(2).bytes(1000)).result(timeout=15) == 200
            assert alice.get("/v1/keysets").status_code == 200
        finally:
            go.set()
        assert slow.result(timeout=60) == 200


# -- ended jobs --------------------------------------------------------------------------------------------------------


def ended_job(app: Joined, client: str, number: int) -> str:
    """A job of a client that has ended, made without running it."""
    service = app.service
    upload = app.home / f"upload-{client}-{number}"
    upload.write_bytes(b"x")
    job = Job(
        job=secrets.token_hex(16), client=client, session="0" * 32, mode="free", steps=1, inputs=1, units=1,
        pending=False, state="queued", created=1000.0 + number, idempotency=f"{client}-key-{number:04d}", request="",
    )  # fmt: skip
    service.jobs.add(job, upload)
    service.dispatcher._end(job.job, "failed", "engine_failed", "made by a test")
    return str(job.job)


def test_ended_jobs_come_in_pages_newest_first_and_256_are_kept(app: Joined) -> None:
    made = [ended_job(app, "paula", i) for i in range(260)][-256:]
    with app.http("paula") as http:
        pages, before = [], {}
        while len(pages) < 5 and (page := http.get("/v1/jobs", params=before).json()["jobs"]):
            pages.append([row["job"] for row in page])
            before = {"before": page[0]["job"]}
        assert [len(page) for page in pages] == [100, 100, 56]
        assert pages[2] + pages[1] + pages[0] == made
        assert [row["job"] for row in http.get("/v1/jobs", params={"limit": 2}).json()["jobs"]] == made[-2:]
        assert http.get("/v1/jobs", params={"limit": 101}).status_code == 400
        assert http.get("/v1/jobs", params={"before": "0" * 32}).status_code == 404
    with app.http("alice") as http:
        assert http.get("/v1/jobs", params={"before": made[0]}).status_code == 404  # no job of hers


def test_a_client_keeps_its_newest_ended_jobs_only(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path, ended_jobs_per_client=5) as app:
        ended_job(app, "bob", 0)
        made = [ended_job(app, "alice", i) for i in range(12)]
        assert [j.job for j in app.service.jobs.of("alice")] == made[-5:]
        assert sorted(p.name for p in (tmp_path / "server" / "clients" / "alice" / "jobs").iterdir()) == sorted(
            made[-5:]
        )
        assert len(app.service.jobs.of("bob")) == 1
        assert set(app.service.events._events) == {j.job for c in ("alice", "bob") for j in app.service.jobs.of(c)}


def test_an_ended_job_keeps_few_events(app: Joined) -> None:
    job = ended_job(app, "eve", 0)
    for unit in range(300):
        app.service.events.publish(job, unit=unit)
    app.service.events.settle(job)
    assert [facts["unit"] for _, facts in app.service.events.since(job, 0)] == list(range(284, 300))


# -- turns on a device -------------------------------------------------------------------------------------------------


def test_a_long_job_gives_way_to_a_short_one_and_both_are_right(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device: a job of 14 steps runs when another client's job of one step comes, and the short one ends first."""
    with joined(source, tmp_path, turn_seconds=1e-6) as app, ThreadPoolExecutor(2) as pool:
        alice, bob = app.client("alice"), app.client("bob")
        alice.generate([1], 1)  # her worker is open: else her first turn would last four times as long as that takes
        bob.upload_keys()
        dispatcher, both = app.service.dispatcher, threading.Event()
        real, states = dispatcher._describe, list[str]()

        def describe(job: Any) -> Any:
            assert both.wait(60)  # until both jobs are there
            return real(job)

        monkeypatch.setattr(dispatcher, "_describe", describe)
        facts = lambda event: states.append(event.get("state", ""))  # noqa: E731
        long = pool.submit(lambda: alice.generate([1, 2], 14, keep=True, facts=facts))
        wait_for(lambda: dispatcher.running or app.service.jobs.active(client="alice"))
        wait_for(lambda: not len(app.service.queue))  # the device has taken hers
        short = pool.submit(lambda: bob.generate([3], 1, keep=True))
        wait_for(lambda: len(app.service.queue) == 1)
        both.set()
        assert list(short.result(120).tokens) == served_circuit().generate([3], 1).tokens
        assert list(long.result(120).tokens) == served_circuit().generate([1, 2], 14).tokens
        (hers,) = app.service.jobs.of("alice")
        (his,) = app.service.jobs.of("bob")
        assert hers.started < his.started < his.ended < hers.ended
        assert "queued" in states[states.index("running") :]


def test_a_job_is_cancelled_while_it_waits_for_its_next_turn(app: Joined) -> None:
    from heatfhe.server.work.dispatch import Dispatcher
    from heatfhe.server.work.orders import Ended

    service = app.service
    queue = FairQueue(most=9, most_per_client=9)
    ended: list[str] = []
    dispatcher = Dispatcher(
        [], queue, service.jobs, service.events, service.metrics, cast(Any, None),
        lambda job: ended.append(job.state),
    )  # fmt: skip
    for early in (True, False):
        upload = app.home / f"turn-{early}"
        upload.write_bytes(b"x")
        job = Job(
            job=secrets.token_hex(16), client="tom", session="1" * 32, mode="free", steps=9, inputs=1, units=9,
            pending=False, state="queued", created=1.0, idempotency=f"turn-key-{early}", request="",
        )  # fmt: skip
        service.jobs.add(job, upload)
        if early:
            dispatcher.cancel(job)  # it was running: only noted
        dispatcher._settle(job, Ended(job=job.job, state="yielded"))
        if not early:
            assert (len(queue), service.jobs.get("tom", job.job).state) == (1, "queued")
            dispatcher.cancel(job)
        assert (len(queue), service.jobs.get("tom", job.job).state) == (0, "cancelled")
    assert ended == ["cancelled"] * 2
