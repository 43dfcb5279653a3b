# SPDX-License-Identifier: Apache-2.0
"""Objects wherever fsspec reaches: S3 and what speaks like it (extra ``s3``), and other stores that create if absent.

Where and as whom is told as fsspec and its packages are always told, for S3 by AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and
their like: a URL holds no secret, and neither do our logs.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs

from heatfhe.errors import ConfigError, HeatError
from heatfhe.server.store.objects import Objects, checked_name, sha256_of

_AT_ONCE = 8  # objects on their way, of those put or got together
_TRIES = 4  # S3 answers 409 to a conditional write that meets another one


class RemoteObjects(Objects):
    """Objects below a URL. Nothing is cached: other machines write here too."""

    def __init__(self, url: str) -> None:
        try:
            self._fs, self._root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        except ValueError as err:
            raise ConfigError(f"{url}: {err}; give a folder, or a URL such as s3://bucket/prefix") from err
        if not _creates(self._fs):
            raise ConfigError(
                f"{url}: its package cannot create an object only if it is absent, which sessions depend on; "
                "give a folder, or a URL such as s3://bucket/prefix"
            )

    def put(self, name: str, data: bytes) -> str:
        with _reached():
            self._fs.pipe_file(self._path(name), data)
        return sha256_of(data)

    def create(self, name: str, data: bytes) -> bool:
        """As everywhere. Where the answer to a write that arrived is lost, False: nobody may then have got True."""
        path = self._path(name)
        for left in reversed(range(_TRIES)):
            try:
                with _reached():
                    self._fs.pipe_file(path, data, mode="create")
                return True
            except FileExistsError:
                return False
            except OSError:  # s3fs has no error of its own for a condition that does not hold
                with _reached():
                    if self._fs.exists(path):
                        return False
                if not left:
                    raise
        return False

    def read(self, name: str) -> bytes | None:
        try:
            with _reached():
                found: bytes = self._fs.cat_file(self._path(name))
                return found
        except FileNotFoundError:
            return None

    def listing(self, prefix: str = "") -> dict[str, int]:
        start = self._path(prefix) if prefix else self._root
        with _reached():
            found = self._fs.find(start, detail=True)
        cut = len(self._root.rstrip("/")) + 1
        return {path[cut:]: int(facts["size"]) for path, facts in sorted(found.items()) if path.startswith(f"{start}/")}

    def delete(self, name: str) -> None:
        try:
            with _reached():
                self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self.put, objects.keys(), objects.values()))

    def get_all(self, hashes: Mapping[str, str]) -> dict[str, bytes]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(hashes, pool.map(self.get, hashes.keys(), hashes.values())))

    def take(self, name: str, path: Path) -> None:
        with _reached():
            self._fs.put_file(str(path), self._path(name))
        path.unlink()

    def size(self, name: str) -> int | None:
        try:
            with _reached():
                return int(self._fs.info(self._path(name))["size"])
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{checked_name(name)}"


def _creates(fs: Any) -> bool:
    """Whether a file system has a create-if-absent of its own; that of fsspec's base looks first and then writes."""
    own = getattr(type(fs), "_pipe_file", None) or type(fs).pipe_file
    bases = (AbstractFileSystem.pipe_file, AsyncFileSystem._pipe_file)
    return own not in bases and "mode" in inspect.signature(own).parameters


@contextmanager
def _reached() -> Iterator[None]:
    """Every failure of a store's package as an OSError, which callers expect of a disk too."""
    try:
        yield
    except (OSError, HeatError):
        raise
    except Exception as err:
        raise OSError(errno.EREMOTEIO, f"the store did not answer as expected ({type(err).__name__})") from err
