# SPDX-License-Identifier: Apache-2.0
"""A session is opened once, however often its opening is asked for under one idempotency key."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from heatfhe.client import Client
from heatfhe.client.link import LostServerError
from heatfhe.server import ModelSource
from heatfhe.server.store import sessions as sessions_module
from heatfhe.server.store.sessions import SessionStore
from heatfhe.wire import Refusal
from tests.server.serving import BigKeyring, Joined, joined
from tests.server.test_crashes import Killed

CONFIG, KEY = "c" * 64, "opening-key-1"


class SmallKeyring(BigKeyring):
    """Other keys for the same configuration."""

    sizes = (70_000,)


@pytest.fixture
def app(source: ModelSource, tmp_path: Path) -> Iterator[Joined]:
    with joined(source, tmp_path, sessions_per_client=4) as running:
        yield running


class Unanswered(httpx.BaseTransport):
    """Lets a request to open a session arrive ``times`` times and loses the answer; ``lost`` is called after each."""

    def __init__(self, inner: Any, times: int, lost: Any = lambda: None) -> None:
        self.inner, self.times, self.lost, self.keys = inner, times, lost, []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self.inner.handle_request(request)
        if (request.method, request.url.path) == ("POST", "/v1/sessions"):
            answer.read()
            self.keys.append(request.headers.get("idempotency-key"))
            if self.times:
                self.times -= 1
                self.lost()
                raise httpx.ReadError("the connection was reset")
        return answer


def session_record(folder: Path) -> dict[str, Any]:
    (path,) = folder.rglob("session.json")
    return json.loads(path.read_bytes())["body"]


def store_of(folder: Path) -> SessionStore:
    return SessionStore(folder, most=4)


def test_a_server_that_dies_before_it_answers_gives_the_retry_the_same_session(
    source: ModelSource, tmp_path: Path
) -> None:
    with ExitStack() as servers:
        app = servers.enter_context(joined(source, tmp_path))
        stored: list[list[str]] = []

        def restart() -> None:
            stored.append([s.session for s in app.service.sessions.all("alice")])
            servers.pop_all().close()
            transport.inner = servers.enter_context(joined(source, tmp_path)).transport

        transport = Unanswered(app.transport, 2, restart)
        client = app.client(keyring=BigKeyring, transport=transport, patience=60.0)
        session = client.open().session
        assert stored == [[session], [session]]
        assert [s["session"] for s in client.sessions()] == [session]
        assert len(set(transport.keys)) == 1
        client.delete_session(session)
        client.delete_key_set(client.upload_keys())  # nothing is left that needs it
        assert not list((tmp_path / "server").rglob("session.json"))


def test_a_record_that_is_on_disk_is_found_by_its_key_after_a_kill(tmp_path: Path) -> None:
    facts = {"model": "m", "config_id": CONFIG, "key_set": CONFIG}
    real = sessions_module.write_json

    def die(*args: Any) -> None:
        real(*args)
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(sessions_module, "write_json", die)
        store_of(tmp_path).create("alice", **facts, now=1, idempotency=KEY)
    sessions = store_of(tmp_path)
    sessions.tidy()
    (found,) = sessions.all("alice")
    assert sessions.by_key("alice", KEY) == found
    assert sessions.by_key("bob", KEY) is None
    sessions.delete("alice", found.session)
    assert sessions.by_key("alice", KEY) is None


def test_requests_at_once_under_one_key_open_one_session(app: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    look = app.service.sessions.by_key

    def slow(*args: str) -> Any:
        found = look(*args)
        time.sleep(0.0 if found else 0.5)  # who finds nothing leaves the others time to find nothing too
        return found

    monkeypatch.setattr(app.service.sessions, "by_key", slow)
    client = app.client(keyring=BigKeyring)
    body = {"config_id": client.config.config_id, "key_set": client.upload_keys()}
    headers, barrier = dict(client._link._client.headers), threading.Barrier(8)

    def ask(_n: int) -> tuple[int, str]:
        with httpx.Client(base_url="http://joined", transport=app.transport, headers=headers, timeout=60) as http:
            barrier.wait()
            answer = http.post("/v1/sessions", json=body, headers={"idempotency-key": KEY})
            return answer.status_code, answer.json()["session"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert len({session for _, session in answers}) == 1
    assert sorted(status for status, _ in answers) == [200] * 7 + [201]
    assert len(client.sessions()) == 1


def test_a_key_stands_for_one_configuration_and_key_set_of_one_client(app: Joined) -> None:
    client = app.client(keyring=BigKeyring)
    first = client.upload_keys()
    other = Client(
        "http://joined", token=client._link._client.headers["authorization"].split()[1], transport=app.transport,
        folder=app.home / "other", simulate=True, keyring=SmallKeyring,
    ).upload_keys()  # fmt: skip
    assert other != first

    def ask(who: Client, key_set: str, key: str = KEY) -> Any:
        body = {"config_id": who.config.config_id, "key_set": key_set}
        return who._link.ask("POST", "/v1/sessions", body=body, headers={"idempotency-key": key}).json()["session"]

    session = ask(client, first)
    with pytest.raises(Refusal, match="another configuration or key set") as caught:
        ask(client, other)
    assert (caught.value.status, caught.value.code) == (409, "conflict")
    for key in ("short", "a/../b" * 3, "k" * 65):
        with pytest.raises(Refusal) as caught:
            ask(client, first, key)
        assert (caught.value.status, caught.value.code) == (400, "bad_message")
    assert [s["session"] for s in client.sessions()] == [session]
    bob = app.client("bob", keyring=BigKeyring)
    assert ask(bob, bob.upload_keys()) != session
    for number in range(3):
        client.open()
        assert ask(client, first) == session, number  # also where the client has all the sessions it may
    with pytest.raises(Refusal, match="already has 4 sessions"):
        client.open()


def test_a_client_that_sends_no_key_opens_a_session_each_time_and_its_record_is_as_before(app: Joined) -> None:
    client = app.client(keyring=BigKeyring)
    body = {"config_id": client.config.config_id, "key_set": client.upload_keys()}
    first = client._link.ask("POST", "/v1/sessions", body=body)
    assert first.status == 201
    assert set(session_record(app.home / "server")) == {"model", "config_id", "key_set", "created", "used"}
    assert client._link.ask("POST", "/v1/sessions", body=body).json()["session"] != first.json()["session"]
    assert len(list(client.stream([1], 1, conversation=client.open(first.json()["session"])))) == 1


def test_a_client_whose_patience_ended_asks_again_under_the_same_key(app: Joined) -> None:
    transport = Unanswered(app.transport, 2)
    client = app.client(keyring=BigKeyring, transport=transport, patience=0.0)
    for _ in range(2):
        with pytest.raises(LostServerError):
            client.open()
    first, second = client.open().session, client.open().session
    assert first != second
    assert {s["session"] for s in client.sessions()} == {first, second}
    assert transport.keys == [transport.keys[0]] * 3 + [transport.keys[3]]
    assert all(len(key) == 32 for key in set(transport.keys))
    assert "idempotency" not in client.sessions()[0]
