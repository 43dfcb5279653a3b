# SPDX-License-Identifier: Apache-2.0
"""Jobs on disk: the encrypted request, its state, the outputs so far, and the index of idempotency keys.

clients/<client>/jobs/<job>/job.json       state, public facts
clients/<client>/jobs/<job>/request.bin    the message as it came; it goes once the record of the job's end is on disk
clients/<client>/jobs/<job>/output-0003    the ciphertexts of step 3, a message
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from heatfhe.errors import FileFormatError
from heatfhe.files import plain, read_json, write_json
from heatfhe.server.store.disk import disk_errors, remove_nameless, remove_partials, sync
from heatfhe.server.store.folder_objects import FolderObjects
from heatfhe.server.store.objects import Objects
from heatfhe.server.store.outputs import get_output, has_outputs, output_name
from heatfhe.wire import Refusal

logger = logging.getLogger(__name__)
KIND, VERSION = "heatfhe-job", 1
REQUEST = "request.bin"
ACTIVE = ("queued", "running")
ENDED = ("done", "failed", "cancelled")
_PUBLIC = (
    *("job", "session", "mode", "steps", "inputs", "units", "state", "done", "outputs", "created", "started"),
    *("error", "message"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job's public record.

    ``units`` are runs of a program (prompt and generate steps), ``done`` of them are over, ``outputs`` steps are ready
    to fetch. ``pending`` says that the session held a generated token which the cache did not have yet.
    """

    job: str
    client: str
    session: str
    mode: str
    steps: int
    inputs: int
    units: int
    pending: bool
    state: str
    created: float
    idempotency: str
    request: str
    done: int = 0
    outputs: int = 0
    started: float = 0.0
    ended: float = 0.0
    error: str = ""
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """What its owner sees."""
        return plain(self, _PUBLIC)


