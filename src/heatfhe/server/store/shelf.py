# SPDX-License-Identifier: Apache-2.0
"""What seats on other machines read besides clients' things: the models, and a mark by which they know the folder.

An object store (``--store``) has the mark too: it belongs to one folder.

store-id                            random, made once: a seat that reads another one is looking at another folder
models/<digest of the plan>/        plan.json, and the circuit as a directory; written once, never changed. In an object
                                    store index.json names their files with hashes
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.files import atomic_directory, atomic_write
from heatfhe.server.settings import ModelSource
from heatfhe.server.store.disk import remove_partials
from heatfhe.server.store.objects import Objects, checked_name, open_objects

MARK, SHELF, INDEX = "store-id", "models", "index.json"
KIND, VERSION = "heatfhe-shelf", 1


def store_mark(folder: Path) -> str:
    """The mark of a server's folder, made if there is none. Needs the folder's lock."""
    path = folder / MARK
    if not path.exists():
        with atomic_write(path) as f:
            f.write(secrets.token_hex(16).encode())
    return read_mark(folder)


def read_mark(folder: Path, url: str = "") -> str:
    """The mark of a folder, or of the object store at a URL; empty where it has none."""
    if url:
        return (open_objects(url).read(MARK) or b"").decode()
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


def shelve(folder: Path, source: ModelSource, digest: str, objects: Objects | None = None) -> ModelSource:
    """Copy a model into a server's folder or object store, unless it is there; the source by its names in it.

    The copy appears whole or not at all. A worker checks the hashes of plan and circuit when it opens them. Needs the
    lock.
    """
    place = Path(SHELF) / digest
    if objects is not None:
        _put_model(objects.below(place.as_posix()), source)
        return replace(source, plan=place / "plan.json", circuit=place / "circuit")
    if (folder / SHELF).exists():
        remove_partials(folder / SHELF)
    if not (folder / place).exists():
        with atomic_directory(folder / place) as partial:
            shutil.copy(source.plan, partial / "plan.json")
            shutil.copytree(source.circuit, partial / "circuit")
    return replace(source, plan=place / "plan.json", circuit=place / "circuit")


def _put_model(objects: Objects, source: ModelSource) -> None:
    """A model's files, and last the list of them: without it there is no model."""
    if objects.size(INDEX) is None:
        files = {"plan.json": source.plan}
        for path in sorted(p for p in source.circuit.rglob("*") if p.is_file()):
            files[f"circuit/{path.relative_to(source.circuit).as_posix()}"] = path
        rows = [[name, objects.put(name, path.read_bytes())] for name, path in files.items()]
        objects.put_record(INDEX, KIND, VERSION, {"files": rows})


def unshelve(objects: Objects, place: Path, cache: Path) -> tuple[Path, Path]:
    """Plan and circuit of an object store on this machine's disk: fetched unless they are there, every file checked."""
    part, folder = objects.below(place.as_posix()), cache / place.name
    if not folder.exists():
        body = part.get_record(INDEX, KIND, (VERSION,))
        if body is None:
            raise FileFormatError(f"{place}: the store has no such model; start the server again, which puts it there")
        with atomic_directory(folder) as partial:
            for name, sha256 in body["files"]:
                target = partial / checked_name(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                part.fetch(name, sha256, target)
    return folder / "plan.json", folder / "circuit"
