# SPDX-License-Identifier: Apache-2.0
"""Disk work of the server: appends that undo themselves, a full disk as a clear refusal, byte counts."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heatfhe.wire import Refusal

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn a full disk, or one that takes no writes, into a refusal that says so; other errors pass."""
    try:
        yield
    except OSError as err:
        if err.errno in FULL:
            raise disk_full() from err
        if err.errno in _CLOSED:
            raise disk_full("the server cannot write to its disk") from err
        raise


def disk_full(what: str = "the server's disk is full") -> Refusal:
    """The refusal for a disk without room."""
    return Refusal(
        "disk_full",
        f"{what}; nothing was changed",
        "delete key sets or sessions, or try again later",
        retry_after=60,
    )


def need_room(folder: Path, size: int, *, reserve: int) -> None:
    """Refuse work that would leave less than ``reserve`` bytes free."""
    if shutil.disk_usage(folder).free < size + reserve:
        raise disk_full()


def append(path: Path, data: bytes) -> int:
    """Add data to a file's end and return its new size; on any error the file keeps its old length."""
    with disk_errors(), path.open("ab") as f:
        before = f.tell()
        try:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        except OSError:
            os.ftruncate(f.fileno(), before)
            raise
        return before + len(data)


def sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_partials(folder: Path) -> None:
    """Remove what writers that were killed left in a folder. Only for a folder in which nobody writes now."""
    for left in [*folder.glob(".*.partial"), *folder.glob(".*.old")]:
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def remove_nameless(home: Path, record: str, known: tuple[str, ...]) -> None:
    """Remove the folders below ``home`` that have no record and hold only files a server makes; others stay."""
    for folder in [p for p in home.glob("*") if p.is_dir() and not (p / record).exists()]:
        if all(any(path.match(pattern) for pattern in known) for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Bytes of every file below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total
