# SPDX-License-Identifier: Apache-2.0
"""Connections that misbehave below HTTP: endless heads, answers nobody reads, too many of them from one address."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.serving import wait_for

uvicorn = pytest.importorskip("uvicorn", reason="the server needs the serve extra")

SECONDS = 0.6
LARGE = 64 << 20


async def app(scope: dict[str, str], receive: object, send: object) -> None:
    """Answers every request with its method, and /large with many bytes."""
    assert scope["type"] == "http"
    body = bytes(LARGE) if scope["path"] == "/large" else scope["method"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": body})  # type: ignore[operator]


@contextmanager
def serving(**options: Any) -> Iterator[tuple[int, Any, list[int]]]:
    """A server on a thread: its port, itself, and for every connection whether it has TCP_NODELAY."""
    from heatfhe.server.http.protocol import bounded_protocol

    nodelay: list[int] = []

    class Spy(bounded_protocol(**{"head_seconds": SECONDS, **options})):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            nodelay.append(option)

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=Spy, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield listener.getsockname()[1], server, nodelay
    finally:
        server.should_exit = True
        thread.join(timeout=20)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as (number, _, _):
        yield number


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


def answer_to(port: int, data: bytes) -> bytes:
    """What the server says to these bytes first; nothing if it hangs up."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(30)
        link.sendall(data)
        try:
            return link.recv(4096)
        except ConnectionError:
            return b""


def head(size: int) -> bytes:
    """A complete request head of exactly this many bytes."""
    start = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: "
    return start + b"y" * (size - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize(("size", "served"), [(60_000, True), (65_536, True), (65_537, False), (70_000, False)])
def test_a_head_of_more_than_64_kib_is_refused_even_when_it_comes_at_once(port: int, size: int, served: bool) -> None:
    expected = b"HTTP/1.1 200" if served else b"HTTP/1.1 400"
    assert answer_to(port, head(size))[:12] in ((expected,) if served else (expected, b""))


def test_a_pipelined_head_is_measured_as_well(port: int) -> None:
    """The second head waits whole in a buffer while the first request is answered."""
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(30)
        link.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + head(70_000))
        got = b""
        try:
            while part := link.recv(65_536):
                got += part
        except ConnectionError:
            pass
    assert got.count(b"HTTP/1.1 200") <= 1


def test_connections_do_not_wait_for_acknowledgements() -> None:
    """Without TCP_NODELAY a keep-alive answer waits for the other side's delayed acknowledgement, 40 ms and more."""
    with serving() as (port, _, nodelay):
        assert answer_to(port, head(100)).startswith(b"HTTP/1.1 200")
        assert nodelay == [1]


def test_an_answer_that_nobody_reads_is_cut_off_and_its_bytes_are_freed() -> None:
    with serving(write_seconds=0.3) as (port, server, _):
        links = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        try:
            for link in links:
                link.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            for link in links:
                link.settimeout(30)
                assert link.recv(16).startswith(b"HTTP/1.1 200")
            wait_for(lambda: not server.server_state.connections, seconds=60)
        finally:
            for link in links:
                link.close()


def test_an_address_has_few_connections_and_gets_them_back() -> None:
    with serving(head_seconds=60.0) as (port, server, _):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(128)]
        try:
            wait_for(lambda: len(server.server_state.connections) == 128)
            refused = answer_to(port, b"")
            assert refused.startswith(b"HTTP/1.1 429")
            assert b'"rate"' in refused
        finally:
            for link in silent:
                link.close()
        wait_for(lambda: not server.server_state.connections)
        assert answer_to(port, head(100)).startswith(b"HTTP/1.1 200")


def test_one_ipv6_network_counts_as_one_caller() -> None:
    from heatfhe.server.http.protocol import _network

    assert _network(("2001:db8::1", 5)) == _network(("2001:db8::ffff:1%eth0", 6)) != _network(("2001:db8:0:1::1", 5))
    assert _network(("::ffff:10.0.0.1", 5)) == _network(("10.0.0.1", 9)) != _network(("10.0.0.2", 9))
    assert _network(None) == _network(("nowhere", 1)) == "-"
