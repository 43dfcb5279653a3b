# SPDX-License-Identifier: Apache-2.0
"""The app over HTTP, joined in process: every refusal has its status, code and remedy, and jobs run to their end."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from heatfhe.client import Client
from heatfhe.planning import ProgramName
from heatfhe.server import ModelSource
from heatfhe.wire import MEDIA_TYPE, JobHead, JobRequest, Refusal
from tests.server.serving import BigKeyring, Joined, joined, served_circuit, wait_for

MESSAGE = {"content-type": MEDIA_TYPE}


@pytest.fixture(scope="module")
def app(source: ModelSource, home: Path) -> Iterator[Joined]:
    with joined(source, home, chunk_bytes=65_536) as running:
        yield running


@pytest.fixture(scope="module")
def alice(app: Joined) -> Client:
    client = app.client("alice", keyring=BigKeyring)
    client.upload_keys()
    return client


@pytest.fixture
def http(app: Joined, alice: Client) -> Iterator[httpx.Client]:
    with httpx.Client(base_url="http://joined", transport=app.transport, headers=alice._link._client.headers) as client:
        yield client


def request_bytes(client: Client, *, start: int = 0, steps: int = 2, inputs: int = 2, **changes: Any) -> bytes:
    rows = client.bundle.rows(list(range(1, inputs + 1)))
    sealed = tuple(client.keyring.encrypt(client.layout.place_row(r), level=client.layout.input_level) for r in rows)
    values = {
        "config_id": client.config.config_id,
        "plan": client.config.plan,
        "key_set": client.upload_keys(),
        "program": ProgramName.GENERATE,
        "steps": steps,
        "start": start,
        "inputs": inputs,
    }
    return JobRequest(head=JobHead(**{**values, **changes}), inputs=sealed).pack()


def post(http: httpx.Client, session: str, data: bytes, key: str) -> httpx.Response:
    return http.post(f"/v1/sessions/{session}/jobs", content=data, headers={**MESSAGE, "idempotency-key": key})


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_configuration_says_everything_before_a_key_is_made(http: httpx.Client, alice: Client) -> None:
    body = http.get("/v1/models/tiny").json()
    assert body["config_id"] == alice.config.config_id
    assert body["price"]["bootstraps_per_token"] > 0
    assert body["price"]["seconds_per_token"] > 0
    assert body["price"]["key_bytes"] > 0
    assert body["config"]["rotations"] == list(alice.config.rotations)
    assert body["api_versions"] == [1]
    assert http.get("/v1/models").json()["models"] == [{"model": "tiny", "config_id": alice.config.config_id}]
    assert code(http.get("/v1/models/other")) == (404, "not_found")


def test_every_route_wants_a_token(app: Joined) -> None:
    with httpx.Client(base_url="http://joined", transport=app.transport) as stranger:
        for path in (
            "/v1/models",
            "/v1/models/tiny",
            "/v1/keysets",
            "/v1/sessions",
            "/v1/jobs",
            f"/v1/jobs/{'0' * 32}",
        ):
            answer = stranger.get(path)
            assert code(answer) == (401, "unauthorised")
            assert answer.headers["www-authenticate"] == "Bearer"
        assert stranger.get("/v1/models", headers={"authorization": "Bearer heat_wrong"}).status_code == 401
        assert stranger.get("/healthz").json() == {"status": "ok"}


def test_a_job_runs_and_its_record_and_outputs_are_there(app: Joined, http: httpx.Client, alice: Client) -> None:
    session = alice.open().session
    answer = post(http, session, request_bytes(alice, steps=3), "job-key-1")
    assert answer.status_code == 202
    job = answer.json()["job"]
    events = list(alice._link.events(f"/v1/jobs/{job}/events"))
    assert events[-1]["state"] == "done"
    allowed = {
        "state",
        "ahead",
        "unit",
        "units",
        "kind",
        "step",
        "steps",
        "bootstrap",
        "bootstraps",
        "eta_s",
        "outputs",
    }
    assert {key for event in events for key in event} <= allowed
    assert any(event.get("bootstrap") == event.get("bootstraps") for event in events if "bootstrap" in event)
    record = http.get(f"/v1/jobs/{job}").json()
    assert (record["state"], record["outputs"], record["units"], record["done"]) == ("done", 3, 4, 4)
    assert http.get(f"/v1/jobs/{job}/outputs/2").headers["content-type"].startswith("application/vnd.heatfhe.message")
    assert code(http.get(f"/v1/jobs/{job}/outputs/3")) == (404, "not_found")
    assert not list((app.home / "server" / "clients" / "alice" / "jobs" / job).glob("request.bin"))
    again = post(http, session, request_bytes(alice, steps=2), "job-key-1")
    assert code(again) == (409, "conflict")  # other bytes under a used key
    position = http.get(f"/v1/sessions/{session}").json()
    assert (position["position"], position["pending"]) == (4, True)


def test_the_same_bytes_under_the_same_key_are_one_job(http: httpx.Client, alice: Client) -> None:
    session, data = alice.open().session, request_bytes(alice)
    first, second = post(http, session, data, "same-key-1"), post(http, session, data, "same-key-1")
    assert (first.status_code, second.status_code) == (202, 200)
    assert first.json()["job"] == second.json()["job"]
    wait_for(lambda: http.get(f"/v1/jobs/{first.json()['job']}").json()["state"] == "done")
    replay = post(http, session, data, "other-key-1")
    assert code(replay) == (409, "conflict")
    assert replay.json()["error"]["facts"] == {"position": 3, "pending": True}


def test_jobs_that_do_not_fit_are_refused_from_their_header(http: httpx.Client, alice: Client) -> None:
    session = alice.open().session
    cases = [
        ({"config_id": "0" * 64}, (410, "stale_config")),
        ({"plan": "0" * 64}, (410, "stale_config")),
        ({"key_set": "0" * 64}, (409, "key_mismatch")),
        ({"start": 1}, (409, "conflict")),
        ({"steps": 2000}, (413, "too_large")),
        ({"steps": 16}, (413, "too_large")),  # the context is 16 and two inputs are there
    ]
    for i, (changes, expected) in enumerate(cases):
        assert code(post(http, session, request_bytes(alice, **changes), f"bad-key-{i}")) == expected, changes
    assert http.get("/v1/jobs").json()["jobs"] == [
        j for j in http.get("/v1/jobs").json()["jobs"] if j["session"] != session
    ]


def test_one_active_job_per_session_and_cancel(http: httpx.Client, alice: Client) -> None:
    session = alice.open().session
    job = post(http, session, request_bytes(alice, steps=14), "long-key-1").json()["job"]
    assert code(post(http, session, request_bytes(alice), "long-key-2")) == (409, "conflict")
    assert code(http.delete(f"/v1/sessions/{session}")) == (409, "conflict")
    ready = http.get(f"/v1/jobs/{job}/outputs/13")
    assert code(ready) == (409, "not_ready")
    assert http.post(f"/v1/jobs/{job}/cancel").status_code == 200
    wait_for(lambda: http.get(f"/v1/jobs/{job}").json()["state"] == "cancelled")
    assert http.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
    assert http.delete(f"/v1/sessions/{session}").status_code == 204
    assert code(http.get(f"/v1/jobs/{job}")) == (404, "not_found")
    assert code(http.get(f"/v1/sessions/{session}")) == (404, "not_found")


def test_foreign_things_are_not_there(app: Joined, http: httpx.Client, alice: Client) -> None:
    session = alice.open().session
    job = post(http, session, request_bytes(alice), "foreign-1").json()["job"]
    with app.http("bob") as bob:
        for path in (
            f"/v1/sessions/{session}",
            f"/v1/jobs/{job}",
            f"/v1/jobs/{job}/events",
            f"/v1/jobs/{job}/outputs/0",
        ):
            assert code(bob.get(path)) == (404, "not_found")
        assert code(bob.delete(f"/v1/sessions/{session}")) == (404, "not_found")
        assert code(bob.post(f"/v1/jobs/{job}/cancel")) == (404, "not_found")
        assert code(bob.get(f"/v1/keysets/{alice.upload_keys()}")) == (404, "not_found")
        assert code(post(bob, session, request_bytes(alice), "foreign-2")) == (404, "not_found")
        assert bob.get("/v1/sessions").json() == {"sessions": []}
        assert bob.get("/v1/jobs").json() == {"jobs": []}
    wait_for(lambda: http.get(f"/v1/jobs/{job}").json()["state"] == "done")


def test_a_session_needs_a_complete_key_set_of_its_configuration(app: Joined, alice: Client) -> None:
    with app.http("carol") as carol:
        blob = np.random.default_rng(0).bytes(100)
        digest = hashlib.sha256(blob).hexdigest()
        manifest = {"config_id": alice.config.config_id, "keys": [{"name": "r", "size": 100, "sha256": digest}]}
        status = carol.post("/v1/keysets", json=manifest).json()
        assert status["missing"] == [{"sha256": digest, "have": 0}]
        body = {"config_id": alice.config.config_id, "key_set": status["key_set"]}
        assert code(carol.post("/v1/sessions", json=body)) == (409, "key_set_incomplete")
        assert code(carol.post("/v1/sessions", json={**body, "config_id": "0" * 64})) == (410, "stale_config")
        assert code(carol.post("/v1/sessions", json={**body, "key_set": "0" * 64})) == (404, "not_found")
        assert code(carol.post("/v1/keysets", json={**manifest, "config_id": "0" * 64})) == (410, "stale_config")
        path = f"/v1/keysets/{status['key_set']}/blobs/{digest}"
        headers = {"content-type": "application/octet-stream", "x-chunk-sha256": digest}
        assert carol.put(path, params={"offset": 0}, content=blob, headers=headers).json() == {"have": 100}
        session = carol.post("/v1/sessions", json=body)
        assert session.status_code == 201
        assert code(carol.delete(f"/v1/keysets/{status['key_set']}")) == (409, "conflict")
        assert carol.delete(f"/v1/sessions/{session.json()['session']}").status_code == 204
        assert carol.delete(f"/v1/keysets/{status['key_set']}").status_code == 204
        assert not list((app.home / "server" / "clients" / "carol" / "blobs").iterdir())


def test_bodies_are_bounded_before_they_are_read(http: httpx.Client, alice: Client) -> None:
    session, key_set = alice.open().session, alice.upload_keys()
    headers = {**MESSAGE, "idempotency-key": "size-key-1"}
    path = f"/v1/sessions/{session}/jobs"
    assert code(http.post(path, content=b"x", headers={**headers, "content-type": "text/plain"})) == (415, "media_type")
    assert code(http.post(path, content=b"x" * 9, headers={**headers, "content-encoding": "gzip"})) == (
        415,
        "media_type",
    )
    assert code(http.post(path, content=b"HEATFHE1", headers={**headers, "content-length": str(1 << 50)})) == (
        413,
        "too_large",
    )
    assert code(http.post(path, content=(c for c in [b"x"]), headers=headers)) == (411, "length_required")
    blob = alice.keys.manifest().keys[0]
    put = f"/v1/keysets/{key_set}/blobs/{blob.sha256}"
    octets = {"content-type": "application/octet-stream", "x-chunk-sha256": "0" * 64}
    assert code(http.put(put, params={"offset": 0}, content=bytes(65_537), headers=octets)) == (413, "too_large")
    assert code(http.put(put, params={"offset": -1}, content=b"x", headers=octets)) == (400, "bad_message")
    assert code(http.put(put, params={"offset": 0}, content=b"x")) == (400, "bad_message")
    assert code(http.post("/v1/sessions", content=b"[" * 4000, headers={"content-type": "application/json"})) == (
        400,
        "bad_message",
    )
    assert code(http.get("/v1/sessions/..%2f..%2fetc")) == (404, "not_found")
    assert code(http.put("/v1/sessions")) == (405, "method")


def test_a_ciphertext_that_is_none_fails_its_own_job_only(app: Joined, http: httpx.Client, alice: Client) -> None:
    alice.generate([1], 1)  # its worker is open
    head = JobHead(
        config_id=alice.config.config_id, plan=alice.config.plan, key_set=alice.upload_keys(),
        program=ProgramName.GENERATE, steps=1, start=0, inputs=1,
    )  # fmt: skip
    archive = io.BytesIO()
    np.savez(archive, a=np.zeros(128))
    start = b"heatfhe-clear-value\n\x09\x00"
    odd = start + b"\x93NUMPY\x01\x00\x08\x00" + b"\xff" * 8
    worker = [w._process.pid for device in app.service._devices for w in device._workers.values()]
    for i, junk in enumerate((b"", b"junk" * 100, start + bytes(50), start + archive.getvalue(), odd)):
        session = alice.open().session
        job = post(http, session, JobRequest(head=head, inputs=(junk,)).pack(), f"junk-key-{i}").json()["job"]
        wait_for(lambda job=job: http.get(f"/v1/jobs/{job}").json()["state"] == "failed")
        assert http.get(f"/v1/jobs/{job}").json()["error"] == "bad_ciphertext"
        assert http.get(f"/v1/sessions/{session}").json()["position"] == 0
        http.delete(f"/v1/sessions/{session}")
    expected = served_circuit().generate([1, 2], 2).tokens
    assert list(alice.generate([1, 2], 2).tokens) == expected
    assert worker == [w._process.pid for device in app.service._devices for w in device._workers.values()]  # none died


def test_a_worker_that_is_killed_is_started_again_and_the_job_goes_on(app: Joined, alice: Client) -> None:
    killed = False

    def facts(event: dict[str, Any]) -> None:
        nonlocal killed
        if event.get("outputs") == 2 and not killed:
            killed = True
            for device in app.service._devices:
                for worker in device._workers.values():
                    os.kill(worker._process.pid, 9)

    assert list(alice.generate([1, 2, 3], 8, facts=facts).tokens) == served_circuit().generate([1, 2, 3], 8).tokens
    assert killed


def test_a_full_disk_is_a_clear_answer_and_the_session_goes_on_after(
    app: Joined, http: httpx.Client, alice: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, data = alice.open().session, request_bytes(alice, steps=1)
    from heatfhe.server.http import uploads

    class Full:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def write(self, _data: bytes) -> int:
            raise OSError(errno.ENOSPC, "no space left on device")

    real = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(uploads.Path, "open", lambda self, mode="r", *a: Full() if mode == "xb" else real(self, mode, *a))
        answer = post(http, session, data, "full-key-1")
    assert code(answer) == (507, "disk_full")
    assert "retry-after" in answer.headers
    assert not list((app.home / "server" / "clients" / "alice" / "incoming").iterdir())
    job = post(http, session, data, "full-key-1").json()["job"]
    wait_for(lambda: http.get(f"/v1/jobs/{job}").json()["state"] == "done")


def test_metrics_and_logs_hold_sizes_and_timings_only(
    app: Joined, http: httpx.Client, alice: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="heatfhe.server"):
        answer = alice.generate([5, 6], 1)
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "heatfhe.server.access"]
    assert {"method", "route", "status", "received", "sent", "ms"} == set(lines[0])
    text = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("heatfhe.server"))
    secrets = [answer.session, alice.upload_keys(), "alice", str(alice._link._client.headers["authorization"])[7:]]
    assert not any(word in text for word in secrets)
    metrics = http.get("/metrics").text
    assert 'heatfhe_jobs_total{outcome="done"}' in metrics
    assert "alice" not in metrics


def test_rate_limits_and_a_full_queue_say_when_to_come_back(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path, requests_per_second=1.0, request_burst=3) as app, app.http() as http:
        answers = [http.get("/v1/models") for _ in range(5)]
        assert [a.status_code for a in answers] == [200, 200, 200, 429, 429]
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert http.get("/healthz").status_code == 200
    with joined(source, tmp_path / "two", queue_jobs_per_client=1, devices=("cpu",)) as app:
        client = app.client(keyring=BigKeyring)
        client.upload_keys()
        with httpx.Client(
            base_url="http://joined", transport=app.transport, headers=client._link._client.headers
        ) as http:
            answers = []
            for i in range(4):
                answers.append(post(http, client.open().session, request_bytes(client, steps=10), f"many-key-{i}"))
            assert answers[0].status_code == 202
            assert code(answers[-1]) == (429, "queue_full")
            assert "retry-after" in answers[-1].headers


def test_a_stale_configuration_is_gone(source: ModelSource, tmp_path: Path) -> None:
    """The operator serves another plan: old keys and sessions answer 410 and nothing runs on them."""
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        session = client.open().session
        data = request_bytes(client)
        headers = dict(client._link._client.headers)
    renamed = ModelSource(name="other", plan=source.plan, circuit=source.circuit)
    with (
        joined(renamed, tmp_path) as app,
        httpx.Client(base_url="http://joined", transport=app.transport, headers=headers) as http,
    ):
        assert code(post(http, session, data, "stale-key-1")) == (410, "stale_config")
        assert len(http.get("/v1/sessions").json()["sessions"]) == 1
        assert http.delete(f"/v1/sessions/{session}").status_code == 204


def test_what_expires_is_removed(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path, session_seconds=100, key_seconds=1000, job_seconds=10) as app:
        client = app.client(keyring=BigKeyring)
        client.generate([1], 1, keep=True)
        now = time.time()
        app.service.sweep(now=now + 50)
        assert (len(client.sessions()), len(app.service.jobs.of("alice"))) == (1, 0)
        app.service.sweep(now=now + 500)
        assert (len(client.sessions()), len(client.key_sets())) == (0, 1)
        app.service.sweep(now=now + 5000)
        assert client.key_sets() == []
        assert not list((tmp_path / "server" / "clients" / "alice" / "blobs").iterdir())


def test_a_job_that_goes_takes_its_events_along(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as app:
        client, service = app.client("alice"), app.app.state.service
        for _ in range(3):
            client.generate([1], 1)  # the session is deleted at its end, and its job with it
        assert service.events._events == {}
        assert service.events._numbers == {}
        answer = client.generate([1], 1, keep=True)
        assert len(service.events._events) == 1
        service.sweep(now=time.time() + 10**9)
        assert service.events._events == {}
        assert answer.tokens


def test_a_client_reads_a_refusal_as_it_was_written(app: Joined) -> None:
    client = app.client("dave")
    with pytest.raises(Refusal, match="no such session; open one") as caught:
        client.open("0" * 32)
    assert (caught.value.status, caught.value.code) == (404, "not_found")


def test_a_worker_at_its_memory_cap_fails_its_job_and_nothing_else(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path, worker_bytes=48 << 20) as app:
        client = app.client(keyring=BigKeyring)
        with pytest.raises(Refusal, match="failed after 0 of 1 steps") as caught:
            client.generate([1], 1)
        assert caught.value.code == "engine_failed"
        assert client.models() == ["tiny"]
