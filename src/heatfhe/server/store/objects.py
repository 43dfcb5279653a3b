# SPDX-License-Identifier: Apache-2.0
"""An object store: bytes under names, whole or not at all, read only together with the SHA-256 they were put with.

    folder_objects.py     files below a folder, under the same names
    memory_objects.py     a dictionary, for tests
    remote_objects.py     whatever fsspec reaches: S3 and what speaks like it

What names an object also knows its hash: a key set's manifest, a job's record, a session's journal. Those roots are
JSON records that carry their own digest. So a lost, torn or changed object is named and never used, whoever keeps it.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError, MissingExtraError, ObjectError
from heatfhe.files import atomic_write, json_record, parse_record

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def checked_name(name: str) -> str:
    """An object's name, or a ConfigError: parts of plain characters, none of which starts with a dot."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is no name of an object")
    return name


def sha256_of(data: bytes) -> str:
    """SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


class Objects(ABC):
    """Get, put, list, delete, and create if absent. Safe to use from several threads, processes and machines."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> str:
        """Write an object, over another if there is one; it appears whole or not at all. Returns its SHA-256."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless one of that name exists. Of any number of callers at once, exactly one gets True."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The bytes under a name, unchecked; None where there are none. For records, which carry their own digest."""

    @abstractmethod
    def listing(self, prefix: str = "") -> dict[str, int]:
        """Name and size of every object below a prefix (a whole name of folders, without the last slash), sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object; to remove one that is not there is fine."""

    def get(self, name: str, sha256: str) -> bytes:
        """The object of that name and hash; ObjectError if it is lost, or not what was put there."""
        data = self.read(name)
        if data is None:
            raise ObjectError(sha256, name, "is lost")
        if sha256_of(data) != sha256:
            raise ObjectError(sha256, name, f"was torn or changed: {len(data)} bytes that do not match it")
        return data

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        """Put several objects, in any order; on an error some may be there."""
        for name, data in objects.items():
            self.put(name, data)

    def get_all(self, hashes: Mapping[str, str]) -> dict[str, bytes]:
        """Several objects by name, each checked against its hash."""
        return {name: self.get(name, sha256) for name, sha256 in hashes.items()}

    def fetch(self, name: str, sha256: str, path: Path) -> None:
        """Bring an object into a file of this machine, which appears only if the bytes are right."""
        data = self.get(name, sha256)
        with atomic_write(path) as f:
            f.write(data)

    def take(self, name: str, path: Path) -> None:
        """Put a file of this machine, whose hash the caller knows, and remove it here."""
        self.put(name, path.read_bytes())
        path.unlink()

    def size(self, name: str) -> int | None:
        """How many bytes an object has; None where there is none."""
        data = self.read(name)
        return None if data is None else len(data)

    def below(self, prefix: str) -> Objects:
        """The part of this store below a prefix, with names of its own."""
        return _Part(self, checked_name(prefix))

    def delete_below(self, prefix: str = "") -> None:
        """Remove every object below a prefix."""
        for name in self.listing(prefix):
            self.delete(name)

    # -- records: JSON with its own digest, so that their readers need no hash -----------------------------------------

    def put_record(self, name: str, kind: str, version: int, body: Any) -> None:
        """Write a record."""
        self.put(name, json_record(kind, version, body))

    def create_record(self, name: str, kind: str, version: int, body: Any) -> bool:
        """Write a record unless it exists."""
        return self.create(name, json_record(kind, version, body))

    def get_record(self, name: str, kind: str, versions: tuple[int, ...]) -> dict[str, Any] | None:
        """The body of a record, None where there is none; refused if it is not whole or of another kind."""
        data = self.read(name)
        return None if data is None else parse_record(data, name, kind, versions)


class _Part(Objects):
    """The objects below a prefix."""

    def __init__(self, whole: Objects, prefix: str) -> None:
        self._whole, self._prefix = whole, prefix

    def put(self, name: str, data: bytes) -> str:
        return self._whole.put(self._full(name), data)

    def create(self, name: str, data: bytes) -> bool:
        return self._whole.create(self._full(name), data)

    def read(self, name: str) -> bytes | None:
        return self._whole.read(self._full(name))

    def listing(self, prefix: str = "") -> dict[str, int]:
        found = self._whole.listing(self._full(prefix) if prefix else self._prefix)
        return {name[len(self._prefix) + 1 :]: size for name, size in found.items()}

    def delete(self, name: str) -> None:
        self._whole.delete(self._full(name))

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        self._whole.put_all({self._full(name): data for name, data in objects.items()})

    def get_all(self, hashes: Mapping[str, str]) -> dict[str, bytes]:
        found = self._whole.get_all({self._full(name): sha256 for name, sha256 in hashes.items()})
        return {name: found[self._full(name)] for name in hashes}

    def take(self, name: str, path: Path) -> None:
        self._whole.take(self._full(name), path)

    def size(self, name: str) -> int | None:
        return self._whole.size(self._full(name))

    def _full(self, name: str) -> str:
        return f"{self._prefix}/{checked_name(name)}"


def open_objects(place: str | Path) -> Objects:
    """The store at a URL or in a folder."""
    text = str(place)
    if "://" not in text:
        from heatfhe.server.store.folder_objects import FolderObjects

        return FolderObjects(Path(text))
    try:
        from heatfhe.server.store.remote_objects import RemoteObjects

        return RemoteObjects(text)
    except ImportError as err:  # fsspec says so for a file system that it knows and cannot load
        if (err.name or "").startswith("heatfhe"):
            raise
        raise MissingExtraError("s3", needed_by=f"a store at {text}") from err
