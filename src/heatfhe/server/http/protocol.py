# SPDX-License-Identifier: Apache-2.0
"""The HTTP/1.1 side of a connection: heads whole within seconds and 64 KiB, answers taken in time, few per address.

uvicorn bounds none of this by itself: a caller who never finishes a head, or never reads an answer, would hold a
connection and its buffers for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from heatfhe.wire import Refusal

HEAD_BYTES = 64 << 10
PER_ADDRESS = 128


class _Connection(h11.Connection):
    """h11 bounds only heads that are not complete yet; one that arrives in a single read must be measured as well."""

    def next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before = len(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request) and before - len(self.trailing_data[0]) > HEAD_BYTES:
            raise h11.RemoteProtocolError("the request's head is too large", error_status_hint=431)
        return event


def bounded_protocol(
    head_seconds: float, *, write_seconds: float = 30.0, per_address: int | None = PER_ADDRESS
) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn that ends connections which wait for nothing.

    A request's head must be complete in ``head_seconds``. Whatever was written must be taken within ``write_seconds``,
    or the connection is cut and its buffer freed. An address (for IPv6: a /64 network) has at most ``per_address``
    connections; None does not count them, for a server behind a proxy, where every caller has the proxy's address.
    """
    callers: Counter[str] = Counter()

    class BoundedProtocol(H11Protocol):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None
        _caller: str | None = None

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.conn = _Connection(h11.SERVER, HEAD_BYTES)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            # asyncio does this only for sockets made with the protocol's number, which a listener need not be.
            with contextlib.suppress(OSError, AttributeError):
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport.set_write_buffer_limits(high=1, low=0)  # so that bytes not taken start the clock of pause_writing
            self._caller = _network(transport.get_extra_info("peername"))
            callers[self._caller] += 1
            if per_address is not None and callers[self._caller] > per_address:
                self._refuse(Refusal("rate", "too many connections", "close some", status=429, retry_after=1))
            else:
                self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._wait()
            elif self._late is not None:
                self._late.cancel()
                self._late = None

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._late, self._stuck):
                if timer is not None:
                    timer.cancel()
            if self._caller is not None:
                callers[self._caller] -= 1
                if not callers[self._caller]:
                    del callers[self._caller]
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stuck is None:
                self._stuck = self.loop.call_later(write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None

        def send_400_response(self, msg: str) -> None:
            self._refuse(Refusal("bad_message", "the request is not HTTP/1.1, or its head exceeds 64 KiB", "send less"))

        def _refuse(self, refusal: Refusal) -> None:
            body = json.dumps(refusal.as_json()).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=refusal.status, headers=[*(headers | refusal.headers).items()])
            with contextlib.suppress(h11.LocalProtocolError):  # an answer is already on its way
                events = (response, h11.Data(data=body), h11.EndOfMessage())
                self.transport.write(b"".join(self.conn.send(event) for event in events))
            self.transport.close()

        def _wait(self) -> None:
            """Start the clock, unless it runs: bytes that trickle in do not wind it up again."""
            if self._late is None:
                self._late = self.loop.call_later(head_seconds, self.transport.close)

    return BoundedProtocol


def _network(peer: Any) -> str:
    """Whom a connection counts for: an IPv4 address, or the /64 network that one IPv6 caller usually has to itself."""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return "-"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)
