# SPDX-License-Identifier: Apache-2.0
"""What a service and its workers say to each other: one frozen record per line of JSON on their pipes.

Paths in them are names in the server's folder or object store, relative to it. A seat on another machine may find the
folder somewhere else; it says where, in ``Opening.store``, to the workers that it starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

from heatfhe.files import plain, remade
from heatfhe.planning import SNAPSHOT_SECONDS
from heatfhe.wire import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The first order: a model to open, the key set to open it with, and what the process may use.

    ``memory`` caps its addresses, if given. ``device`` and ``store`` are set by the seat that starts the process. With
    ``objects``, the URL of an object store, what clients have is there, under the same names as in the folder, and the
    process keeps up to ``cache_bytes`` of keys on its own machine.
    """

    plan: Path
    circuit: Path
    engine: str
    options: Mapping[str, Any]
    client_folder: Path
    key_set: str
    limits: Limits
    memory: int | None = None
    device: str = ""
    store: Path = Path()
    objects: str = ""
    cache_bytes: int = 0

    def placed(self) -> Opening:
        """The same with paths that can be opened, where ``store`` is; what is in an object store keeps its name."""
        names = () if self.objects else ("plan", "circuit", "client_folder")
        return replace(self, **{name: self.store / getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One job to run, or to go on with. Between snapshots lie at least ``snapshot_seconds`` of computing.

    ``request`` is the SHA-256 that ends the message which asks for it.
    """

    job: str
    job_folder: Path
    session_folder: Path
    pending: bool
    seconds_per_unit: float
    client_folder: Path
    client_bytes: int
    snapshot_seconds: float = SNAPSHOT_SECONDS
    request: str = ""

    def placed(self, store: Path) -> Assignment:
        """The same with paths that can be opened, where the server's folder is ``store``."""
        names = ("job_folder", "session_folder", "client_folder")
        return replace(self, **{name: store / getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class Cancel:
    """A job is to end; it does at its next bootstrap."""

    job: str


@dataclass(frozen=True, slots=True)
class GiveWay:
    """A job is to give up its turn; it does after the unit it is at."""

    job: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The model or the keys could not be opened: a refusal's code, and the reason."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A unit is at work. Public facts, as a job's events tell them; ``step`` counts those that give an output."""

    unit: int
    units: int
    kind: str
    steps: int
    eta_s: float
    step: int | None = None
    bootstrap: int | None = None
    bootstraps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """``unit`` of ``units`` are over, and so many outputs can be fetched.

    After a kill those since the last snapshot run again: the number then begins lower than it was.

    ``exceeded`` is of simulated models only, where nothing is secret: refreshes that met more than was planned for.
    """

    unit: int
    units: int
    outputs: int
    exceeded: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker has left a job: done, failed, cancelled, or yielded, which is another turn later."""

    job: str
    state: str
    error: str = ""
    message: str = ""


Order = Union[Assignment, Cancel, GiveWay]
Progress = Union[Running, Completed]
Record = Union[Opening, Order, Ready, Broken, Progress, Ended]
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Opening, Assignment, Cancel, GiveWay, Ready, Broken, Running, Completed, Ended)
}


def facts(record: Any) -> dict[str, Any]:
    """A record's fields as JSON; one that is None, its default, is left out."""
    return {name: value for name, value in plain(record).items() if value is not None}


def pack(record: Record) -> str:
    """A record as one line."""
    return json.dumps({type(record).__name__: facts(record)}) + "\n"


def unpack(line: str) -> Any:
    """Inverse of pack: the record of a line."""
    ((name, body),) = json.loads(line).items()
    return remade(_KINDS[name], body)
