# SPDX-License-Identifier: Apache-2.0
"""Large answers on their way out: in pieces, the next one only when the one before it was taken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from heatfhe.server.http.limits import Slots
from heatfhe.wire import MEDIA_TYPE

PIECE = 128 << 10


class Download(StreamingResponse):  # type: ignore[misc]
    """A message from memory or from an open file. A caller who does not read holds one piece of it, and one slot."""

    def __init__(self, source: bytes | BinaryIO, slots: Slots, client: str) -> None:
        self._source, self._slots, self._client = source, slots, client
        size = len(source) if isinstance(source, bytes) else os.fstat(source.fileno()).st_size
        content = _pieces(source) if isinstance(source, bytes) else _file_pieces(source)
        super().__init__(content, media_type=MEDIA_TYPE, headers={"content-length": str(size)})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with self._slots.taken(self._client):
                await super().__call__(scope, receive, send)
        finally:
            if not isinstance(self._source, bytes):
                self._source.close()


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
        await asyncio.sleep(0)  # a fast reader never makes the sender wait; others want their turn


async def _file_pieces(f: BinaryIO) -> AsyncIterator[bytes]:
    while piece := await run_in_threadpool(f.read, PIECE):
        yield piece
