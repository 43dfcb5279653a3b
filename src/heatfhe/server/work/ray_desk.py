# SPDX-License-Identifier: Apache-2.0
"""The desk as a named Ray actor, and what fronts in other processes see of it.

Ray starts the actor again when its process dies. The new one reads the folder as a server on one machine does after a
kill: jobs go on from their journals. Its seats end with it, because it owns their actors. The folder's lock makes sure
that there is never a second one, whatever Ray believes of the first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ray
from fastapi.concurrency import contextmanager_in_threadpool, run_in_threadpool
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from heatfhe.errors import ConfigError, HeatError, WireError
from heatfhe.files import plain, remade
from heatfhe.server import lines
from heatfhe.server.desk import HereDesk, News
from heatfhe.server.faults import as_refusal, log_fault
from heatfhe.server.holds import Holds, gone
from heatfhe.server.http.limits import Lanes
from heatfhe.server.http.middleware import INTERNAL
from heatfhe.server.logs import log_to_stderr
from heatfhe.server.metrics import Grown, Metrics
from heatfhe.server.service import Service
from heatfhe.server.settings import Settings
from heatfhe.server.store.jobs import Job, open_output
from heatfhe.server.store.keys import KeySetStatus, KeyStore
from heatfhe.server.store.locks import SharedLocks, await_folder
from heatfhe.server.store.objects import open_objects
from heatfhe.server.store.quota import Quota
from heatfhe.server.store.sessions import Session
from heatfhe.server.store.shelf import absolute
from heatfhe.server.wall import close_wall
from heatfhe.server.work.program import load_models
from heatfhe.server.work.ray_seat import Cluster
from heatfhe.wire import JobHead, KeyManifest, Refusal

logger = logging.getLogger(__name__)
NAMESPACE = "heatfhe"
_LISTENERS, _CALLS = 8192, 1024  # at once in the actor: waiting for events, and asking anything else
_LOCK_SECONDS = 60.0  # how long a new desk waits for the folder of one whose process has not ended yet
_NAME_SECONDS = 20.0  # how long whoever starts a desk waits for the name of one that was killed
_UPLOAD_EXTRA = 60.0  # after the time that a body has; a front that was killed holds no room for longer
_REPORT_SECONDS = 1.0
_OWN = ("count", "hold", "let_go", "room", "submit")  # what a desk in the same process is not asked


class _Parts(NamedTuple):
    service: Service
    desk: HereDesk
    holds: Holds


class _Desk:
    """The actor: a service, and the uploads that fronts are writing. It takes and gives lines of JSON."""

    def __init__(self, settings: str) -> None:
        close_wall()
        log_to_stderr()
        self._settings = replace(remade(Settings, json.loads(settings)), joined=False)
        self._parts: Future[_Parts] = Future()
        again = ray.get_runtime_context().was_current_actor_reconstructed
        threading.Thread(target=self._start, args=(again,), daemon=True).start()

    def _start(self, again: bool) -> None:
        """Take the folder and begin. A failure is for whoever started the desk; after a restart Ray tries once more."""
        try:
            settings = self._settings
            lock = await_folder(settings.folder, _LOCK_SECONDS)
            service = Service(settings, load_models(settings), lock=lock)
            service.start()
            holds = Holds(service, seconds=settings.body_seconds + _UPLOAD_EXTRA)
            self._parts.set_result(_Parts(service, HereDesk(service, source=secrets.token_hex(8)), holds))
        except Exception as err:
            log_fault(logger, "the desk did not start", err)
            if again:
                time.sleep(1.0)
                os._exit(1)
            self._parts.set_exception(err)

    async def ready(self) -> dict[str, str]:
        """Where the desk is, once it serves; or why it does not."""
        try:
            await asyncio.shield(asyncio.wrap_future(self._parts))
        except Exception as err:
            said = str(err) if isinstance(err, HeatError) else f"the desk did not start ({type(err).__name__})"
            return {"error": said}
        return {"host": os.uname().nodename, "pid": str(os.getpid())}

    async def close(self) -> None:
        """End the service as a server's stop does."""
        await run_in_threadpool(self._parts.result().service.close)

    async def ask(self, method: str, line: str) -> str:
        """One question of a front."""
        try:
            parts = await asyncio.shield(asyncio.wrap_future(self._parts))
            act: Any = getattr(self, f"_{method}") if method in _OWN else getattr(parts.desk, method)
            return lines.pack(await act(*lines.unpack(line)))
        except WireError as err:
            return lines.pack_refusal(as_refusal(err))
        except Exception as err:
            log_fault(logger, "a front's question failed", err)
            return lines.pack_refusal(INTERNAL)

    @ray.method(concurrency_group="listeners")  # type: ignore[untyped-decorator]
    async def news(self, line: str) -> str:
        """The question that may wait for long: it has places of its own."""
        return await self.ask("news", line)

    async def _count(self, *grown: Grown) -> None:
        """Add to the sums what a front has counted."""
        self._parts.result().service.metrics.add(grown)

    async def _room(self, client: str, size: int) -> None:
        """Refuse bytes that a client, or the disk, has no room for."""
        parts = self._parts.result()
        await parts.desk.act(client, parts.service.quota.check, client, size)

    async def _hold(self, client: str, size: int) -> str:
        """Set room aside for an upload: the name of the file that a front may write."""
        name: str = await run_in_threadpool(self._parts.result().holds.give, client, size)
        return name

    async def _let_go(self, name: str) -> None:
        """An upload became a job, or is given up."""
        await run_in_threadpool(self._parts.result().holds.end, name)

    async def _submit(
        self, client: str, session: str, head: JobHead, name: str, digest: str, idempotency: str
    ) -> tuple[Job, bool]:
        parts = self._parts.result()
        async with contextmanager_in_threadpool(parts.holds.taken(name)) as upload:
            return await parts.desk.submit(client, session, head, upload, digest, idempotency)


