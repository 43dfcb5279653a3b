# SPDX-License-Identifier: Apache-2.0
"""What happens around every request: limits before a byte is read, deadlines, metrics, one log line, no error lost."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from heatfhe.server.faults import log_fault
from heatfhe.server.metrics import Metrics
from heatfhe.wire import Refusal

logger = logging.getLogger("heatfhe.server.access")
_DRAIN_BYTES, _DRAIN_SECONDS, _DRAIN_PAUSE = 64 << 20, 5.0, 0.01
INTERNAL = Refusal("internal", "the server failed", "tell its operator; the log says why")
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """A plain ASGI wrapper, the outermost one: every answer passes through it, those to unexpected errors too.

    Logs hold route, status, sizes and milliseconds: no ids, no addresses, no bodies. Status 499 is a caller who left.
    """

    def __init__(self, app: App, *, metrics: Metrics, most_bytes: int, body_seconds: float) -> None:
        self._app, self._metrics = app, metrics
        self._most, self._seconds = most_bytes, body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, taken, status, sent, whole = time.monotonic(), 0, 0, 0, False

        async def bounded_receive() -> MutableMapping[str, Any]:
            nonlocal taken, whole
            if status or whole:  # the answer has begun, or all was read: only a disconnect can come
                return await receive()
            left = self._seconds - (time.monotonic() - began)
            try:
                message = await asyncio.wait_for(receive(), max(0.01, left))
            except asyncio.TimeoutError as err:
                raise Refusal("bad_message", "the request's body took too long", "send it again", status=408) from err
            taken += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if taken > self._most:
                raise _too_large(self._most)
            return message

        async def counting_send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400 and not whole:
                    await _drain(receive)
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            if (refusal := self._refuse(scope)) is not None:
                await _answer(counting_send, refusal)
            else:
                await self._app(scope, bounded_receive, counting_send)
        except Refusal as refusal:
            if not status:
                await _answer(counting_send, refusal)
        except Exception as err:
            if status < 500:  # else an answer has gone out and the log has its line
                log_fault(logger, "a request failed", err)
            if not status:
                await _answer(counting_send, INTERNAL)
            status = 500  # where an answer had begun, the connection is closed before its end
        finally:
            status = status or 499
            route = getattr(scope.get("route"), "path", "-")
            self._metrics.count("heatfhe_requests_total", status=str(status))
            self._metrics.count("heatfhe_received_bytes_total", taken)
            line = {
                "method": scope["method"] if route != "-" else "-",
                "route": route,
                "status": status,
                "received": taken,
                "sent": sent,
                "ms": round((time.monotonic() - began) * 1000, 1),
            }
            logger.info("%s", json.dumps(line))

    def _refuse(self, scope: Scope) -> Refusal | None:
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            return Refusal(
                "media_type", "compressed bodies are not read", "send the body as it is: keys do not compress"
            )
        length = headers.get("content-length")
        if length is not None and "transfer-encoding" in headers:
            return Refusal("bad_message", "a body has two lengths", "send Content-Length without Transfer-Encoding")
        if length is None:
            return None
        if not (length.isascii() and length.isdigit()):
            return Refusal("bad_message", "Content-Length is not a number", "send the body's length")
        return _too_large(self._most) if len(length) > 18 or int(length) > self._most else None


async def _drain(receive: Receive) -> None:
    """Read what is left of a refused body, within bounds: closing on unread bytes would reset the connection and lose
    the answer on its way. Slowly: bytes that nobody wants must not keep the event loop from others."""
    left, end = _DRAIN_BYTES, time.monotonic() + _DRAIN_SECONDS
    while left > 0 and (wait := end - time.monotonic()) > 0:
        try:
            message = await asyncio.wait_for(receive(), wait)
        except asyncio.TimeoutError:
            return
        left -= len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        await asyncio.sleep(_DRAIN_PAUSE)


def _too_large(most: int) -> Refusal:
    return Refusal("too_large", f"the body exceeds {most} bytes", "see the limits of the model's configuration")


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps(refusal.as_json()).encode()
    said = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    headers = [(name.encode(), value.encode()) for name, value in (said | refusal.headers).items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
