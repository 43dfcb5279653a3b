# SPDX-License-Identifier: Apache-2.0
"""What stands between a request and the desk: who calls, and how much of it at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from heatfhe.server.http.front import Front
from heatfhe.server.http.limits import Lanes, Slots
from heatfhe.server.http.uploads import body_length, read_body
from heatfhe.wire import Refusal, strict_json

T = TypeVar("T")
_JSON_COST = 16 << 10  # so many bytes of JSON cost as much as a request


class Gate:
    """Shared by all routes of one front. Everything a client may do many times at once is counted here."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self.bodies, self.downloads = Slots("uploads", 8), Slots("downloads", 8)
        self.listeners = Slots("event streams", 16, retry_after=5)
        self._parsers = Lanes(1)

    async def caller(self, request: Request, credentials: Any) -> str:
        """The client a request comes from, after its rate was asked."""
        client = self._front.book.who(credentials.credentials) if credentials else None
        if client is None:
            address = request.client.host if request.client else "-"
            await self._front.desk.rate(f"address:{address}")
            raise Refusal("unauthorised", "no valid token", "send Authorization: Bearer TOKEN")
        await self._front.desk.rate(client)
        return client

    async def json(self, request: Request, client: str, most: int, items: int, read: Callable[[Any], T]) -> T:
        """A JSON body as ``read`` makes of it, on a thread: one body of a client at a time, large ones cost more."""
        length = body_length(request, "application/json")
        await self._front.desk.rate(client, length / _JSON_COST)
        with self.bodies.taken(client):
            data = await read_body(request, most, "application/json")
            async with self._parsers.turn(client):
                found: T = await run_in_threadpool(lambda: read(strict_json(data, limit=most, items=items)))
                return found
