# SPDX-License-Identifier: Apache-2.0
"""Bodies on their way in: their length is asked first, and a job goes to disk while it is checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from heatfhe.server.store.disk import disk_errors
from heatfhe.wire import JobHead, MessageScanner, Refusal


def body_length(request: Request, media: str) -> int:
    """How long a body says it is; refused without a length, or of another media type."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != media:
        raise Refusal("media_type", f"the body must be {media}", f"send Content-Type: {media}")
    length = request.headers.get("content-length")
    if length is None:
        raise Refusal("length_required", "the body's length is missing", "send Content-Length")
    return int(length)


async def read_body(request: Request, most: int, media: str) -> bytes:
    """A whole body of at most ``most`` bytes, exactly as long as announced."""
    length = body_length(request, media)
    if length > most:
        raise Refusal("too_large", f"a body of {length} bytes exceeds {most}", "send smaller chunks")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > length:
            raise Refusal("bad_message", "the body is longer than its Content-Length", "send its true length")
    if len(data) != length:
        raise Refusal("bad_message", "the body is shorter than its Content-Length", "send it again")
    return bytes(data)


async def spool(request: Request, scanner: MessageScanner, upload: Path, check: Callable[[JobHead], Any]) -> JobHead:
    """Write a message to a file while it is checked; the header is judged before any block is taken."""
    head: JobHead | None = None

    def take(f: BinaryIO, chunk: bytes) -> None:  # hashing and the header's JSON take a while: not on the event loop
        nonlocal head
        scanner.feed(chunk)
        if head is None and scanner.header is not None:
            head = JobHead.from_header(scanner.header)
            check(head)
        f.write(chunk)

    with disk_errors(), upload.open("xb") as f:
        async for chunk in request.stream():
            await run_in_threadpool(take, f, chunk)
    header = scanner.finish()
    return head if head is not None else JobHead.from_header(header)
