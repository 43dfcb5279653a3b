# SPDX-License-Identifier: Apache-2.0
"""The HTTP/1.1 side of a connection: a head must be whole within seconds and kilobytes, or the connection ends.

uvicorn bounds neither by itself: a caller who never finishes a head would hold a connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def bounded_protocol(head_seconds: float) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn that closes a connection whose request head is not complete in time."""

    class BoundedProtocol(H11Protocol):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._wait()
            elif self._late is not None:
                self._late.cancel()
                self._late = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self._late is not None:
                self._late.cancel()
            super().connection_lost(exc)

        def _wait(self) -> None:
            """Start the clock, unless it runs: bytes that trickle in do not wind it up again."""
            if self._late is None:
                self._late = self.loop.call_later(head_seconds, self.transport.close)

    return BoundedProtocol
