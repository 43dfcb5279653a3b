# SPDX-License-Identifier: Apache-2.0
"""numba's jit with a cache of our own: machine code is kept by the text of every kernel source, never by one file's.

numba keeps a function's machine code as long as the file it stands in is unchanged, helpers from other files compiled
into it. A change of such a helper alone would go unnoticed, and an upgrade could run old kernels. So the cache is a
folder whose name is a hash of all sources beside this file and of the versions of numba and of this package.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import config, njit

F = TypeVar("F", bound=Callable[..., Any])
HERE = Path(__file__).parent


def fingerprint(sources: Path, versions: tuple[str, ...]) -> str:
    """16 digits that change with any byte of any source in a folder, with its name, and with any version."""
    sha = hashlib.sha256(repr(versions).encode())
    for path in sorted(sources.glob("*.py")):
        sha.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()[:16]


@lru_cache(maxsize=1)
def cache_folder(sources: Path = HERE) -> Path | None:
    """Where machine code is kept: under NUMBA_CACHE_DIR if that is set, else beside the sources, else in the user's
    cache. None where nothing can be written; kernels are then compiled at every start.
    """
    versions = (numba.__version__, import_module("heatfhe").__version__)
    name = f"heatfhe-kernels-{fingerprint(sources, versions)}"
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heatfhe"
    for base in [Path(config.CACHE_DIR)] if config.CACHE_DIR else [sources / "__pycache__", users]:
        try:
            (base / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=base / name).close()
        except OSError:
            continue
        return base / name
    return None


@contextmanager
def _caching_in(folder: Path) -> Iterator[None]:
    """numba asks for its cache folder when a function is decorated, and only then."""
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def jit(signature: str | None = None) -> Callable[[F], F]:
    """njit without the interpreter's lock, compiled once and kept on disk."""
    folder = cache_folder()
    options = {"nogil": True, "cache": folder is not None, "boundscheck": False}
    decorator: Callable[[F], F] = njit(signature, **options) if signature else njit(**options)
    if folder is None:
        return decorator

    def decorate(function: F) -> F:
        with _caching_in(folder):
            return decorator(function)

    return decorate
