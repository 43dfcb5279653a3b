# SPDX-License-Identifier: Apache-2.0
"""A session's encrypted state, journalled: after a crash the last complete snapshot is there, whole.

    turns/00000007/journal.json     position, job and units done, and of every ciphertext its hash and its place
    state-000007/<sha256>           ciphertexts that turn 7 wrote: of the cache, and the fed-back value

A snapshot's ciphertexts are written under their hashes, then the journal of the turn names them, then those that no
snapshot needs any more go. What has not changed since the last snapshot is not written again. Only the holder of the
last turn (lease.py) can make its journal the one that readers find; without a turn a journal is ``journal.json``, the
name that it had before there were turns. Folders of that time (version 1, states with numbered files) can be read.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heatfhe.errors import FileFormatError, ObjectError
from heatfhe.files import plain
from heatfhe.server.store.folder_objects import FolderObjects
from heatfhe.server.store.lease import TURNS, Lease, LeaseLost, turn_name, turns
from heatfhe.server.store.objects import Objects, sha256_of

KIND, VERSION = "heatfhe-journal", 2
FIRST = "journal.json"  # of turn 0, which nobody has to take
_FACTS = ("position", "pending", "job", "units")
Row = tuple[str, str, str]  # a value's name, its hash, and the object that holds it


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

    def __init__(self, place: Path | Objects, *, lease: Lease | None = None) -> None:
        """``place`` is the session's folder, or its part of an object store."""
        self._objects = FolderObjects(place) if isinstance(place, Path) else place
        self._lease = Lease(self._objects) if lease is None else lease
        self._held = False

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Have the session for this process alone; what a former holder writes from now on is not taken.

        Waits until its holder is gone or silent for the time of a lease. Without ``wait`` it only says whether nobody
        has it, and no turn is taken: nothing may be written then.
        """
        if not wait:
            with self._lease.free() as free:
                yield free
            return
        with self._lease.held():
            facts, rows = self._head()
            self._held = True
            try:
                self._point(facts, rows)  # under the new number: no other journal counts from here on
                yield True
            finally:
                self._held = False

    def check(self) -> None:
        """LeaseLost unless this process has the session, or nobody ever had."""
        if self._held:
            self._lease.check()
        elif turns(self._objects, "lease"):
            raise LeaseLost

    def head(self) -> Snapshot:
        """The current snapshot without its ciphertexts; an empty one if nothing has run."""
        return Snapshot(**self._head()[0])

    def read(self) -> Snapshot:
        """The current snapshot, every ciphertext checked against its hash."""
        facts, rows = self._head()
        try:
            found = self._objects.get_all({place: sha256 for _, sha256, place in rows})
        except ObjectError as err:
            raise FileFormatError(
                f"a session's stored state does not match its journal: {err}; the session must be deleted"
            ) from err
        return Snapshot(**facts, values={name: found[place] for name, _, place in rows})

    def write(self, snapshot: Snapshot) -> int:
        """Make a snapshot the current one: the old stays whole until the new one is. Returns the bytes written."""
        self.check()
        _, old = self._head()
        known = {sha256: place for _, sha256, place in old}
        rows, fresh = list[Row](), dict[str, bytes]()
        for name, data in snapshot.values.items():
            digest = sha256_of(data)
            if digest not in known:
                known[digest] = f"state-{self._number:06d}/{digest}"
                fresh[known[digest]] = data
            rows.append((name, digest, known[digest]))
        try:
            self._objects.put_all(fresh)
            self.check()
            self._point(plain(snapshot, _FACTS), rows)
        except BaseException:
            for place in fresh:
                self._objects.delete(place)
            raise
        self.check()  # a successor that comes later has read this journal, and needs nothing of the one before
        for place in {place for *_, place in old} - {place for *_, place in rows}:
            self._objects.delete(place)
        if not self._held:
            self.tidy()
        return sum(map(len, fresh.values()))

    def tidy(self) -> None:
        """Remove what is not part of the current snapshot, and what a killed writer or a former holder left."""
        kept = {place for *_, place in self._head()[1]}
        counts, last = (max(turns(self._objects, what), default=0) for what in ("journal", "lease"))
        for name in self._objects.listing():
            part, *rest = name.split("/")
            past = part == TURNS and rest[0].isdigit() and int(rest[0]) < min(counts, last)
            if past or (name == FIRST and counts) or (part.startswith("state-") and name not in kept):
                self._objects.delete(name)
        if isinstance(self._objects, FolderObjects):
            for left in self._objects.folder.glob(".state-*"):  # of a server before turns
                shutil.rmtree(left, ignore_errors=True)

    @property
    def _number(self) -> int:
        return self._lease.number if self._held else 0

    def _head(self) -> tuple[dict[str, Any], list[Row]]:
        """The facts and the rows of the journal that counts."""
        for number in [*reversed(turns(self._objects, "journal")), 0]:
            name = turn_name(number, "journal") if number else FIRST
            body = self._objects.get_record(name, KIND, (1, VERSION))
            if body is not None:
                facts = {fact: body[fact] for fact in _FACTS}
                if "state" in body:  # version 1: files numbered in a folder of their own
                    places = (f"{body['state']}/{i:05d}" for i in range(len(body["values"])))
                    return facts, [(*row, place) for row, place in zip(body["values"], places)]
                return facts, [(name, digest, place) for name, digest, place in body["values"]]
        return plain(Snapshot(), _FACTS), []

    def _point(self, facts: Mapping[str, Any], rows: list[Row]) -> None:
        name = turn_name(self._number, "journal") if self._number else FIRST
        self._objects.put_record(name, KIND, VERSION, {**facts, "values": [list(row) for row in rows]})
