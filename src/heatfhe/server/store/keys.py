# SPDX-License-Identifier: Apache-2.0
"""Evaluation keys: per client, content-addressed, uploaded in resumable chunks, with quota and expiry.

    clients/<client>/keysets/<key set>.json     manifest, created, last used
    clients/<client>/blobs/<sha256>             a complete key
    clients/<client>/partial/<sha256>           a key on its way; its length is where the upload goes on

Blobs belong to one client: two clients never share a file, so nobody can ask whether another has a key.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from heatfhe.errors import FileFormatError, MissingKeyError, ObjectError
from heatfhe.files import file_digest, plain
from heatfhe.server.store.disk import append, disk_errors, remove_partials
from heatfhe.server.store.folder_objects import FolderObjects
from heatfhe.server.store.key_cache import KeyCache
from heatfhe.server.store.locks import SharedLocks
from heatfhe.server.store.objects import Objects
from heatfhe.server.store.quota import ClientLocks, Quota
from heatfhe.wire import KeyEntry, KeyManifest, Refusal, looks_secret, name_is_secret

KIND, VERSION = "heatfhe-key-set", 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySetStatus:
    """A key set as its owner sees it. ``missing`` gives for every incomplete blob how many bytes have arrived."""

    key_set: str
    config_id: str
    size: int
    created: int
    used: int
    missing: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether every key has arrived."""
        return not self.missing

    def as_json(self) -> dict[str, Any]:
        missing = [{"sha256": sha, "have": have} for sha, have in sorted(self.missing.items())]
        names = ("key_set", "config_id", "size", "created", "used", "complete")
        return {**plain(self, names), "missing": missing}


