# SPDX-License-Identifier: Apache-2.0
"""Objects as files below a folder. What is not whole has a name that starts with a dot, and is nobody's object."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatfhe.server.store.objects import Objects, checked_name, sha256_of


class FolderObjects(Objects):
    """A folder of a file system that has hard links, which is how a name is given to one writer alone."""

    def __init__(self, folder: Path, *, prune: bool = True) -> None:
        """``prune`` removes folders that become empty, as an object store has none."""
        self.folder, self._prunes = folder, prune

    def path(self, name: str) -> Path:
        """The file of an object."""
        return self.folder / checked_name(name)

    def put(self, name: str, data: bytes) -> str:
        path = self.path(name)
        with self._written(path, data) as partial:
            os.replace(partial, path)
        return sha256_of(data)

    def create(self, name: str, data: bytes) -> bool:
        path = self.path(name)
        if path.exists():
            return False
        with self._written(path, data) as partial:
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        try:
            return self.path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def listing(self, prefix: str = "") -> dict[str, int]:
        found = {}
        for root, folders, names in os.walk(self.folder / checked_name(prefix) if prefix else self.folder):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(root, name)
                with contextlib.suppress(FileNotFoundError):
                    if not name.startswith("."):
                        found[path.relative_to(self.folder).as_posix()] = path.stat().st_size
        return dict(sorted(found.items()))

    def below(self, prefix: str) -> FolderObjects:
        return FolderObjects(self.path(prefix), prune=self._prunes)

    def delete(self, name: str) -> None:
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            path.unlink()
        self._prune(path.parent)

    def take(self, name: str, path: Path) -> None:
        place = self.path(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)

    def size(self, name: str) -> int | None:
        path = self.path(name)
        return path.stat().st_size if path.exists() else None

    @contextmanager
    def _written(self, path: Path, data: bytes) -> Iterator[Path]:
        """A file with the data beside its place, gone at the end; a folder made for it goes too if nothing came."""
        partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
        try:
            for last in (False, True):  # another's delete may take the empty folder away again
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    file = partial.open("wb")
                    break
                except FileNotFoundError:
                    if last:
                        raise
            with file as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            yield partial
        finally:
            partial.unlink(missing_ok=True)
            if not path.exists():
                self._prune(path.parent)

    def _prune(self, folder: Path) -> None:
        with contextlib.suppress(OSError):
            while self._prunes and folder != self.folder:
                folder.rmdir()
                folder = folder.parent
