# SPDX-License-Identifier: Apache-2.0
"""Seats on a Ray cluster: an actor per GPU or group of cores, which owns a ``Device`` on whatever machine it is placed.

Ray places actors and says when one is gone; whose turn it is and what is kept stays with the server. Ciphertexts from
strangers are parsed in the actor's child processes, under their memory cap, as on one machine. Between server and actor
go lines of JSON as on a worker's pipes: nothing that a client sent is ever unpickled, only strings are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from heatfhe.errors import ConfigError
from heatfhe.server.settings import Settings
from heatfhe.server.store.shelf import read_mark
from heatfhe.server.wall import close_wall
from heatfhe.server.work import orders
from heatfhe.server.work.orders import Assignment, Broken, Cancel, Ended, GiveWay, Opening, Progress, Ready
from heatfhe.server.work.pool import Device, WorkerProcess
from heatfhe.server.work.seats import Key, WorkerDied, WorkerRefused

logger = logging.getLogger(__name__)
STORE_VARIABLE = "HEATFHE_STORE"  # where a machine of the cluster finds the server's folder, if not at the same path
_CALLS = 8  # at once in an actor: one job, and what is said to it meanwhile
_OBJECTS = 80 << 20  # bytes of shared memory for a Ray of our own: only short lines pass through it


class _Place:
    """The actor: a device, its workers, and the pipes to them. An empty line means that a worker has died."""

    def __init__(self, folder: str, url: str, device: str, resident: int, environment: Mapping[str, str]) -> None:
        close_wall()
        self._folder, self._url = Path(os.environ.get(STORE_VARIABLE) or folder), url
        self._device = Device(device, resident=resident, environment=environment, store=self._folder)
        self._workers: dict[Key, WorkerProcess] = {}

    def facts(self) -> dict[str, str]:
        """Where this actor is, and the mark of the folder or the object store that it sees."""
        return {"host": os.uname().nodename, "pid": str(os.getpid()), "mark": read_mark(self._folder, self._url)}

    def open(self, key: list[str], opening: str) -> str:
        """Open a model for a key set."""
        try:
            self._workers[tuple(key)] = self._device.worker(tuple(key), orders.unpack(opening))
        except WorkerRefused as err:
            return orders.pack(Broken(code=err.code, message=err.message))
        except WorkerDied:
            return ""
        return orders.pack(Ready())

    def run(self, key: list[str], order: str) -> Iterator[str]:
        """Run a job; every line the worker says."""
        try:
            for said in self._workers[tuple(key)].run(orders.unpack(order)):
                yield orders.pack(said)
        except WorkerDied:
            yield ""

    def tell(self, key: list[str], order: str) -> bool:
        """Pass an order on to a worker that has a job; False if it is gone."""
        what = orders.unpack(order)
        try:
            worker = self._workers[tuple(key)]
            (worker.cancel if isinstance(what, Cancel) else worker.give_way)(what.job)
        except (KeyError, WorkerDied):
            return False
        return True

    def drop(self, key: list[str]) -> None:
        """End a key set's worker."""
        self._workers.pop(tuple(key), None)
        self._device.drop(tuple(key))

    def open_keys(self) -> list[list[str]]:
        """What is open, least recently used first."""
        return [list(key) for key in self._device.open_keys()]