class KeyStore:
    """Key sets of every client, in a folder or in an object store; uploads on their way are always in the folder.

    Processes that change it at once give it ``locks`` they share.
    """

    def __init__(
        self,
        folder: Path,
        *,
        quota: Quota,
        most: int,
        objects: Objects | None = None,
        locks: ClientLocks | SharedLocks | None = None,
    ) -> None:
        self._folder, self._quota, self._most = folder, quota, most
        self._objects = FolderObjects(folder, prune=False) if objects is None else objects
        # a key of a gigabyte is hashed under its owner's lock: nobody else waits
        self._locks = ClientLocks() if locks is None else locks

    def register(self, client: str, manifest: KeyManifest, *, now: float) -> KeySetStatus:
        """Announce a key set; answers what is still missing. Doing it twice is harmless."""
        for entry in manifest.keys:
            if name_is_secret(entry.name):
                raise Refusal(
                    "secret_key",
                    "an upload names a secret key, which a server must never receive",
                    "send evaluation keys only; if the secret has left your machine, make new keys",
                )
        key_set = manifest.key_set
        with self._locks.of(client):
            for entry in manifest.keys:
                if self._objects.size(self._blob(client, entry.sha256)) not in (None, entry.size):
                    raise Refusal("bad_message", "a key's size does not match its hash", "list the true sizes")
                self._settle(client, entry)
            record = self._record(client, key_set)
            if self._objects.size(record) is None:
                if len(self._names(client)) >= self._most:
                    raise Refusal(
                        "quota", f"this client already has {self._most} key sets", "delete one: DELETE /v1/keysets/{id}"
                    )
                have = self._arrived(client)
                fresh = sum(k.size for k in manifest.keys if k.sha256 not in have)
                self._quota.check(client, fresh)
                with disk_errors():
                    for sub in ("keysets", "blobs", "partial"):
                        (self._folder / client / sub).mkdir(parents=True, exist_ok=True)
                    body = {"manifest": manifest.as_json(), "created": int(now), "used": int(now)}
                    self._objects.put_record(record, KIND, VERSION, body)
            return self.status(client, key_set)

    def status(self, client: str, key_set: str) -> KeySetStatus:
        """What has arrived of a key set."""
        with self._locks.of(client):
            manifest, body = self._load(client, key_set)
            missing, have = {}, self._arrived(client)
            for entry in manifest.keys:
                if entry.sha256 not in have:
                    partial = self._partial(client, entry.sha256)
                    missing[entry.sha256] = partial.stat().st_size if partial.exists() else 0
            return KeySetStatus(
                key_set=key_set,
                config_id=manifest.config_id,
                size=manifest.size,
                created=body["created"],
                used=body["used"],
                missing=missing,
            )

    def all(self, client: str) -> list[KeySetStatus]:
        """Every key set of a client that this version can read."""
        with self._locks.of(client):
            found = []
            for key_set in self._names(client):
                with contextlib.suppress(FileFormatError):  # of another version: it is left alone
                    found.append(self.status(client, key_set))
            return found

    def append(self, client: str, key_set: str, sha256: str, offset: int, chunk: bytes, digest: str) -> int:
        """Add a chunk of one key at its end; returns how many bytes have arrived. Checks the chunk's own hash first."""
        with self._locks.of(client):
            manifest, _ = self._load(client, key_set)
            entry = next((k for k in manifest.keys if k.sha256 == sha256), None)
            if entry is None:
                raise Refusal("not_found", "this key set lists no such key", "upload the keys of the manifest")
            if self._has(client, sha256):
                return entry.size
            partial = self._partial(client, sha256)
            have = partial.stat().st_size if partial.exists() else 0
            if have >= entry.size:
                if self._settle(client, entry):
                    return entry.size
                have = 0
            if offset != have:
                raise Refusal(
                    "conflict",
                    f"the upload stands at {have}, the chunk starts at {offset}",
                    "go on at the offset in facts.have",
                    facts={"have": have},
                )
            if not chunk or have + len(chunk) > entry.size:
                raise Refusal(
                    "too_large" if chunk else "bad_message",
                    f"a chunk of {len(chunk)} bytes does not fit a key of {entry.size} of which {have} have arrived",
                    "send the bytes of the manifest, no more and no fewer",
                    facts={"have": have},
                )
            if hashlib.sha256(chunk).hexdigest() != digest:
                raise Refusal("bad_message", "the chunk does not match its hash", "send it again", facts={"have": have})
            if have == 0 and looks_secret(chunk):
                raise _secret()
            self._quota.check(client, len(chunk))
            have = append(partial, chunk)
            if have == entry.size and (refusal := self._finish(client, sha256)) is not None:
                raise refusal
            return have

    def touch(self, client: str, key_set: str, *, now: float) -> None:
        """Note that a key set was used, at most once a minute."""
        with self._locks.of(client):
            manifest, body = self._load(client, key_set)
            if now - body["used"] >= 60:
                with disk_errors():
                    body = {"manifest": manifest.as_json(), "created": body["created"], "used": int(now)}
                    self._objects.put_record(self._record(client, key_set), KIND, VERSION, body)

    def delete(self, client: str, key_set: str) -> None:
        """Remove a key set and every blob no other set of this client needs."""
        with self._locks.of(client):
            manifest, _ = self._load(client, key_set)
            self._objects.delete(self._record(client, key_set))
            kept = self._listed(client)
            for entry in manifest.keys:
                if kept is not None and entry.sha256 not in kept:
                    self._objects.delete(self._blob(client, entry.sha256))
                    self._partial(client, entry.sha256).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Finish uploads that lack only their check, and remove files that no key set lists."""
        for client in sorted(p.parent.name for p in self._folder.glob("*/keysets")):
            with self._locks.of(client):
                remove_partials(self._folder / client / "keysets")
                listed = self._listed(client)
                if listed is None:
                    continue
                for entry in listed.values():
                    with contextlib.suppress(OSError):
                        self._settle(client, entry)
                for sha256 in self._arrived(client):
                    if sha256 not in listed:
                        self._objects.delete(self._blob(client, sha256))
                for partial in (self._folder / client / "partial").glob("*"):
                    if partial.name not in listed or self._has(client, partial.name):
                        partial.unlink(missing_ok=True)

    def _listed(self, client: str) -> dict[str, KeyEntry] | None:
        """Every key of a client's key sets by its hash; None where one of them is of another version."""
        try:
            sets = [self._load(client, key_set)[0] for key_set in self._names(client)]
        except FileFormatError:
            return None
        return {entry.sha256: entry for manifest in sets for entry in manifest.keys}

    def expire(self, *, now: float, after: float, keep: Iterable[tuple[str, str]] = ()) -> list[tuple[str, str]]:
        """Delete key sets not used for ``after`` seconds, except those in ``keep``; returns (client, key set)."""
        kept, gone = set(keep), []
        for client in sorted(p.name for p in self._folder.iterdir() if p.is_dir()):
            with self._locks.of(client):
                for status in self.all(client):
                    if now - status.used > after and (client, status.key_set) not in kept:
                        self.delete(client, status.key_set)
                        gone.append((client, status.key_set))
        return gone

    def _settle(self, client: str, entry: KeyEntry) -> bool:
        """Check a key that is there in full but was not checked, because the process ended first; True if it is good.

        Wrong bytes are dropped: the upload begins anew.
        """
        partial = self._partial(client, entry.sha256)
        if not partial.exists() or partial.stat().st_size < entry.size or self._has(client, entry.sha256):
            return False
        return self._finish(client, entry.sha256) is None

    def _finish(self, client: str, sha256: str) -> Refusal | None:
        """Make a complete upload a key, or drop it and say why."""
        partial = self._partial(client, sha256)
        if file_digest(partial) != sha256:
            partial.unlink()
            return Refusal(
                "bad_message",
                "the key's bytes do not match its hash; they were dropped",
                "upload this key again from the start",
                facts={"have": 0},
            )
        with partial.open("rb") as f:
            suspicious = looks_secret(f.read(1 << 16))
        if suspicious:
            partial.unlink()
            return _secret()
        self._objects.take(self._blob(client, sha256), partial)
        return None

    def _load(self, client: str, key_set: str) -> tuple[KeyManifest, dict[str, Any]]:
        body = self._objects.get_record(self._record(client, key_set), KIND, (VERSION,))
        if body is None:
            raise Refusal("not_found", "no such key set", "announce it first: POST /v1/keysets")
        return KeyManifest.from_json(body["manifest"]), body

    def _names(self, client: str) -> list[str]:
        """A client's key sets."""
        names = [name.rpartition("/")[2] for name in self._objects.listing(f"{client}/keysets")]
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def _arrived(self, client: str) -> set[str]:
        """The hashes of the keys that are there in full."""
        return {name.rpartition("/")[2] for name in self._objects.listing(f"{client}/blobs")}

    def _has(self, client: str, sha256: str) -> bool:
        return self._objects.size(self._blob(client, sha256)) is not None

    def _record(self, client: str, key_set: str) -> str:
        return f"{client}/keysets/{key_set}.json"

    def _blob(self, client: str, sha256: str) -> str:
        return f"{client}/blobs/{sha256}"

    def _partial(self, client: str, sha256: str) -> Path:
        return self._folder / client / "partial" / sha256


