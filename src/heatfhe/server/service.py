# SPDX-License-Identifier: Apache-2.0
"""What the server does, apart from HTTP: stores, limits and the dispatcher behind plain methods."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heatfhe.server.catalogue import Catalogue
from heatfhe.server.faults import log_fault
from heatfhe.server.http.limits import RateLimiter
from heatfhe.server.metrics import Metrics
from heatfhe.server.models import ServedModel
from heatfhe.server.settings import Settings
from heatfhe.server.store.auth import ClientBook
from heatfhe.server.store.clock import SteadyClock
from heatfhe.server.store.disk import disk_errors
from heatfhe.server.store.hold import FolderLock
from heatfhe.server.store.jobs import ACTIVE, Job, JobStore
from heatfhe.server.store.keys import KeySetStatus, KeyStore
from heatfhe.server.store.locks import SharedLocks
from heatfhe.server.store.objects import open_objects
from heatfhe.server.store.quota import INCOMING, Quota
from heatfhe.server.store.sessions import Session, SessionStore
from heatfhe.server.store.shelf import absolute, claim_store, shelve, store_mark
from heatfhe.server.work.crew import Crew, connect, hire
from heatfhe.server.work.dispatch import Dispatcher
from heatfhe.server.work.events import EventHub
from heatfhe.server.work.orders import Assignment, Opening
from heatfhe.server.work.perform import units
from heatfhe.server.work.pool import Device
from heatfhe.server.work.queue import FairQueue
from heatfhe.server.work.seats import Key, Seat
from heatfhe.wire import JobHead, KeyManifest, Refusal

logger = logging.getLogger(__name__)


class Service:
    """One server: every method takes the authenticated client's name first and touches nobody else's things."""

    def __init__(
        self, settings: Settings, models: Mapping[str, ServedModel], *, lock: FolderLock | None = None
    ) -> None:
        """Changes nothing in the folder; ``start`` takes its lock, unless the caller has taken it, and may then."""
        self.catalogue = Catalogue(settings, models)
        self.settings, self.models = settings, self.catalogue.models
        self._sources = {model.config.config_id: absolute(model.source) for model in models.values()}
        self.home = settings.folder / "clients"
        self.home.mkdir(parents=True, exist_ok=True)
        settings.folder.chmod(0o700)
        self.clock = SteadyClock(settings.folder / "clock.json")
        self.book = ClientBook(settings.folder / "clients.json")
        self._store = open_objects(settings.store) if settings.store else None
        objects = self._store and self._store.below(self.home.name)
        self.quota = Quota(self.home, most=settings.client_bytes, reserve=settings.reserve_bytes, objects=objects)
        locks = SharedLocks(settings.folder) if settings.fronts else None  # fronts add to keys beside this process
        most = settings.key_sets_per_client
        self.keys = KeyStore(self.home, quota=self.quota, most=most, objects=objects, locks=locks)
        self.sessions = SessionStore(self.home, most=settings.sessions_per_client, objects=objects)
        self.events, self.metrics = EventHub(), Metrics()
        self.jobs = JobStore(self.home, removed=self.events.forget, now=self.clock.now, objects=objects)
        self.queue = FairQueue(most=settings.queue_jobs, most_per_client=settings.queue_jobs_per_client)
        self.rates = RateLimiter(settings.requests_per_second, settings.request_burst)
        environment = dict(settings.worker_environment)
        self._devices: list[Seat] = [
            Device(d, resident=settings.resident_workers, environment=environment, store=settings.folder)
            for d in (() if settings.ray else settings.devices)
        ]
        self.dispatcher = Dispatcher(
            self._devices,
            self.queue,
            self.jobs,
            self.events,
            self.metrics,
            self._describe,
            self._ended,
            turn_seconds=settings.turn_seconds,
        )
        self._submit = threading.Lock()
        self._stop = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, daemon=True)
        self._lock = lock
        self._cluster = connect(settings) if settings.ray else None
        self._crew: Crew | None = None

    def start(self) -> None:
        """Take the folder, tidy what a killed process left, go on with its jobs."""
        self._lock = FolderLock(self.settings.folder) if self._lock is None else self._lock
        if self._store is not None:
            claim_store(self.settings.folder, self._store, self.settings.store)
        self.clock.start()
        self.tidy()
        self.dispatcher.start()
        if self._cluster is not None:
            store_mark(self.settings.folder)
            for model in self.models.values():
                config = model.config
                self._sources[config.config_id] = shelve(self.settings.folder, model.source, config.plan, self._store)
            self._crew = hire(self.settings, self._cluster, self.dispatcher, self.queue)
            self._crew.start()
        self._sweeper.start()

    def tidy(self) -> None:
        """Remove what processes that were killed left, and read the jobs. Needs the folder's lock."""
        for path in self.settings.folder.glob(".clock.json.*.partial"):
            path.unlink(missing_ok=True)
        for incoming in self.home.glob(f"*/{INCOMING}"):
            shutil.rmtree(incoming, ignore_errors=True)
        self.jobs.load()
        for tidy in (self.book.tidy, self.keys.tidy, self.sessions.tidy, self.jobs.tidy):
            try:
                tidy()
            except OSError as err:
                log_fault(logger, "not everything could be tidied", err)
        for client, session in self.jobs.sessions():
            if not self.sessions.exists(client, session):
                self.jobs.forget(session)

    def close(self) -> None:
        """End workers and threads; what is on disk goes on at the next start."""
        self._stop.set()
        if self._sweeper.is_alive():
            self._sweeper.join(timeout=5)
        if self._crew is not None:
            self._crew.close()
        self.dispatcher.close()
        if self._cluster is not None:
            self._cluster.close()
        self.jobs.settle()
        self.clock.save()
        if self._lock is not None:
            self._lock.close()

    def model(self, name: str) -> ServedModel:
        """A model by name."""
        return self.catalogue.model(name)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def register_keys(self, client: str, manifest: KeyManifest) -> KeySetStatus:
        """Announce a key set."""
        self.catalogue.by_config(manifest.config_id)
        return self.keys.register(client, manifest, now=self.clock.now())

    def delete_keys(self, client: str, key_set: str) -> None:
        """Delete a key set and its worker; refused while a session needs it."""
        self.keys.status(client, key_set)
        if any(s.key_set == key_set for s in self.sessions.all(client)):
            raise Refusal("conflict", "sessions use this key set", "delete them first: DELETE /v1/sessions/{id}")
        self._end_workers(client, key_set)
        self.keys.delete(client, key_set)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open_session(self, client: str, config_id: str, key_set: str, *, idempotency: str = "") -> tuple[Session, bool]:
        """A session for a complete key set of its configuration; False when this idempotency key already opened it."""
        model = self.catalogue.by_config(config_id)
        status = self.keys.status(client, key_set)
        if status.config_id != config_id:
            raise Refusal("key_mismatch", "the key set was made for another configuration", "make keys for this one")
        if not status.complete:
            raise Refusal(
                "key_set_incomplete", f"{len(status.missing)} keys have not arrived", "finish the upload of the key set"
            )
        now = self.clock.now()
        self.keys.touch(client, key_set, now=now)
        with self._submit:
            known = self.sessions.by_key(client, idempotency)
            if known is not None:
                if (known.config_id, known.key_set) != (config_id, key_set):
                    raise Refusal(
                        "conflict",
                        "this idempotency key opened a session for another configuration or key set",
                        "make a new key per session",
                    )
                self.sessions.touch(client, known.session, now=now)
                return known, False
            busy = frozenset(j.session for j in self.jobs.active(client=client))
            for gone in self.sessions.make_room(client, now=now, keep=busy):
                self.jobs.forget(gone)
            facts = {"model": model.config.model, "config_id": config_id, "key_set": key_set}
            return self.sessions.create(client, **facts, now=now, idempotency=idempotency), True

    def delete_session(self, client: str, session: str) -> None:
        """Delete a session and its jobs; refused while one is active."""
        self.sessions.get(client, session)
        with self._submit:
            if self.jobs.active(client=client, session=session):
                raise Refusal("conflict", "a job of this session is active", "cancel it first")
            self.sessions.delete(client, session)
            self.jobs.forget(session)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def incoming(self, client: str, size: int) -> Iterator[Path]:
        """Where an upload of a job may be written, once there is room and quota for it; what is left there goes."""
        with self.quota.hold(client, size):
            folder = self.home / client / INCOMING
            with disk_errors():
                folder.mkdir(parents=True, exist_ok=True)
            path = folder / secrets.token_hex(16)
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)

    def check_job(self, client: str, session: str, head: JobHead) -> tuple[ServedModel, Session]:
        """Refuse a job from its header alone, before a ciphertext is read."""
        record = self.sessions.get(client, session)
        return self.catalogue.check_job(record, head), record

    def submit(
        self, client: str, session: str, head: JobHead, *, upload: Path, digest: str, idempotency: str
    ) -> tuple[Job, bool]:
        """Queue a checked upload as a job; False when this idempotency key already made it."""
        with self._submit:
            known = self.jobs.by_key(client, idempotency)
            if known is not None:
                if known.request != digest or known.session != session:
                    raise Refusal("conflict", "this idempotency key was used for another job", "make a new key per job")
                return known, False
            model, record = self.check_job(client, session, head)
            if self.jobs.active(client=client, session=session):
                raise Refusal("conflict", "a job of this session is active", "wait for its end, or cancel it")
            if head.start != record.position:
                raise Refusal(
                    "conflict",
                    f"the session holds {record.position} positions, the job starts at {head.start}",
                    "start at facts.position",
                    facts={"position": record.position, "pending": record.pending},
                )
            last = record.position + record.pending + head.positions
            if last > model.config.context:
                raise Refusal(
                    "too_large",
                    f"{last} positions exceed the context of {model.config.context}",
                    "shorten the prompt, ask for fewer steps, or open a new session",
                )
            price = model.config.price
            work = units(head.program, head.steps, head.inputs, record.pending, head.packed)
            self.queue.check_room(client, seconds_per_job=price.seconds_per_token * len(work))
            now = self.clock.now()
            self.sessions.touch(client, session, now=now)
            self.keys.touch(client, record.key_set, now=now)
            job = Job(
                job=secrets.token_hex(16),
                client=client,
                session=session,
                mode=head.mode,
                steps=head.steps,
                inputs=head.tokens,
                units=len(work),
                pending=record.pending,
                state="queued",
                created=now,
                idempotency=idempotency,
                request=digest,
            )
            self.jobs.add(job, upload)
            self.queue.put(client, session, job.job, key=(record.config_id, client, record.key_set))
        self.events.publish(job.job, state="queued", ahead=self.queue.ahead(job.job) or 0)
        return job, True

    def cancel(self, client: str, job: str) -> Job:
        """Cancel a job; one that has ended stays as it is."""
        found = self.jobs.get(client, job)
        if found.state in ACTIVE:
            self.dispatcher.cancel(found)
        return self.jobs.get(client, job)

    def gauges(self) -> dict[str, float]:
        """Numbers of this moment for the metrics."""
        return {
            "heatfhe_queue_jobs": len(self.queue),
            "heatfhe_running_jobs": self.dispatcher.running,
            "heatfhe_seats": len(self.dispatcher.seats),
            "heatfhe_workers": sum(seat.count for seat in self.dispatcher.seats),
        }

    def _describe(self, job: Job) -> tuple[Key, Opening, Assignment]:
        session = self.sessions.get(job.client, job.session)
        model = self.catalogue.by_config(session.config_id)
        source = self._sources[session.config_id]
        opening = Opening(
            plan=source.plan,
            circuit=source.circuit,
            engine=model.config.engine,
            options=dict(source.options),
            client_folder=self._name(self.home / job.client),
            key_set=session.key_set,
            memory=self.settings.worker_bytes,
            limits=self.catalogue.limits(model),
            objects=self.settings.store,
            cache_bytes=self.settings.key_cache_bytes,
        )
        order = Assignment(
            job=job.job,
            job_folder=self._name(self.jobs.folder(job.client, job.job)),
            session_folder=self._name(self.sessions.folder(job.client, job.session)),
            pending=job.pending,
            seconds_per_unit=model.config.price.seconds_per_token,
            client_folder=self._name(self.home / job.client),
            client_bytes=self.settings.client_bytes,
            snapshot_seconds=self.settings.snapshot_seconds,
            request=job.request,
        )
        return (session.config_id, job.client, session.key_set), opening, order

    def _name(self, path: Path) -> Path:
        """A path's name in the server's folder, for workers that may see the folder elsewhere."""
        return path.relative_to(self.settings.folder)

    def _ended(self, job: Job) -> None:
        self.jobs.settle()
        self.events.settle(job.job)
        self.jobs.keep_newest(job.client, self.settings.ended_jobs_per_client)

    def _sweep(self) -> None:
        while True:  # at once first: a server on one's own machine may live for less than a minute
            try:
                self.sweep()
                self.clock.save()
            except Exception as err:
                log_fault(logger, "expiry failed", err)
            if self._stop.wait(60):
                return

    def sweep(self, *, now: float | None = None) -> None:
        """Remove what has expired: jobs, then sessions, then key sets no session needs."""
        s, now = self.settings, self.clock.now() if now is None else now
        self.jobs.settle()
        self.jobs.expire(now=now, after=s.job_seconds)
        with self._submit:
            busy = frozenset(j.session for j in self.jobs.active())
            expired = self.sessions.expire(
                now=now, after=s.session_seconds, empty_after=s.empty_session_seconds, keep=busy
            )
            for _, session in expired:
                self.jobs.forget(session)
        clients = [p.name for p in self.home.iterdir() if p.is_dir()]
        needed = [(c, x.key_set) for c in clients for x in self.sessions.all(c)]
        for client, key_set in self.keys.expire(now=now, after=s.key_seconds, keep=needed):
            self._end_workers(client, key_set)

    def _end_workers(self, client: str, key_set: str) -> None:
        for seat in self.dispatcher.seats:
            seat.drop_where(lambda key: key[1:] == (client, key_set))