class RayDesk:
    """The desk as a front sees it. Chunks of keys, uploads and outputs are files that the front itself opens."""

    def __init__(self, settings: Settings, metrics: Metrics, *, address: str = "") -> None:
        """Joins the cluster at an address, unless this process is in one; ``metrics`` are what this front counts."""
        if not ray.is_initialized():
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        self._actor = ray.get_actor(desk_name(settings.folder), namespace=NAMESPACE)
        self._folder, self._metrics = settings.folder, metrics
        home = settings.folder / "clients"
        self._objects = open_objects(settings.store).below(home.name) if settings.store else None
        shared = {"objects": self._objects}
        quota = Quota(home, most=settings.client_bytes, reserve=settings.reserve_bytes, **shared)
        locks = SharedLocks(settings.folder)
        self._keys = KeyStore(home, quota=quota, most=settings.key_sets_per_client, locks=locks, **shared)
        self._threads = Lanes(4)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        return await self._answer(self._actor.ask, method, lines.pack(arguments))

    async def _answer(self, call: Any, *arguments: str) -> Any:
        try:
            line = await call.remote(*arguments)
        except RayError as err:
            raise gone() from err
        return lines.answer(line)

    async def rate(self, caller: str, cost: float = 1.0) -> None:
        await self._ask("rate", caller, cost)

    async def register_keys(self, client: str, manifest: KeyManifest) -> KeySetStatus:
        found: KeySetStatus = await self._ask("register_keys", client, manifest)
        return found

    async def key_sets(self, client: str) -> list[KeySetStatus]:
        return list(await self._ask("key_sets", client))

    async def key_set(self, client: str, key_set: str) -> KeySetStatus:
        found: KeySetStatus = await self._ask("key_set", client, key_set)
        return found

    async def delete_keys(self, client: str, key_set: str) -> None:
        await self._ask("delete_keys", client, key_set)

    async def append_key(self, client: str, key_set: str, sha256: str, offset: int, chunk: bytes, digest: str) -> int:
        """The desk says whether there is room, uploads on their way included; hashing and writing is done here."""
        await self._ask("room", client, len(chunk))
        async with self._threads.turn(client):
            arguments = (client, key_set, sha256, offset, chunk, digest)
            have: int = await run_in_threadpool(self._keys.append, *arguments)
            return have

    async def open_session(self, client: str, config_id: str, key_set: str, idempotency: str) -> tuple[Session, bool]:
        session, fresh = await self._ask("open_session", client, config_id, key_set, idempotency)
        return session, fresh

    async def sessions(self, client: str) -> list[Session]:
        return list(await self._ask("sessions", client))

    async def session(self, client: str, session: str) -> Session:
        found: Session = await self._ask("session", client, session)
        return found

    async def delete_session(self, client: str, session: str) -> None:
        await self._ask("delete_session", client, session)

    @asynccontextmanager
    async def incoming(self, client: str, size: int) -> AsyncIterator[Path]:
        name = await self._ask("hold", client, size)
        try:
            yield self._folder / name
        finally:
            try:
                await self._ask("let_go", name)
            except Refusal:  # that desk is gone, and what it held with it; the next one has emptied the folder
                (self._folder / name).unlink(missing_ok=True)

    async def submit(
        self, client: str, session: str, head: JobHead, upload: Path, digest: str, idempotency: str
    ) -> tuple[Job, bool]:
        name = str(upload.relative_to(self._folder))
        job, fresh = await self._ask("submit", client, session, head, name, digest, idempotency)
        return job, fresh

    async def jobs(self, client: str, before: str | None, most: int) -> list[Job]:
        return list(await self._ask("jobs", client, before, most))

    async def job(self, client: str, job: str) -> Job:
        found: Job = await self._ask("job", client, job)
        return found

    async def cancel(self, client: str, job: str) -> Job:
        found: Job = await self._ask("cancel", client, job)
        return found

    async def open_output(self, client: str, job: str, step: int) -> BinaryIO:
        found, home = await self.job(client, job), self._folder / "clients"
        async with self._threads.turn(client):
            file: BinaryIO = await run_in_threadpool(open_output, home, self._objects, found, step)
            return file

    async def news(self, client: str, job: str, after: int, seconds: float) -> News:
        found: News = await self._answer(self._actor.news, lines.pack((client, job, after, seconds)))
        return found

    async def metrics(self) -> str:
        await self.report()
        text: str = await self._ask("metrics")
        return text

    async def report(self) -> None:
        """Add what this front has counted to the desk's sums; where the desk is gone, the next one gets it."""
        grown = self._metrics.take()
        try:
            await self._ask("count", *grown)
        except Refusal:
            self._metrics.add(grown)
            raise

    async def reporting(self) -> None:
        """Report for as long as this process serves."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            try:
                await self.report()
            except Refusal:
                continue


class OwnedDesk:
    """A desk and the process that started it: both end together."""

    def __init__(self, settings: Settings) -> None:
        """Connects to the cluster, starts the desk on this machine, and waits until it serves."""
        models = tuple(absolute(source) for source in settings.models)
        settings = replace(settings, folder=settings.folder.resolve(), models=models)
        self._cluster = Cluster(settings)
        context = ray.get_runtime_context()
        self.address: str = context.gcs_address
        where = NodeAffinitySchedulingStrategy(node_id=context.get_node_id(), soft=False)
        kind = ray.remote(concurrency_groups={"listeners": _LISTENERS})(_Desk).options(
            name=desk_name(settings.folder),
            namespace=NAMESPACE,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=_CALLS,
            scheduling_strategy=where,
        )
        self._actor = self._start(kind, settings)
        facts = self.facts()
        if "error" in facts:
            ray.kill(self._actor)
            self._cluster.close()
            raise ConfigError(facts["error"])

    def _start(self, kind: Any, settings: Settings) -> Any:
        """The actor. Ray may take a moment to forget that of a process which was killed."""
        ends = time.monotonic() + _NAME_SECONDS
        while True:
            try:
                return kind.remote(json.dumps(plain(settings)))
            except ValueError as err:
                if time.monotonic() > ends:
                    self._cluster.close()
                    raise ConfigError(
                        f"{settings.folder}: a desk of this cluster serves this folder; stop its server first"
                    ) from err
                time.sleep(0.2)

    def facts(self) -> dict[str, str]:
        """Where the desk is now; waits while Ray starts it again."""
        ends = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                found: dict[str, str] = ray.get(self._actor.ready.remote())
                return found
            except RayError as err:
                if time.monotonic() > ends:
                    raise ConfigError(
                        f"the desk does not start again ({type(err).__name__}); Ray's log says why"
                    ) from err
                time.sleep(0.2)

    def close(self) -> None:
        """End the desk and leave the cluster."""
        try:
            ray.get(self._actor.close.remote(), timeout=30)
        except RayError as err:
            logger.warning("the desk did not end by itself (%s)", type(err).__name__)
        ray.kill(self._actor)
        self._cluster.close()


def desk_name(folder: Path) -> str:
    """The actor's name: one desk for a folder."""
    return f"desk-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"