class FolderKeys:
    """The KeySource a worker hands its engine: a client's key set, every key checked against its hash when read.

    Keys from an object store are kept on this machine's disk in ``cache``, if one is given, for the next opening.
    """

    def __init__(self, place: Path | Objects, key_set: str, cache: KeyCache | None = None) -> None:
        self._objects = FolderObjects(place) if isinstance(place, Path) else place
        body = self._objects.get_record(f"keysets/{key_set}.json", KIND, (VERSION,))
        if body is None:
            raise MissingKeyError("the client's key set is gone; the client must upload its keys again")
        self._hashes = {k.name: k.sha256 for k in KeyManifest.from_json(body["manifest"]).keys}
        self._get = self._objects.get if cache is None else partial(cache.get, self._objects)

    def names(self) -> Iterable[str]:
        """Names of the keys, in the manifest's order."""
        return tuple(self._hashes)

    def read(self, name: str) -> bytes:
        """Bytes of one key."""
        if name not in self._hashes:
            raise MissingKeyError(f"key {name!r} is not in the client's key set; make keys for this plan again")
        digest = self._hashes[name]
        try:
            return self._get(f"blobs/{digest}", digest)
        except ObjectError as err:
            raise FileFormatError(
                f"a stored key does not match its hash: {err}; the client must upload its keys again"
            ) from err


def _secret() -> Refusal:
    return Refusal(
        "secret_key",
        "an upload looks like a secret key; it was dropped and is not stored",
        "send evaluation keys only; if the secret has left your machine, make new keys",
    )
