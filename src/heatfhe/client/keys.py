# SPDX-License-Identifier: Apache-2.0
"""Keys on the client's disk, one folder per configuration: the secret at mode 0600, evaluation keys ready to upload.

<folder>/<config id, 16 digits>/secret/...          what the keyring saves; never read by anything that sends
<folder>/<config id, 16 digits>/evaluation/<sha256> public, content-addressed
<folder>/<config id, 16 digits>/manifest.json       lists the evaluation keys, names their secret; written last
<folder>/<config id, 16 digits>/about.json          for people: which model, parameter set and security
<folder>/<config id, 16 digits>.lock                held while keys are made, loaded or deleted
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heatfhe.client.link import Link
from heatfhe.engine import KeyRequest, Keyring, KeyringFactory
from heatfhe.errors import FileFormatError, WireError
from heatfhe.files import atomic_directory, atomic_write, file_digest, read_json, write_json
from heatfhe.progress import SILENT, Reporter
from heatfhe.wire import KeyEntry, KeyManifest, ModelConfig, Refusal, looks_secret, name_is_secret

KIND, VERSION = "heatfhe-client-keys", 2  # version 1 was the manifest alone
CARD, CARD_KIND = "about.json", "heatfhe-key-card"
WAITING = "wait for the keys that another process makes"


class KeyFolder:
    """The keys for one configuration."""

    def __init__(self, root: Path, config: ModelConfig) -> None:
        self._config = config
        self.folder = root / config.config_id[:16]

    @property
    def ready(self) -> bool:
        """Whether keys were made before, completely."""
        return (self.folder / "manifest.json").exists()

    def open(self, factory: KeyringFactory, request: KeyRequest, reporter: Reporter = SILENT) -> Keyring:
        """The keyring, made now if it is not there. A secret is written whole before any public key is derived.

        One process at a time: a second one waits, and then loads the keys that the first has made.
        """
        secret = self.folder / "secret"
        with self._locked(reporter):
            self._sweep()
            if secret.is_dir():
                ring = factory(request, secret)
            else:
                if self.ready:
                    raise FileFormatError(
                        f"{self.folder}: evaluation keys without their secret; restore the folder secret from a "
                        "backup, or remove all of it to make new keys"
                    )
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                ring = factory(request)
                with atomic_directory(secret) as partial:
                    ring.save(partial)
                    lock_down(partial)
            lock_down(secret)
            if self.ready:
                self._check_secret()
            else:
                self._derive(ring, reporter)
            if not (self.folder / CARD).exists():
                params = self._config.params
                about = {"name": self._config.model, "params": params.name, "security": params.security_claim}
                write_json(self.folder / CARD, CARD_KIND, 1, about)
        return ring

    @contextmanager
    def _locked(self, reporter: Reporter = SILENT) -> Iterator[None]:
        """Only one process at a time makes, loads or deletes these keys. The lock ends with the process."""
        path = self.folder.with_name(f"{self.folder.name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb+") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                reporter.start(WAITING)
                reporter.advance(WAITING)
                fcntl.flock(f, fcntl.LOCK_EX)
                reporter.done(WAITING)
            yield

    def _sweep(self) -> None:
        """Remove what a killed process left half written, a half-written secret above all. Called under the lock."""
        for leftover in self.folder.glob(".*.partial"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def _check_secret(self) -> None:
        """Refuse evaluation keys that were derived from another secret: nothing they compute could be decrypted."""
        named = self._read().get("secret")
        if named is not None and named != fingerprint(self.folder / "secret"):
            raise FileFormatError(
                f"{self.folder}: the evaluation keys belong to another secret than the one beside them; restore the "
                "folder secret from a backup, or remove all of it to make new keys"
            )

    def _derive(self, ring: Keyring, reporter: Reporter) -> None:
        entries = []
        reporter.start("keys")
        with atomic_directory(self.folder / "evaluation") as partial:
            for name, data in ring.evaluation_keys():
                if name_is_secret(name) or looks_secret(data):
                    raise WireError(f"key {name!r} looks like a secret; it was not written for upload. Report this")
                sha = hashlib.sha256(data).hexdigest()
                with atomic_write(partial / sha) as f:
                    f.write(data)
                entries.append(KeyEntry(name=name, size=len(data), sha256=sha))
                reporter.advance("keys", bytes=len(data))
        reporter.done("keys")
        manifest = KeyManifest(config_id=self._config.config_id, keys=tuple(entries))
        body = {"manifest": manifest.as_json(), "secret": fingerprint(self.folder / "secret")}
        write_json(self.folder / "manifest.json", KIND, VERSION, body)

    def _read(self) -> dict[str, Any]:
        """The manifest file's body; that of version 1 names no secret."""
        body = read_json(self.folder / "manifest.json", KIND, (1, VERSION))
        if "manifest" not in body:
            return {"manifest": body}
        if set(body) != {"manifest", "secret"}:
            raise FileFormatError(f"{self.folder / 'manifest.json'}: unknown fields; make the keys again")
        return body

    def manifest(self) -> KeyManifest:
        """What is to be uploaded."""
        return KeyManifest.from_json(self._read()["manifest"])

    def delete(self) -> None:
        """Remove every key, the secret too: nothing encrypted under it can be read any more."""
        with self._locked():
            shutil.rmtree(self.folder)

    def upload(self, link: Link, chunk_bytes: int, reporter: Reporter = SILENT) -> str:
        """Bring the server's copy up to date and return the key set's id. Starts where an earlier upload ended."""
        manifest = self.manifest()
        status = link.json("POST", "/v1/keysets", body=manifest.as_json())
        if not isinstance(status, dict) or status.get("key_set") != manifest.key_set:
            raise WireError("the server names the key set differently; do not use this server")
        missing = {row["sha256"]: int(row["have"]) for row in status["missing"]}
        by_hash = {entry.sha256: entry for entry in manifest.keys}
        left = sum(-(-(by_hash[sha].size - have) // chunk_bytes) for sha, have in missing.items() if sha in by_hash)
        reporter.start("upload", left)
        for sha, have in missing.items():
            self._send(link, manifest.key_set, by_hash[sha], have, chunk_bytes, reporter)
        reporter.done("upload")
        return manifest.key_set

    def _send(self, link: Link, key_set: str, entry: KeyEntry, have: int, chunk_bytes: int, reporter: Reporter) -> None:
        path, corrections = f"/v1/keysets/{key_set}/blobs/{entry.sha256}", 0
        with (self.folder / "evaluation" / entry.sha256).open("rb") as f:
            while have < entry.size:
                f.seek(have)
                chunk = f.read(chunk_bytes)
                headers = {
                    "content-type": "application/octet-stream",
                    "x-chunk-sha256": hashlib.sha256(chunk).hexdigest(),
                }
                try:
                    answer = link.ask("PUT", path, params={"offset": have}, content=chunk, headers=headers)
                    have = int(answer.json()["have"])
                except Refusal as refusal:
                    corrections += 1
                    where = refusal.facts.get("have")
                    if refusal.code != "conflict" or not isinstance(where, int) or corrections > 100:
                        raise
                    have = where  # an earlier try arrived although its answer did not
                reporter.advance("upload", bytes=have)


def fingerprint(secret: Path) -> str:
    """SHA-256 that tells one folder of secret files from another. It stays on this disk, beside the secret."""
    sha = hashlib.sha256(b"heatfhe/client-secret/v1")
    for path in sorted(p for p in secret.rglob("*") if p.is_file()):
        name = path.relative_to(secret).as_posix().encode()
        sha.update(len(name).to_bytes(4, "little") + name + bytes.fromhex(file_digest(path)))
    return sha.hexdigest()


def lock_down(folder: Path) -> None:
    """Only the owner reads: folders 0700, files 0600."""
    os.chmod(folder, 0o700)
    for root, folders, files in os.walk(folder):
        for name in folders:
            os.chmod(Path(root) / name, 0o700)
        for name in files:
            os.chmod(Path(root) / name, 0o600)


def read_key_card(folder: Path) -> dict[str, Any]:
    """What a folder of keys is for; keys that were made before there were cards say nothing."""
    return read_json(folder / CARD, CARD_KIND, (1,)) if (folder / CARD).exists() else {}
