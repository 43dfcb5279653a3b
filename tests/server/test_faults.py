# SPDX-License-Identifier: Apache-2.0
"""Unexpected errors and callers who leave: each is answered, counted and logged once, and no log names a client."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.server import ModelSource
from heatfhe.server.faults import describe_fault
from heatfhe.wire import MEDIA_TYPE
from tests.server.serving import Joined, joined, on_socket, wait_for

JOB = "5e" * 16


@pytest.fixture(scope="module")
def app(source: ModelSource, home: Path) -> Iterator[Joined]:
    with joined(source, home) as running:
        yield running


def counted(app: Joined, status: int) -> int:
    found = re.search(rf'requests_total{{status="{status}"}} (\d+)', app.service.metrics.text({}))
    return int(found[1]) if found else 0


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    said = [r.getMessage() for r in caplog.records if r.name == "heatfhe.server.access"]
    return [json.loads(text) for text in said if text.startswith("{")]


def fail(path: Path) -> Any:
    """A function that fails as the disk does, with a path that names a client."""

    def failing(*_args: object, **_options: object) -> Any:
        path.read_bytes()

    return failing


def test_an_unexpected_error_is_a_500_for_everyone_and_names_nobody(
    app: Joined, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app.service.jobs, "get", fail(app.home / "clients" / "alice" / "jobs" / JOB))
    before, gone = counted(app, 500), counted(app, 499)
    with app.http("alice") as http, caplog.at_level(logging.INFO, logger="heatfhe.server"):
        answer = http.get(f"/v1/jobs/{JOB}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert (counted(app, 500) - before, counted(app, 499) - gone) == (1, 0)
    assert [line["status"] for line in lines(caplog)] == [500]
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "FileNotFoundError ENOENT at pathlib.py" in errors[0].getMessage()
    assert "alice" not in caplog.text
    assert JOB not in caplog.text


def test_a_stream_that_fails_midway_is_counted_and_the_connection_ends(
    app: Joined, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from heatfhe.server.http import routes

    async def broken(*_args: object) -> Any:
        yield b"id: 0\n\n"
        raise RuntimeError(f"alice {JOB}")

    monkeypatch.setattr(routes, "_events", broken)
    monkeypatch.setattr(app.service.jobs, "get", lambda *_: None)
    before = counted(app, 500)
    token = app.token("alice")
    with (
        on_socket(app) as url,
        caplog.at_level(logging.INFO, logger="heatfhe.server"),
        httpx.Client(base_url=url) as http,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            http.get(f"/v1/jobs/{JOB}/events", headers={"authorization": f"Bearer {token}"})
        wait_for(lambda: counted(app, 500) == before + 1)
    assert "RuntimeError at test_faults.py" in caplog.text
    assert "alice" not in caplog.text


def test_an_error_before_a_body_is_read_still_reaches_the_client(app: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the body is taken before the answer: closing on unread bytes would reset the connection."""
    monkeypatch.setattr(app.service.sessions, "get", fail(app.home / "nothing"))
    headers = {"authorization": f"Bearer {app.token()}", "content-type": MEDIA_TYPE, "idempotency-key": "e" * 12}
    with on_socket(app) as url:
        for _ in range(4):
            answer = httpx.post(f"{url}/v1/sessions/{JOB}/jobs", content=bytes(12 << 20), headers=headers, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")


@pytest.mark.parametrize("route", ["/v1/keysets", "/v1/sessions"])
def test_an_upload_that_is_given_up_is_no_error(app: Joined, caplog: pytest.LogCaptureFixture, route: str) -> None:
    before, failed, token = counted(app, 499), counted(app, 500), app.token("alice")
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 900\r\n"
    with on_socket(app) as url, caplog.at_level(logging.INFO, logger="heatfhe.server"):
        with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as link:
            link.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
        wait_for(lambda: counted(app, 499) > before)
    assert (counted(app, 499), counted(app, 500)) == (before + 1, failed)
    assert [line["status"] for line in lines(caplog)] == [499]
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []


def test_a_body_with_two_lengths_is_refused(app: Joined) -> None:
    """Transfer-Encoding with Content-Length is how requests are smuggled past a proxy in front."""
    token = app.token("alice")
    body = b"2\r\n{}\r\n0\r\n\r\n"
    head = f"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
    rest = b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    with on_socket(app) as url, socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as link:
        link.settimeout(30)
        link.sendall(head.encode() + rest)
        said = b""
        while part := link.recv(65_536):  # it ends: what follows on such a connection cannot be told apart
            said += part
    assert said.startswith(b"HTTP/1.1 400")
    assert b"two lengths" in said


@given(secret=st.text(alphabet="abcdef0123456789", min_size=12, max_size=40), kinds=st.permutations([0, 1, 2]))
def test_no_part_of_a_message_is_in_a_faults_description(secret: str, kinds: list[int]) -> None:
    raised = [OSError(2, secret, f"/clients/{secret}"), RuntimeError(secret), KeyError(secret)]
    try:
        try:
            raise raised[kinds[0]]
        except Exception as err:
            raise raised[kinds[1]] from err
    except Exception as err:
        said = describe_fault(err)
    assert secret not in said
    assert said.count("test_faults.py") == 2
