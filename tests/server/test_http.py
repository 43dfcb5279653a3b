# SPDX-License-Identifier: Apache-2.0
"""Connections whose heads never end: each is closed in time and in bounded memory, and others are served meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="the server needs the serve extra")

SECONDS = 0.6


async def app(scope: dict[str, str], receive: object, send: object) -> None:
    """Answers every request with its method."""
    assert scope["type"] == "http"
    body = scope["method"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": body})  # type: ignore[operator]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    from heatfhe.server.http import bounded_protocol

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=bounded_protocol(SECONDS), log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(timeout=5)


def ends_after(link: socket.socket, dribble: bytes = b"") -> float:
    """Seconds until the server closes; a byte goes out every tenth of a second meanwhile."""
    began = time.monotonic()
    link.settimeout(0.1)
    while time.monotonic() - began < 10:
        try:
            if dribble:
                link.sendall(dribble)
            if link.recv(4096) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


@pytest.mark.parametrize(("head", "dribble"), [(b"", b""), (b"GET / HTTP/1.1\r\nhost: x\r\n", b""), (b"GET /", b"a")])
def test_a_head_that_never_ends_is_cut_off(port: int, head: bytes, dribble: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.sendall(head)
        assert 0.5 * SECONDS < ends_after(link, dribble) < SECONDS + 2.0


def test_a_second_request_on_a_connection_has_its_own_deadline(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        for _ in range(3):
            link.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"GET"):
                part = link.recv(4096)
                assert part, "closed before its answer"
                answer += part
            time.sleep(0.4 * SECONDS)  # three requests together outlast one deadline
        link.sendall(b"GET / HTTP/1.1\r\nhost:")
        assert ends_after(link) < SECONDS + 2.0


def test_an_endless_head_is_refused_by_its_size(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(5)
        sent = 0
        with pytest.raises(OSError):
            link.sendall(b"GET / HTTP/1.1\r\nx: ")
            while sent < 64 << 20:
                link.sendall(b"y" * 65536)
                sent += 65536
        assert sent < 16 << 20
