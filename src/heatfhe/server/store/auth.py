# SPDX-License-Identifier: Apache-2.0
"""Clients and their tokens: 32 random bytes each, of which the server keeps only the SHA-256."""

from __future__ import annotations

import fcntl
import hashlib
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatfhe.errors import ConfigError
from heatfhe.files import read_json, write_json

KIND, VERSION = "heatfhe-clients", 1
CLIENT = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


class ClientBook:
    """Who may use the server. A token is high-entropy, so a plain SHA-256 at rest cannot be searched.

    Any number of processes may change it at once, beside a running server: each change waits for the one before it.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._by_hash: dict[str, str] = {}

    def add(self, client: str) -> str:
        """Register a client and return its token: the only time it is seen. An old token of that name ends."""
        if not CLIENT.fullmatch(client):
            raise ConfigError(f"client name {client!r} must be 1 to 40 of a-z, 0-9 and -, not starting with -")
        token = "heat_" + secrets.token_urlsafe(32)
        with self._changing():
            rows = self._read()
            rows[client] = {"sha256": _hash(token), "created": int(time.time())}
            self._write(rows)
        return token

    def remove(self, client: str) -> bool:
        """Forget a client; False if it was not known."""
        with self._changing():
            rows = self._read()
            known = rows.pop(client, None) is not None
            if known:
                self._write(rows)
            return known

    def tidy(self) -> None:
        """Remove what a killed process left beside the book."""
        with self._changing():
            for left in self._path.parent.glob(f".{self._path.name}.*.partial"):
                left.unlink(missing_ok=True)

    def clients(self) -> tuple[str, ...]:
        """Every client's name."""
        with self._lock:
            return tuple(sorted(self._read()))

    def who(self, token: str) -> str | None:
        """The client a token belongs to. The file is read again when it changes, so that adding needs no restart."""
        with self._lock:
            try:
                seen = self._path.stat()
            except FileNotFoundError:
                return None
            stamp = (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
            if stamp != self._stamp:
                self._by_hash = {str(row["sha256"]): name for name, row in self._read().items()}
                self._stamp = stamp
            # A dictionary keyed by the hash: its timing speaks of the hash of what the caller sent, not of any token.
            return self._by_hash.get(_hash(token))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock, self._path.with_name(f"{self._path.name}.lock").open("ab") as f:
            fcntl.flock(f.fileno(), fcntl.LOCK_EX)
            yield

    def _write(self, rows: dict[str, dict[str, object]]) -> None:
        write_json(self._path, KIND, VERSION, {"clients": rows})
        self._path.chmod(0o600)

    def _read(self) -> dict[str, dict[str, object]]:
        if not self._path.exists():
            return {}
        rows = read_json(self._path, KIND, (VERSION,))["clients"]
        return {name: row for name, row in rows.items() if CLIENT.fullmatch(name)}


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
