# SPDX-License-Identifier: Apache-2.0
"""What seats on other machines read besides clients' things: the models, and a mark by which they know the folder.

An object store (``--store``) has the mark too: it belongs to one folder.

store-id                            random, made once: a seat that reads another one is looking at another folder
models/<digest of the plan>/        plan.json, and the circuit as a directory; written once, never changed
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from heatfhe.errors import ConfigError
from heatfhe.files import atomic_directory, atomic_write
from heatfhe.server.settings import ModelSource
from heatfhe.server.store.disk import remove_partials
from heatfhe.server.store.objects import Objects

MARK, SHELF = "store-id", "models"


def store_mark(folder: Path) -> str:
    """The mark of a server's folder, made if there is none. Needs the folder's lock."""
    path = folder / MARK
    if not path.exists():
        with atomic_write(path) as f:
            f.write(secrets.token_hex(16).encode())
    return read_mark(folder)


def read_mark(folder: Path) -> str:
    """The mark of a folder; empty where it has none."""
    path = folder / MARK
    return path.read_text() if path.is_file() else ""


def claim_store(folder: Path, objects: Objects, url: str) -> None:
    """Make an object store this folder's, or refuse one that is another's: each would sweep away what the other keeps.

    Needs the folder's lock.
    """
    mark = store_mark(folder)
    if not objects.create(MARK, mark.encode()) and objects.read(MARK) != mark.encode():
        raise ConfigError(f"{url} belongs to the server of another --folder; give each server a prefix of its own")


def absolute(source: ModelSource) -> ModelSource:
    """A source whose paths do not depend on where they are read."""
    return replace(source, plan=source.plan.absolute(), circuit=source.circuit.absolute())


def shelve(folder: Path, source: ModelSource, digest: str) -> ModelSource:
    """Copy a model into a server's folder, unless it is there; the source by its names in the folder. Needs the lock.

    The copy appears whole or not at all. A worker checks the hashes of plan and circuit when it opens them.
    """
    place = Path(SHELF) / digest
    if (folder / SHELF).exists():
        remove_partials(folder / SHELF)
    if not (folder / place).exists():
        with atomic_directory(folder / place) as partial:
            shutil.copy(source.plan, partial / "plan.json")
            shutil.copytree(source.circuit, partial / "circuit")
    return replace(source, plan=place / "plan.json", circuit=place / "circuit")
