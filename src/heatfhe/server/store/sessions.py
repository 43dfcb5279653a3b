# SPDX-License-Identifier: Apache-2.0
"""Sessions: one conversation each, with an owner, a key set, an encrypted cache, a byte count and an expiry."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatfhe.errors import FileFormatError
from heatfhe.files import plain, read_json, write_json
from heatfhe.server.store.disk import disk_errors, folder_bytes, remove_nameless, remove_partials
from heatfhe.server.store.journal import Journal
from heatfhe.server.store.objects import Objects
from heatfhe.wire import Refusal

KIND, VERSION = "heatfhe-session", 1
_IDLE_SECONDS = 600.0  # longer than any upload of a first job takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session as stored; ``position`` is how many tokens its cache holds.

    ``idempotency`` is the key it was opened under; empty for a client that sent none.
    """

    session: str
    client: str
    model: str
    config_id: str
    key_set: str
    created: int
    used: int
    position: int
    pending: bool
    size: int
    idempotency: str = ""

    @property
    def empty(self) -> bool:
        """Whether nothing has been computed in it: to lose it costs its owner nothing but opening another."""
        return not (self.position or self.pending)

    def as_json(self) -> dict[str, Any]:
        names = ("session", "model", "config_id", "key_set", "created", "used", "position", "pending", "size")
        return plain(self, names)


class SessionStore:
    """Sessions of every client below one folder: clients/<client>/sessions/<session>/.

    Where ``objects`` are given, what a session holds is there, under the same names; its record stays in the folder.
    """

    def __init__(self, folder: Path, *, most: int, objects: Objects | None = None) -> None:
        self._folder, self._most, self._objects = folder, most, objects
        self._lock = threading.RLock()

    def folder(self, client: str, session: str) -> Path:
        """Where a session lives."""
        return self._folder / client / "sessions" / session

    def journal(self, client: str, session: str) -> Journal:
        """What a session holds."""
        if self._objects is None:
            return Journal(self.folder(client, session))
        return Journal(self._objects.below(f"{client}/sessions/{session}"))

    def create(
        self, client: str, *, model: str, config_id: str, key_set: str, now: float, idempotency: str = ""
    ) -> Session:
        """Open an empty session. An empty ``idempotency`` key is not written."""
        with self._lock:
            home = self._folder / client / "sessions"
            if len(list(home.glob("*/session.json"))) >= self._most:
                raise Refusal(
                    "quota", f"this client already has {self._most} sessions", "delete one: DELETE /v1/sessions/{id}"
                )
            session = secrets.token_hex(16)
            body = {"model": model, "config_id": config_id, "key_set": key_set, "created": int(now), "used": int(now)}
            body.update({"idempotency": idempotency} if idempotency else {})
            with disk_errors():
                try:
                    (home / session).mkdir(parents=True)
                    write_json(home / session / "session.json", KIND, VERSION, body)
                except OSError:
                    shutil.rmtree(home / session, ignore_errors=True)
                    raise
            return self.get(client, session)

    def by_key(self, client: str, idempotency: str) -> Session | None:
        """The session that a client has already opened under an idempotency key; what is on disk decides."""
        return next((s for s in self.all(client) if s.idempotency == idempotency), None) if idempotency else None

    def exists(self, client: str, session: str) -> bool:
        """Whether a client has a session."""
        return (self.folder(client, session) / "session.json").exists()

    def get(self, client: str, session: str) -> Session:
        """One session, or a refusal that does not say whether someone else has it."""
        with self._lock:
            folder = self.folder(client, session)
            if not (folder / "session.json").exists():
                raise _unknown()
            body = read_json(folder / "session.json", KIND, (VERSION,))
            head, size = self.journal(client, session).head(), folder_bytes(folder)
            if self._objects is not None:
                size += sum(self._objects.listing(f"{client}/sessions/{session}").values())
            return Session(
                session=session, client=client, position=head.position, pending=head.pending, size=size, **body
            )

    def all(self, client: str) -> list[Session]:
        """Every session of a client that this version can read."""
        with self._lock:
            home = self._folder / client / "sessions"
            found = []
            for name in sorted(p.parent.name for p in home.glob("*/session.json")):
                with contextlib.suppress(FileFormatError):  # of another version: it is left alone
                    found.append(self.get(client, name))
            return found

    def touch(self, client: str, session: str, *, now: float) -> None:
        """Note that a session was used."""
        with self._lock:
            path = self.folder(client, session) / "session.json"
            body = read_json(path, KIND, (VERSION,))
            with disk_errors():
                write_json(path, KIND, VERSION, {**body, "used": int(now)})

    def delete(self, client: str, session: str) -> None:
        """Remove a session with its cache."""
        with self._lock:
            folder = self.folder(client, session)
            if not (folder / "session.json").exists():
                raise _unknown()
            (folder / "session.json").unlink()  # first: half a session must not look like a whole one
            if self._objects is not None:
                self._objects.delete_below(f"{client}/sessions/{session}")
            shutil.rmtree(folder, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what killed processes left: sessions that were never whole, states that are not current."""
        with self._lock:
            for home in self._folder.glob("*/sessions"):
                remove_nameless(
                    home, "session.json", ("journal.json", "lock", "turns", "state-*", ".*.partial", ".*.old")
                )
                self._sweep_objects(home.parent.name)
                for folder in [p.parent for p in home.glob("*/session.json") if self._objects is None]:
                    journal = Journal(folder)
                    # A worker of the former server may be about to end; it tidies up itself when the next one works.
                    with journal.lock(wait=False) as mine, contextlib.suppress(FileFormatError):
                        if mine:
                            remove_partials(folder)
                            journal.tidy()

    def _sweep_objects(self, client: str) -> None:
        """Remove from an object store what belongs to sessions that are gone; live ones are tidied by their workers."""
        if self._objects is None:
            return
        for name in self._objects.listing(f"{client}/sessions"):
            if not self.exists(client, name.split("/")[2]):
                self._objects.delete(name)

    def make_room(self, client: str, *, now: float, keep: frozenset[str]) -> list[str]:
        """Where a client has all the sessions it may, delete its oldest empty one, unless it may be about to be used.

        A client that dies between opening a session and using it leaves one each time; they must not lock it out.
        """
        with self._lock:
            mine = self.all(client)
            idle = [s for s in mine if s.empty and now - s.used > _IDLE_SECONDS and s.session not in keep]
            if len(mine) < self._most or not idle:
                return []
            oldest = min(idle, key=lambda s: s.used).session
            self.delete(client, oldest)
            return [oldest]

    def expire(
        self, *, now: float, after: float, empty_after: float | None = None, keep: frozenset[str] = frozenset()
    ) -> list[tuple[str, str]]:
        """Delete sessions not used for ``after`` seconds, empty ones for ``empty_after``; returns (client, session)."""
        gone, empty_after = [], after if empty_after is None else empty_after
        with self._lock:
            for client in sorted(p.name for p in self._folder.iterdir() if p.is_dir()):
                for session in self.all(client):
                    limit = min(after, empty_after) if session.empty else after
                    if now - session.used > limit and session.session not in keep:
                        self.delete(client, session.session)
                        gone.append((client, session.session))
        return gone


def _unknown() -> Refusal:
    return Refusal("not_found", "no such session", "open one: POST /v1/sessions")