class JobStore:
    """Jobs of every client below one folder. The newest record is kept in memory, the disk has it first."""

    def __init__(
        self,
        folder: Path,
        *,
        removed: Callable[[str], None] = lambda _job: None,
        now: Callable[[], float] | None = None,
        objects: Objects | None = None,
    ) -> None:
        """``removed`` is told of every job that goes, so that nothing else keeps what belonged to it.

        ``now`` gives the time that an end is noted with, and judged by later. Where ``objects`` are given, requests and
        outputs are there, under the same names; records stay in the folder.
        """
        self._folder, self._removed, self._now, self._objects = folder, removed, now, objects
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._unsaved: set[str] = set()
        self.load()

    def load(self) -> None:
        """Read every record. One of another version, or that cannot be read, is left as it is: it may be someone's."""
        with self._lock:
            self._jobs.clear()
            self._keys.clear()
            self._unsaved.clear()
            unknown = 0
            for path in sorted(self._folder.glob("*/jobs/*/job.json")):
                try:
                    job = Job(**read_json(path, KIND, (VERSION,)))
                except (FileFormatError, TypeError):
                    unknown += 1
                    continue
                self._jobs[job.job] = job
                self._keys[(job.client, job.idempotency)] = job.job
        if unknown:
            logger.warning("jobs left alone because their records cannot be read: %d", unknown)

    def tidy(self) -> None:
        """Remove what killed processes left, and end the jobs that lack only the record of their end."""
        with self._lock:
            for home in self._folder.glob("*/jobs"):
                remove_nameless(home, "job.json", ("request.bin", "output-*", ".*.partial"))
                self._sweep_objects(home.parent.name)
            for job in list(self._jobs.values()):
                folder = self.folder(job.client, job.job)
                place = self.place(job.client, job.job)
                remove_partials(folder)
                if job.state in ENDED:
                    place.delete(REQUEST)
                elif place.size(REQUEST) is None and has_outputs(place, job.steps):
                    self.update(job.job, state="done", done=job.units, outputs=job.steps, ended=job.created)

    def folder(self, client: str, job: str) -> Path:
        """Where a job lives."""
        return self._folder / client / "jobs" / job

    def place(self, client: str, job: str) -> Objects:
        """Where a job's request and outputs are."""
        if self._objects is None:
            return FolderObjects(self.folder(client, job), prune=False)
        return self._objects.below(f"{client}/jobs/{job}")

    def by_key(self, client: str, idempotency: str) -> Job | None:
        """The job a client has already made under an idempotency key."""
        with self._lock:
            job = self._keys.get((client, idempotency))
            return self._jobs.get(job) if job else None

    def add(self, job: Job, upload: Path) -> None:
        """Take a checked upload over, then write the record: a job exists only with all its bytes."""
        folder = self.folder(job.client, job.job)
        with self._lock, disk_errors():
            try:
                folder.mkdir(parents=True)
                sync(upload)
                self.place(job.client, job.job).take(REQUEST, upload)
                self._write(job)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            self._jobs[job.job] = job
            self._keys[(job.client, job.idempotency)] = job.job

    def get(self, client: str, job: str) -> Job:
        """One job of this client."""
        with self._lock:
            found = self._jobs.get(job)
            if found is None or found.client != client:
                raise Refusal("not_found", "no such job", "submit one: POST /v1/sessions/{id}/jobs")
            return found

    def update(self, job: str, *, durable: bool = True, **changes: Any) -> Job:
        """Change a record; an ended job stays as it is. ``durable`` False keeps mere progress off the disk."""
        with self._lock:
            old = self._jobs[job]
            if old.state in ENDED:
                return old
            if self._now is not None and changes.get("state") in ENDED:
                changes["ended"] = self._now()
            new = replace(old, **changes)
            self._jobs[job] = new
            if durable:
                self._save(new)
            return new

    def settle(self) -> None:
        """Try again to write the records that the disk did not take."""
        with self._lock:
            for job in [self._jobs[name] for name in self._unsaved]:
                self._save(job)

    def active(self, *, client: str | None = None, session: str | None = None) -> list[Job]:
        """Jobs queued or running, oldest first."""
        with self._lock:
            found = [j for j in self._jobs.values() if j.state in ACTIVE]
        return sorted(
            (j for j in found if (client is None or j.client == client) and (session is None or j.session == session)),
            key=lambda j: j.created,
        )

    def of(self, client: str) -> list[Job]:
        """Every job of a client, oldest first."""
        with self._lock:
            return sorted((j for j in self._jobs.values() if j.client == client), key=lambda j: (j.created, j.job))

    def page(self, client: str, *, before: str | None, most: int) -> list[Job]:
        """The newest ``most`` jobs of a client, or those older than ``before``; oldest first."""
        found = self.of(client)
        if before is not None:
            last = self.get(client, before)
            found = [j for j in found if (j.created, j.job) < (last.created, last.job)]
        return found[-most:]

    def open_output(self, job: Job, step: int) -> BinaryIO:
        """The message with the ciphertexts of a step, open for reading."""
        return open_output(self._folder, self._objects, job, step)

    def forget(self, session: str) -> None:
        """Remove the jobs of a deleted session."""
        with self._lock:
            for job in [j for j in self._jobs.values() if j.session == session]:
                self._remove(job)

    def sessions(self) -> set[tuple[str, str]]:
        """Client and session of every job."""
        with self._lock:
            return {(j.client, j.session) for j in self._jobs.values()}

    def expire(self, *, now: float, after: float) -> None:
        """Remove jobs that ended more than ``after`` seconds ago."""
        with self._lock:
            for job in [j for j in self._jobs.values() if j.state in ENDED and now - j.ended > after]:
                self._remove(job)

    def keep_newest(self, client: str, most: int) -> None:
        """Remove the oldest ended jobs of a client, so that at most ``most`` of them are kept."""
        with self._lock:
            ended = sorted((j for j in self.of(client) if j.state in ENDED), key=lambda j: j.ended)
            for job in ended[: max(0, len(ended) - most)]:
                self._remove(job)

    def _sweep_objects(self, client: str) -> None:
        """Remove from an object store what belongs to jobs that are gone."""
        if self._objects is None:
            return
        for name in self._objects.listing(f"{client}/jobs"):
            if not self.folder(client, name.split("/")[2]).exists():
                self._objects.delete(name)

    def _remove(self, job: Job) -> None:
        self._jobs.pop(job.job, None)
        self._keys.pop((job.client, job.idempotency), None)
        self._unsaved.discard(job.job)
        folder = self.folder(job.client, job.job)
        with contextlib.suppress(OSError):
            (folder / "job.json").unlink(missing_ok=True)  # first: a job without its record is swept at the next start
            if self._objects is not None:
                self._objects.delete_below(f"{job.client}/jobs/{job.job}")
        shutil.rmtree(folder, ignore_errors=True)
        self._removed(job.job)

    def _save(self, job: Job) -> None:
        """Write a record. A full disk must not stop a job from ending, so this may fail; the request stays until then.

        After a restart such a job is found active, and with its request it runs again or is found complete.
        """
        folder = self.folder(job.client, job.job)
        try:
            self._write(job)
            if job.state in ENDED:
                sync(folder)
                self.place(job.client, job.job).delete(REQUEST)
        except OSError:
            self._unsaved.add(job.job)
        else:
            self._unsaved.discard(job.job)

    def _write(self, job: Job) -> None:
        write_json(self.folder(job.client, job.job) / "job.json", KIND, VERSION, plain(job))


def open_output(folder: Path, objects: Objects | None, job: Job, step: int) -> BinaryIO:
    """The same for a process without the records: ``folder`` and ``objects`` are those of the store."""
    if step >= job.steps:
        raise Refusal("not_found", f"the job has {job.steps} steps", "ask for a step it has")
    if step >= job.outputs:
        if job.state in ENDED:
            raise Refusal(
                "not_ready", f"the job ended before step {step}", "submit a new job", facts={"state": job.state}
            )
        raise Refusal("not_ready", f"step {step} is not ready", "listen to the job's events", retry_after=1)
    try:
        return _open(folder, objects, job, step)
    except FileNotFoundError as err:
        raise Refusal("not_found", "the job has just been removed", "submit a new job") from err


def _open(folder: Path, objects: Objects | None, job: Job, step: int) -> BinaryIO:
    place = f"{job.client}/jobs/{job.job}"
    if objects is None:
        return (folder / place / output_name(step)).open("rb")
    data = get_output(objects.below(place), step)
    if data is None:
        raise FileNotFoundError(output_name(step))
    number, path = tempfile.mkstemp()  # so that nobody who reads slowly holds it in memory
    os.unlink(path)
    file = os.fdopen(number, "w+b")
    file.write(data)
    file.seek(0)
    return file