class RaySeat:
    """A seat whose workers are the children of an actor; when the actor dies, the next job starts another."""

    def __init__(self, name: str, settings: Settings, mark: str) -> None:
        (device,) = settings.devices
        self.name, self.resident, self._settings, self._mark = name, settings.resident_workers, settings, mark
        self._needs = {"num_gpus": 1} if device.startswith("cuda") else {"num_cpus": settings.seat_cpus}
        self._device = device
        self._actor: Any = None
        self._open: list[Key] = []
        self._lock = threading.Lock()

    def open_keys(self) -> tuple[Key, ...]:
        """What is open, as far as this process knows."""
        with self._lock:
            return tuple(self._open)

    @property
    def count(self) -> int:
        """Workers alive, as far as this process knows."""
        return len(self.open_keys())

    def worker(self, key: Key, opening: Opening) -> RayWorker:
        """The worker for a model and key set; both it and the actor are started if need be."""
        if self._actor is None:
            try:
                self.prepare()
            except ConfigError as err:
                logger.error("%s", err)
                raise WorkerDied from err
        line = self.ask("open", list(key), orders.pack(opening))
        said = orders.unpack(line) if line else None
        if said is None:
            raise WorkerDied
        if isinstance(said, Broken):
            raise WorkerRefused(said.code, said.message)
        known = [tuple(each) for each in self.ask("open_keys")]
        with self._lock:
            self._open = known
        return RayWorker(self, key)

    def drop(self, key: Key) -> None:
        """End the worker of a key set, if there is one."""
        with self._lock:
            known = key in self._open
            self._open = [each for each in self._open if each != key]
        if known:
            with contextlib.suppress(WorkerDied):  # its workers ended with it
                self.tell("drop", list(key))

    def drop_where(self, test: Callable[[Key], bool]) -> None:
        """End every worker whose key passes a test."""
        for key in filter(test, self.open_keys()):
            self.drop(key)

    def close(self) -> None:
        """End the actor, and with it its workers: their pipes close."""
        with self._lock:
            actor, self._actor, self._open = self._actor, None, []
        if actor is not None:
            ray.kill(actor)

    def prepare(self) -> dict[str, str]:
        """Start the actor, if there is none, and say where it is. Waits until the cluster has room for it.

        An actor that does not see this server's folder is ended and refused.
        """
        facts: dict[str, str] = self.ask("facts")
        if facts["mark"] != self._mark:
            self.close()
            if self._settings.store:
                raise ConfigError(f"the seat on {facts['host']} finds another store than this server's at the same URL")
            raise ConfigError(
                f"the seat on {facts['host']} does not see this server's folder at {self._settings.folder.resolve()}: "
                f"mount it there, or set {STORE_VARIABLE} to its place in the environment of ray start"
            )
        return facts

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call the actor and wait; whatever has happened to it, the caller sees WorkerDied and may try again."""
        return self._call(self._reach(), method, *arguments)

    def tell(self, method: str, *arguments: Any) -> Any:
        """The same, but no actor is started for it: without one there is nobody to tell."""
        with self._lock:
            actor = self._actor
        if actor is None:
            raise WorkerDied
        return self._call(actor, method, *arguments)

    def _call(self, actor: Any, method: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(actor, method).remote(*arguments))
        except RayError as err:
            self._lose(actor)
            raise WorkerDied from err

    def stream(self, *arguments: Any) -> Iterator[str]:
        """The lines that a job's worker says."""
        actor = self._reach()
        try:
            for reference in actor.run.options(num_returns="streaming").remote(*arguments):
                yield ray.get(reference)
        except RayError as err:
            self._lose(actor)
            raise WorkerDied from err

    def _reach(self) -> Any:
        with self._lock:
            if self._actor is None:
                folder = str(self._settings.folder.resolve())
                environment = dict(self._settings.worker_environment)
                place = ray.remote(_Place).options(max_concurrency=_CALLS, max_restarts=0, **self._needs)
                self._actor = place.remote(folder, self._settings.store, self._device, self.resident, environment)
                self._open = []
            return self._actor

    def _lose(self, actor: Any) -> None:
        """Forget an actor that failed to answer, and end it in case it still lives somewhere."""
        with self._lock:
            if self._actor is actor:
                self._actor, self._open = None, []
        ray.kill(actor)


class RayWorker:
    """A worker beside an actor, as the dispatcher sees it."""

    def __init__(self, seat: RaySeat, key: Key) -> None:
        self._seat, self._key = seat, key

    def run(self, order: Assignment) -> Iterator[Progress | Ended]:
        """Give a job; yields its progress, and last its end."""
        for line in self._seat.stream(list(self._key), orders.pack(order)):
            if not line:
                break
            said = orders.unpack(line)
            yield said
            if isinstance(said, Ended):
                return
        raise WorkerDied

    def cancel(self, job: str) -> None:
        """Ask for the end of a job."""
        self._tell(Cancel(job))

    def give_way(self, job: str) -> None:
        """Ask a job to give up its turn."""
        self._tell(GiveWay(job))

    def stop(self) -> None:
        """End the process."""
        self._seat.drop(self._key)

    def _tell(self, order: Cancel | GiveWay) -> None:
        if not self._seat.tell("tell", list(self._key), orders.pack(order)):
            raise WorkerDied


class Cluster:
    """The Ray cluster of a server: connected when made; ``local`` starts a small one on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "heatfhe"}
        self._ours = not ray.is_initialized()
        if not self._ours:
            return
        try:
            if settings.ray == "local":
                cpus = max(1, settings.seat_cpus * settings.seats[1])
                own = {"include_dashboard": False, "object_store_memory": _OBJECTS, "num_cpus": cpus}
                ray.init(address="local", **own, **quiet)
            else:
                ray.init(address=settings.ray, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as err:
            raise ConfigError(
                f"no Ray cluster answers at {settings.ray} ({type(err).__name__}); start one with: ray start --head, "
                "or give --ray local to try it on this machine"
            ) from err

        self._warn()

    def _warn(self) -> None:
        """Say so if the seats there always are have no room: the server begins when the cluster has grown."""
        kind, each = ("GPU", 1) if self._settings.devices[0].startswith("cuda") else ("CPU", self._settings.seat_cpus)
        need, have = self._settings.seats[0] * each, ray.cluster_resources().get(kind, 0.0)
        if have < need:
            logger.warning("the cluster has %g %ss and the seats need %d; waiting for more", have, kind, need)

    def seat(self, number: int) -> RaySeat:
        """A seat that sees this server's folder."""
        seat = RaySeat(f"ray-{number}", self._settings, read_mark(self._settings.folder))
        facts = seat.prepare()
        logger.info("seat started name=%s host=%s pid=%s", seat.name, facts["host"], facts["pid"])
        return seat

    def close(self) -> None:
        """Leave the cluster, or end it if it is our own."""
        if self._ours:
            ray.shutdown()
