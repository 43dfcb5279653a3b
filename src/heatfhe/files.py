# SPDX-License-Identifier: Apache-2.0
"""Files written whole or not at all, and read with suspicion: kind, version, digest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from heatfhe.errors import FileFormatError


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when the block ends without an error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Fill a directory that appears under its name only when the block ends without an error.

    An existing directory of that name is replaced as a whole; it survives if the block fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(partial, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    sha = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no spaces, no NaN. What digests are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def json_digest(value: Any) -> str:
    """SHA-256 of a JSON value's canonical form, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def write_json(path: Path, kind: str, version: int, body: Mapping[str, Any]) -> None:
    """Write a versioned JSON file atomically, its own digest inside."""
    head = {"kind": kind, "version": version, "digest": json_digest(body)}
    text = json.dumps({**head, "body": body}, indent=1, sort_keys=True, allow_nan=False)
    with atomic_write(path) as f:
        f.write(text.encode() + b"\n")


def read_json(path: Path, kind: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """Read a file of write_json: refuses another kind, an unknown version, and any change to the body."""
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError as err:
        raise FileFormatError(f"{path}: no such file; expected a {kind} file") from err
    except (json.JSONDecodeError, UnicodeDecodeError) as err:
        raise FileFormatError(
            f"{path}: not valid JSON ({err}); the file is truncated or altered, make it again"
        ) from err
    if not isinstance(raw, dict) or raw.get("kind") != kind or not isinstance(raw.get("body"), dict):
        found = raw.get("kind") if isinstance(raw, dict) else type(raw).__name__
        raise FileFormatError(f"{path}: expected a {kind} file, found {found!r}")
    if raw.get("version") not in versions:
        raise FileFormatError(
            f"{path}: {kind} version {raw.get('version')!r} is not among those this release reads {versions}; "
            "upgrade heatfhe or export the file again"
        )
    body: dict[str, Any] = raw["body"]
    if raw.get("digest") != json_digest(body):
        raise FileFormatError(f"{path}: its digest does not match its body; the file was altered, make it again")
    return body
