# SPDX-License-Identifier: Apache-2.0
"""The folder of keys: two processes make one set of keys, and evaluation keys never meet another secret."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from heatfhe.client.keys import KIND, WAITING, KeyFolder, fingerprint
from heatfhe.client.trust import key_request
from heatfhe.errors import FileFormatError
from heatfhe.files import read_json, write_json
from tests.client.test_trust import config

CONFIG = config()
REQUEST = key_request(CONFIG)


class FakeRing:
    """A keyring of 32 random bytes; its one evaluation key is a hash of them."""

    def __init__(self, request: object, folder: Path | None = None) -> None:
        self.request = request
        self.secret = os.urandom(32) if folder is None else (folder / "s").read_bytes()

    def save(self, folder: Path) -> None:
        (folder / "s").write_bytes(self.secret)

    def evaluation_keys(self) -> Iterator[tuple[str, bytes]]:
        yield "relinearise", hashlib.sha256(self.secret).digest()


class Telling:
    """A reporter that passes on what starts."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def start(self, task: str, total: int | None = None) -> None:
        self.pipe.send(("start", task))

    def advance(self, task: str, **facts: Any) -> None:
        pass

    def done(self, task: str) -> None:
        pass


def keygen(root: Path, pipe: Connection) -> None:
    """One process: says when it is about to make a secret, and waits there to be told to go on."""

    def factory(request: Any, folder: Path | None = None) -> Any:
        if folder is None:
            pipe.send(("making", ""))
            pipe.recv()
        return FakeRing(request, folder)

    ring: Any = KeyFolder(root, CONFIG).open(factory, REQUEST, Telling(pipe))
    pipe.send(("done", ring.secret))


def derived(folder: KeyFolder) -> bytes:
    """The one evaluation key that would be uploaded."""
    (entry,) = folder.manifest().keys
    return (folder.folder / "evaluation" / entry.sha256).read_bytes()


def test_two_first_keygens_make_one_set_of_keys(tmp_path: Path) -> None:
    """The second starts while the first is between looking for a secret and writing one."""
    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = spawn.Pipe()
        pipes.append(ours)
        processes.append(spawn.Process(target=keygen, args=(tmp_path, theirs)))

    def finish(pipe: Connection, first: tuple[str, Any]) -> list[tuple[str, Any]]:
        events = [first]
        while events[-1][0] != "done":
            if events[-1][0] == "making":
                pipe.send("go")
            events.append(pipe.recv())
        return events

    try:
        processes[0].start()
        assert pipes[0].recv() == ("making", "")
        processes[1].start()
        second = pipes[1].recv()  # it waits for the lock, or makes a secret of its own
        one = finish(pipes[0], ("making", ""))
        two = finish(pipes[1], second)
    finally:
        for process in processes:
            if process.pid is not None:
                process.join(60)
                process.kill()
    assert [p.exitcode for p in processes] == [0, 0]
    folder = KeyFolder(tmp_path, CONFIG)
    kept = (folder.folder / "secret" / "s").read_bytes()
    assert derived(folder) == hashlib.sha256(kept).digest()  # what the server computes with is what can be decrypted
    assert kept == one[-1][1] == two[-1][1]
    assert second == ("start", WAITING)
    assert ("making", "") not in two


def test_evaluation_keys_beside_another_secret_are_refused(tmp_path: Path) -> None:
    folder, other = KeyFolder(tmp_path / "a", CONFIG), KeyFolder(tmp_path / "b", CONFIG)
    folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    other.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    shutil.rmtree(folder.folder / "secret")
    shutil.copytree(other.folder / "secret", folder.folder / "secret")
    with pytest.raises(FileFormatError, match="belong to another secret"):
        folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    shutil.rmtree(folder.folder / "secret")
    with pytest.raises(FileFormatError, match="without their secret"):
        folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]


def test_the_fingerprint_stays_on_the_clients_disk(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path, CONFIG)
    folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    body = read_json(folder.folder / "manifest.json", KIND, (2,))
    assert body["secret"] == fingerprint(folder.folder / "secret")
    assert body["secret"] not in str(folder.manifest().as_json())
    assert oct((tmp_path / f"{folder.folder.name}.lock").stat().st_mode & 0o777) == "0o600"


def test_a_manifest_of_version_1_is_read(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path, CONFIG)
    folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    before = folder.manifest()
    write_json(folder.folder / "manifest.json", KIND, 1, before.as_json())
    assert folder.manifest() == before
    folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    write_json(folder.folder / "manifest.json", KIND, 2, {"manifest": before.as_json(), "secret": "", "more": 1})
    with pytest.raises(FileFormatError, match="unknown fields"):
        folder.manifest()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = KeyFolder(tmp_path, CONFIG)
    partial = folder.folder / ".secret.4711.partial"
    partial.mkdir(parents=True)
    (partial / "s").write_bytes(bytes(32))
    (folder.folder / ".manifest.json.4711.partial").write_bytes(b"{")
    folder.open(FakeRing, REQUEST)  # type: ignore[arg-type]
    assert sorted(p.name for p in folder.folder.iterdir()) == ["about.json", "evaluation", "manifest.json", "secret"]
