# SPDX-License-Identifier: Apache-2.0
"""Evaluation keys on disk: per client, content-addressed, uploaded in resumable chunks, with quota and expiry.

    clients/<client>/keysets/<key set>.json     manifest, created, last used
    clients/<client>/blobs/<sha256>             a complete key
    clients/<client>/partial/<sha256>           a key on its way; its length is where the upload goes on

Blobs belong to one client: two clients never share a file, so nobody can ask whether another has a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heatfhe.errors import FileFormatError, MissingKeyError
from heatfhe.files import file_digest, plain, read_json, write_json
from heatfhe.server.store.disk import append, disk_errors, remove_partials
from heatfhe.server.store.locks import SharedLocks
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
    """Key sets of every client below one folder. Processes that change it at once give it ``locks`` they share."""

    def __init__(
        self, folder: Path, *, quota: Quota, most: int, locks: ClientLocks | SharedLocks | None = None
    ) -> None:
        self._folder, self._quota, self._most = folder, quota, most
        self._locks = (
            ClientLocks() if locks is None else locks
        )  # a key of a gigabyte is hashed under its owner's lock: nobody else waits

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
                blob = self._blob(client, entry.sha256)
                if blob.exists() and blob.stat().st_size != entry.size:
                    raise Refusal("bad_message", "a key's size does not match its hash", "list the true sizes")
                self._settle(client, entry)
            path = self._record(client, key_set)
            if not path.exists():
                if len(list(path.parent.glob("*.json"))) >= self._most:
                    raise Refusal(
                        "quota", f"this client already has {self._most} key sets", "delete one: DELETE /v1/keysets/{id}"
                    )
                fresh = sum(k.size for k in manifest.keys if not self._blob(client, k.sha256).exists())
                self._quota.check(client, fresh)
                with disk_errors():
                    for sub in ("keysets", "blobs", "partial"):
                        (self._folder / client / sub).mkdir(parents=True, exist_ok=True)
                    body = {"manifest": manifest.as_json(), "created": int(now), "used": int(now)}
                    write_json(path, KIND, VERSION, body)
            return self.status(client, key_set)

    def status(self, client: str, key_set: str) -> KeySetStatus:
        """What has arrived of a key set."""
        with self._locks.of(client):
            manifest, body = self._load(client, key_set)
            missing = {}
            for entry in manifest.keys:
                if not self._blob(client, entry.sha256).exists():
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
            for path in sorted((self._folder / client / "keysets").glob("*.json")):
                with contextlib.suppress(FileFormatError):  # of another version: it is left alone
                    found.append(self.status(client, path.stem))
            return found

    def append(self, client: str, key_set: str, sha256: str, offset: int, chunk: bytes, digest: str) -> int:
        """Add a chunk of one key at its end; returns how many bytes have arrived. Checks the chunk's own hash first."""
        with self._locks.of(client):
            manifest, _ = self._load(client, key_set)
            entry = next((k for k in manifest.keys if k.sha256 == sha256), None)
            if entry is None:
                raise Refusal("not_found", "this key set lists no such key", "upload the keys of the manifest")
            if self._blob(client, sha256).exists():
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
                    write_json(self._record(client, key_set), KIND, VERSION, body)

    def delete(self, client: str, key_set: str) -> None:
        """Remove a key set and every blob no other set of this client needs."""
        with self._locks.of(client):
            manifest, _ = self._load(client, key_set)
            self._record(client, key_set).unlink()
            kept = self._listed(client)
            for entry in manifest.keys:
                if kept is not None and entry.sha256 not in kept:
                    self._blob(client, entry.sha256).unlink(missing_ok=True)
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
                for blob in (self._folder / client / "blobs").glob("*"):
                    if blob.name not in listed:
                        blob.unlink(missing_ok=True)
                for partial in (self._folder / client / "partial").glob("*"):
                    if partial.name not in listed or self._blob(client, partial.name).exists():
                        partial.unlink(missing_ok=True)

    def _listed(self, client: str) -> dict[str, KeyEntry] | None:
        """Every key of a client's key sets by its hash; None where one of them is of another version."""
        try:
            sets = [self._load(client, p.stem)[0] for p in (self._folder / client / "keysets").glob("*.json")]
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
        if not partial.exists() or partial.stat().st_size < entry.size or self._blob(client, entry.sha256).exists():
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
        os.replace(partial, self._blob(client, sha256))
        return None

    def _load(self, client: str, key_set: str) -> tuple[KeyManifest, dict[str, Any]]:
        path = self._record(client, key_set)
        if not path.exists():
            raise Refusal("not_found", "no such key set", "announce it first: POST /v1/keysets")
        body = read_json(path, KIND, (VERSION,))
        return KeyManifest.from_json(body["manifest"]), body

    def _record(self, client: str, key_set: str) -> Path:
        return self._folder / client / "keysets" / f"{key_set}.json"

    def _blob(self, client: str, sha256: str) -> Path:
        return self._folder / client / "blobs" / sha256

    def _partial(self, client: str, sha256: str) -> Path:
        return self._folder / client / "partial" / sha256


class FolderKeys:
    """The KeySource a worker hands its engine: a key set read from disk, every blob checked against its hash."""

    def __init__(self, folder: Path, key_set: str) -> None:
        body = read_json(folder / "keysets" / f"{key_set}.json", KIND, (VERSION,))
        self._folder = folder
        self._hashes = {k.name: k.sha256 for k in KeyManifest.from_json(body["manifest"]).keys}

    def names(self) -> Iterable[str]:
        """Names of the keys, in the manifest's order."""
        return tuple(self._hashes)

    def read(self, name: str) -> bytes:
        """Bytes of one key."""
        if name not in self._hashes:
            raise MissingKeyError(f"key {name!r} is not in the client's key set; make keys for this plan again")
        data = (self._folder / "blobs" / self._hashes[name]).read_bytes()
        if hashlib.sha256(data).hexdigest() != self._hashes[name]:
            raise FileFormatError("a stored key does not match its hash; the client must upload its keys again")
        return data


def _secret() -> Refusal:
    return Refusal(
        "secret_key",
        "an upload looks like a secret key; it was dropped and is not stored",
        "send evaluation keys only; if the secret has left your machine, make new keys",
    )
