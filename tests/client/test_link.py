# SPDX-License-Identifier: Apache-2.0
"""The line to a hostile server: what it sends is bounded, and nothing it sends raises an error that is not ours."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from heatfhe.client.link import Link
from heatfhe.errors import HeatError, WireError
from heatfhe.wire import Refusal

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is a development dependency")
given, settings = hypothesis.given, hypothesis.settings
st = pytest.importorskip("hypothesis.strategies")
BOMB = gzip.compress(bytes(64 << 20))  # 64 MiB of zeros in 65 kB


def link_to(answer: httpx.Response | None = None, *, stream: httpx.SyncByteStream | None = None) -> Link:
    def handler(_request: httpx.Request) -> httpx.Response:
        if stream is not None:
            return httpx.Response(200, stream=stream)
        assert answer is not None
        return answer

    return Link("http://hostile", token="heat_x", transport=httpx.MockTransport(handler), patience=0.0)


class Zipped(httpx.SyncByteStream):
    """A body that is compressed whatever was asked for, counted as it is read."""

    def __init__(self) -> None:
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        for k in range(0, len(BOMB), 4096):
            self.sent += 1
            yield BOMB[k : k + 4096]


class Endless(httpx.SyncByteStream):
    """A body that never ends; the count says how much of it was taken."""

    def __init__(self, piece: bytes, most: int) -> None:
        self.piece, self.most, self.taken = piece, most, 0

    def __iter__(self) -> Iterator[bytes]:
        while self.taken < self.most:
            self.taken += len(self.piece)
            yield self.piece


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "GZIP"])
@pytest.mark.parametrize("status", [200, 400])
def test_a_compressed_answer_is_refused_before_it_is_unpacked(encoding: str, status: int) -> None:
    tracemalloc.start()
    try:
        body = Zipped()
        answer = httpx.Response(status, headers={"content-encoding": encoding}, stream=body)
        with pytest.raises(WireError, match="compressed" if status == 200 else "answered 400"):
            link_to(answer).json("GET", "/v1/models")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # 64 MiB before
        assert body.sent <= 1
    finally:
        tracemalloc.stop()


def test_a_compressed_event_stream_is_refused() -> None:
    answer = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Zipped())
    with pytest.raises(WireError, match="compressed"):
        list(link_to(answer).events("/v1/jobs/x/events"))


def test_a_body_is_read_up_to_its_limit_and_no_further() -> None:
    body = Endless(bytes(65_536), 1 << 30)
    with pytest.raises(WireError, match="exceeds 1000000"):
        link_to(stream=body).ask("GET", "/v1/models/m/bundle", most=1_000_000)
    assert body.taken <= 1_000_000 + 65_536
    said = httpx.Response(200, headers={"content-length": "1000001"}, stream=Endless(b"x", 0))
    with pytest.raises(WireError, match="exceeds 1000000"):
        link_to(said).ask("GET", "/v1/models/m/bundle", most=1_000_000)
    assert link_to(httpx.Response(200, content=bytes(1000))).ask("GET", "/x", most=1000).content == bytes(1000)


def test_a_refusal_without_end_is_cut() -> None:
    body = Endless(bytes(65_536), 1 << 30)
    with pytest.raises(Refusal, match="answered 400"):
        link_to(httpx.Response(400, stream=body)).json("GET", "/v1/models")
    assert body.taken <= 3 * 65_536


def test_a_line_without_end_is_dropped_and_the_next_is_read() -> None:
    class Lines(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b'data: {"outputs": 1}\r\n\n: ping\n'
            for _ in range(512):
                yield b"data: " + bytes(65_536)
            yield b'\ndata: {"out'
            yield b'puts": 2}\n'
            yield b"data: " + b"[" * 60_000 + b"\n"  # nested too deeply for a parser
            yield b'data: {"outputs": 3}\n'

    tracemalloc.start()
    try:
        events = [event["outputs"] for event in link_to(stream=Lines()).events("/v1/jobs/x/events")]
        assert events == [1, 2, 3]
        assert tracemalloc.get_traced_memory()[1] < 4 << 20  # 32 MiB before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("header", "wait"),
    [("²", None), ("1²", None), ("٣", None), ("1.5", 1.5), ("7", 7.0), ("99999999999", 600.0), ("1e9", None)]
    + [("-1", None), ("", None), (".", None), ("nan", None), ("inf", None), ("9" * 400, None)],
)
def test_retry_after_is_a_plain_number_or_nothing(header: str, wait: float | None) -> None:
    answer = httpx.Response(429, headers=[(b"retry-after", header.encode())])
    with pytest.raises(Refusal) as caught:
        link_to(answer).ask("GET", "/v1/models")
    assert caught.value.retry_after == wait


@settings(deadline=None)
@given(
    status=st.sampled_from([200, 201, 400, 404, 409, 429, 500, 503]),
    header=st.binary(max_size=12).filter(lambda b: not set(b) & {0, 10, 13}),
    body=st.one_of(st.binary(max_size=40), st.sampled_from(["deep array", "deep object", "long number", "NaN"])),
)
def test_no_answer_raises_an_error_that_is_not_ours(status: int, header: bytes, body: bytes | str) -> None:
    deep = {"deep array": b"[" * 50_000, "deep object": b'{"a":' * 10_000, "long number": b"9" * 5000, "NaN": b"NaN"}
    content = deep[body] if isinstance(body, str) else body
    with contextlib.suppress(HeatError):
        link_to(httpx.Response(status, headers=[(b"retry-after", header)], content=content)).json("GET", "/v1/models")


def test_the_client_asks_for_plain_bodies(tmp_path: Path) -> None:
    seen: list[httpx.Headers] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, json={})

    Link("http://any", token=None, transport=httpx.MockTransport(handler)).json("GET", "/v1/models")
    assert seen[0]["accept-encoding"] == "identity"
