# SPDX-License-Identifier: Apache-2.0
"""A session's encrypted state on disk, journalled: after a crash the last complete step is there, whole.

    <session>/state-000007/<number>     ciphertexts of the cache and the fed-back value
    <session>/journal.json              which state is current, position, job and units done; replaced atomically

A step's state is written under a new name, then the journal points to it, then the old one goes. Files hold what the
engine's ``dump`` gives; names are numbers, so nothing from a message becomes a path.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatfhe.errors import FileFormatError
from heatfhe.files import atomic_directory, plain, read_json, write_json

KIND, VERSION = "heatfhe-journal", 1
_FACTS = ("position", "pending", "job", "units")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a session is after a unit of work: positions in the cache, the job it came from, the ciphertexts.

    ``pending`` says that the values hold the fed-back embedding of a generated token that the cache does not have yet.
    """

    position: int = 0
    pending: bool = False
    job: str = ""
    units: int = 0
    values: Mapping[str, bytes] = field(default_factory=dict)


class Journal:
    """Reads and writes the snapshots of one session. One process at a time holds ``lock``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / "journal.json"

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Wait until no other process works on this session; the lock ends with its process, however it dies.

        Without ``wait`` it may not be had; False says so.
        """
        with (self._folder / "lock").open("ab") as f:
            try:
                fcntl.flock(f.fileno(), fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True

    def head(self) -> Snapshot:
        """The current snapshot without its ciphertexts; an empty one if nothing has run."""
        return _snapshot(self._body(), {})

    def read(self) -> Snapshot:
        """The current snapshot, every ciphertext checked against its hash."""
        body, values = self._body(), {}
        for number, (name, digest) in enumerate(body.get("values", ())):
            data = (self._folder / body["state"] / f"{number:05d}").read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise FileFormatError(
                    "a session's stored state does not match its journal; the session must be deleted"
                )
            values[name] = data
        return _snapshot(body, values)

    def write(self, snapshot: Snapshot) -> None:
        """Make a snapshot the current one: the old stays whole until the new one is."""
        serial = 1 + max((int(p.name[6:]) for p in self._folder.glob("state-*")), default=0)
        state = f"state-{serial:06d}"
        rows = []
        with atomic_directory(self._folder / state) as partial:
            for number, (name, data) in enumerate(snapshot.values.items()):
                with (partial / f"{number:05d}").open("wb") as f:
                    f.write(data)
                    f.flush()
                    os.fsync(f.fileno())
                rows.append([name, hashlib.sha256(data).hexdigest()])
        try:
            write_json(self._path, KIND, VERSION, {**plain(snapshot, _FACTS), "values": rows, "state": state})
        except BaseException:
            shutil.rmtree(self._folder / state, ignore_errors=True)
            raise
        self.tidy()

    def tidy(self) -> None:
        """Remove states that are not current, and what a killed writer left."""
        current = self._body().get("state", "")
        for old in [*self._folder.glob("state-*"), *self._folder.glob(".state-*")]:
            if old.name != current:
                shutil.rmtree(old, ignore_errors=True)

    def _body(self) -> dict[str, Any]:
        return read_json(self._path, KIND, (VERSION,)) if self._path.exists() else {}


def _snapshot(body: Mapping[str, Any], values: Mapping[str, bytes]) -> Snapshot:
    return Snapshot(**{name: body[name] for name in _FACTS}, values=values) if body else Snapshot()
