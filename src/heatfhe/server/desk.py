# SPDX-License-Identifier: Apache-2.0
"""What a front asks of the desk, and the desk in the front's own process.

A **front** answers HTTP: it parses, bounds and hashes what strangers send, and remembers nothing that a restart would
miss. The **desk** decides: it has the jobs, the queue, the events, the quota, the rates and the sums of the metrics,
once for all fronts. Bodies that may be large do not pass between them: a front writes them into the server's folder,
or reads them there, and the desk gives or takes their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool

from heatfhe.server.http.limits import Lanes
from heatfhe.server.service import Service
from heatfhe.server.store.jobs import ENDED, Job
from heatfhe.server.store.keys import KeySetStatus
from heatfhe.server.store.sessions import Session
from heatfhe.wire import JobHead, KeyManifest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has happened to a job since a listener was told last.

    ``events`` are numbered. ``over`` says that the job has ended and that these are its last. ``ahead`` counts the
    jobs before it, where it waits. ``source`` names the desk's process: numbers of another one mean something else.
    """

    job: Job
    events: tuple[tuple[int, dict[str, Any]], ...]
    over: bool
    ahead: int | None
    source: str = ""


class Desk(Protocol):
    """Where fronts ask. Every method may raise ``Refusal``; one of status 503 where the desk is gone for the moment."""

    async def rate(self, caller: str, cost: float = 1.0) -> None:
        """Take from a caller's bucket of requests, or refuse."""

    async def register_keys(self, client: str, manifest: KeyManifest) -> KeySetStatus:
        """Announce a key set."""

    async def key_sets(self, client: str) -> list[KeySetStatus]:
        """Every key set of a client."""

    async def key_set(self, client: str, key_set: str) -> KeySetStatus:
        """What has arrived of a key set."""

    async def delete_keys(self, client: str, key_set: str) -> None:
        """Delete a key set that no session needs."""

    async def append_key(self, client: str, key_set: str, sha256: str, offset: int, chunk: bytes, digest: str) -> int:
        """Add a chunk to a key; how many bytes of it have arrived."""

    async def open_session(self, client: str, config_id: str, key_set: str, idempotency: str) -> tuple[Session, bool]:
        """A session, and whether it is new."""

    async def sessions(self, client: str) -> list[Session]:
        """Every session of a client."""

    async def session(self, client: str, session: str) -> Session:
        """One session."""

    async def delete_session(self, client: str, session: str) -> None:
        """Delete a session that has no active job."""

    def incoming(self, client: str, size: int) -> AbstractAsyncContextManager[Path]:
        """Where a front may write a job of this size, once there is room; what is left there at the end goes."""

    async def submit(
        self, client: str, session: str, head: JobHead, upload: Path, digest: str, idempotency: str
    ) -> tuple[Job, bool]:
        """Queue an upload as a job; the job, and whether it is new."""

    async def jobs(self, client: str, before: str | None, most: int) -> list[Job]:
        """The newest jobs of a client, or those older than ``before``."""

    async def job(self, client: str, job: str) -> Job:
        """One job."""

    async def cancel(self, client: str, job: str) -> Job:
        """Cancel a job."""

    async def open_output(self, client: str, job: str, step: int) -> BinaryIO:
        """The message of a step, open for reading."""

    async def news(self, client: str, job: str, after: int, seconds: float) -> News:
        """What has happened after an event's number; waits for it as long as told."""

    async def metrics(self) -> str:
        """Counters, gauges and histograms of the whole server, as Prometheus text."""


class HereDesk:
    """The desk as a service in this process. What only looks into memory is answered at once; what may touch the disk
    has one of the client's threads, so that a client whose calls are slow takes none that others wait for."""

    def __init__(self, service: Service, source: str = "") -> None:
        self._service, self._source = service, source
        self._threads = Lanes(4)

    async def act(self, client: str, function: Callable[..., T], *args: Any) -> T:
        """Call a function on one of the client's threads."""
        async with self._threads.turn(client):
            found: T = await run_in_threadpool(function, *args)
            return found

    async def rate(self, caller: str, cost: float = 1.0) -> None:
        self._service.rates.check(caller, asyncio.get_running_loop().time(), cost=cost)

    async def register_keys(self, client: str, manifest: KeyManifest) -> KeySetStatus:
        return await self.act(client, self._service.register_keys, client, manifest)

    async def key_sets(self, client: str) -> list[KeySetStatus]:
        return await self.act(client, self._service.keys.all, client)

    async def key_set(self, client: str, key_set: str) -> KeySetStatus:
        return await self.act(client, self._service.keys.status, client, key_set)

    async def delete_keys(self, client: str, key_set: str) -> None:
        await self.act(client, self._service.delete_keys, client, key_set)

    async def append_key(self, client: str, key_set: str, sha256: str, offset: int, chunk: bytes, digest: str) -> int:
        return await self.act(client, self._service.keys.append, client, key_set, sha256, offset, chunk, digest)

    async def open_session(self, client: str, config_id: str, key_set: str, idempotency: str) -> tuple[Session, bool]:
        return await self.act(
            client, lambda: self._service.open_session(client, config_id, key_set, idempotency=idempotency)
        )

    async def sessions(self, client: str) -> list[Session]:
        return await self.act(client, self._service.sessions.all, client)

    async def session(self, client: str, session: str) -> Session:
        return await self.act(client, self._service.sessions.get, client, session)

    async def delete_session(self, client: str, session: str) -> None:
        await self.act(client, self._service.delete_session, client, session)

    def incoming(self, client: str, size: int) -> AbstractAsyncContextManager[Path]:
        found: AbstractAsyncContextManager[Path] = contextmanager_in_threadpool(self._service.incoming(client, size))
        return found

    async def submit(
        self, client: str, session: str, head: JobHead, upload: Path, digest: str, idempotency: str
    ) -> tuple[Job, bool]:
        return await self.act(
            client,
            lambda: self._service.submit(client, session, head, upload=upload, digest=digest, idempotency=idempotency),
        )

    async def jobs(self, client: str, before: str | None, most: int) -> list[Job]:
        return await self.act(client, lambda: self._service.jobs.page(client, before=before, most=most))

    async def job(self, client: str, job: str) -> Job:
        return self._service.jobs.get(client, job)

    async def cancel(self, client: str, job: str) -> Job:
        return await self.act(client, self._service.cancel, client, job)

    async def open_output(self, client: str, job: str, step: int) -> BinaryIO:
        found = self._service.jobs.get(client, job)
        return await self.act(client, self._service.jobs.open_output, found, step)

    async def news(self, client: str, job: str, after: int, seconds: float) -> News:
        service = self._service
        if seconds:
            await service.events.wait(job, after, seconds)
        events = tuple(service.events.since(job, after))
        now = service.jobs.get(client, job)  # after the events: an end that it tells has its event in them, or later
        last = events[-1][0] if events else after
        over = now.state in ENDED and not service.events.since(job, last)
        return News(job=now, events=events, over=over, ahead=service.queue.ahead(job), source=self._source)

    async def metrics(self) -> str:
        return self._service.metrics.text(self._service.gauges())
