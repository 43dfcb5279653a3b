# SPDX-License-Identifier: Apache-2.0
"""The object store, on a folder, in memory and on S3 over HTTP: the same words, one winner, nothing used unchecked."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heatfhe.errors import ConfigError, FileFormatError, MissingExtraError, ObjectError
from heatfhe.server.store.objects import open_objects, sha256_of
from tests.server.stores import Reach, reached


@pytest.fixture(params=["folder", "memory", "s3"])
def reach(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reach]:
    with reached(request.param, tmp_path / "store") as found:
        yield found


def test_what_was_put_is_found_listed_and_deleted(reach: Reach, tmp_path: Path) -> None:
    store, other = reach(), reach()
    assert store.listing() == {}
    digest = store.put("clients/alice/blobs/k", b"one")
    assert digest == sha256_of(b"one")
    assert other.get("clients/alice/blobs/k", digest) == b"one"
    assert store.put("clients/alice/blobs/k", b"three") == sha256_of(b"three")  # over it
    store.put("clients/alicea/blobs/k", b"x" * 7)
    assert other.listing() == {"clients/alice/blobs/k": 5, "clients/alicea/blobs/k": 7}
    assert other.listing("clients/alice") == {"clients/alice/blobs/k": 5}  # a name that only begins alike is not below
    other.delete_below("clients/alice")
    other.delete("clients/alice/blobs/k")  # again
    assert store.listing() == {"clients/alicea/blobs/k": 7}
    assert store.read("clients/alice/blobs/k") is None
    (tmp_path / "upload").write_bytes(b"message")
    store.take("jobs/request.bin", tmp_path / "upload")
    assert (store.size("jobs/request.bin"), store.size("jobs/other")) == (7, None)
    assert not (tmp_path / "upload").exists()
    other.fetch("jobs/request.bin", sha256_of(b"message"), tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"message"


def test_of_sixteen_creators_one_wins(reach: Reach) -> None:
    """From four clients, all let go at once; the object is the winner's, whole."""
    clients = [reach() for _ in range(4)]
    for turn in range(3):
        start, won = threading.Barrier(16), []

        def create(k: int, name: str = f"lease-{turn}", start: Any = start, won: list[int] = won) -> None:
            start.wait()
            if clients[k % 4].create(name, b"%d" % k * 1000):
                won.append(k)

        threads = [threading.Thread(target=create, args=(k,)) for k in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert clients[0].read(f"lease-{turn}") == b"%d" % won[0] * 1000
    assert list(clients[0].listing()) == [f"lease-{turn}" for turn in range(3)]  # nothing of the fifteen is left


def test_a_lost_torn_or_changed_object_is_named_and_not_used(reach: Reach, tmp_path: Path) -> None:
    store = reach()
    data = bytes(range(256)) * 4
    digest = store.put("a/b", data)
    for damage, said in ((data[:-1], "torn or changed"), (b"", "torn or changed"), (data[1:] + b"\0", "changed")):
        store.put("a/b", damage)
        with pytest.raises(ObjectError, match=f"object {digest} .*{said}") as caught:
            store.get("a/b", digest)
        assert caught.value.sha256 == digest
        with pytest.raises(ObjectError, match=digest):
            store.fetch("a/b", digest, tmp_path / "here")
        assert not (tmp_path / "here").exists()
    store.delete("a/b")
    with pytest.raises(ObjectError, match=f"object {digest} .*is lost"):
        store.get("a/b", digest)


def test_several_at_once_are_the_same_as_one_after_the_other(reach: Reach) -> None:
    store = reach().below("part")
    made = {f"many/{k}": bytes([k]) * k for k in range(20)}
    store.put_all(made)
    hashes = {name: sha256_of(data) for name, data in made.items()}
    assert store.get_all(hashes) == made
    store.put("many/7", b"other")
    with pytest.raises(ObjectError, match=hashes["many/7"]):
        store.get_all(hashes)


def test_records_carry_their_own_digest(reach: Reach) -> None:
    store = reach()
    assert store.get_record("r.json", "heatfhe-test", (1,)) is None
    assert store.create_record("r.json", "heatfhe-test", 1, {"n": 1})
    assert not store.create_record("r.json", "heatfhe-test", 1, {"n": 2})
    assert store.get_record("r.json", "heatfhe-test", (1,)) == {"n": 1}
    store.put_record("r.json", "heatfhe-test", 1, {"n": 3})
    whole = store.read("r.json")
    assert whole is not None
    for damage in (whole.replace(b"3", b"4"), whole[:-9]):
        store.put("r.json", damage)
        with pytest.raises(FileFormatError, match=r"r\.json: "):
            store.get_record("r.json", "heatfhe-test", (1,))


@pytest.mark.parametrize("name", ["", "/a", "a/", "../a", "a/../b", "a//b", ".a", "a/.b", "a b", "a\n"])
def test_names_stay_below_the_store(reach: Reach, name: str) -> None:
    for ask in (lambda s: s.put(name, b""), lambda s: s.create(name, b""), lambda s: s.read(name)):
        with pytest.raises(ConfigError, match="no name of an object"):
            ask(reach())


def test_a_folder_keeps_no_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills while an object is written leaves nothing of it, not even its folder."""
    store = open_objects(tmp_path)
    digest = store.put("a/kept", b"old")

    def full(_fd: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for ask in (store.put, store.create):
            with pytest.raises(OSError, match="no space"):
                ask("b/c/new", b"new")
        with pytest.raises(OSError, match="no space"):
            store.put("a/kept", b"new")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a", "kept"]
    assert store.get("a/kept", digest) == b"old"


def test_a_store_that_cannot_be_had_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    known = sys.modules["fsspec.registry"]._registry
    monkeypatch.setitem(known, "plain", type("Plain", (fsspec.AbstractFileSystem,), {}))
    with pytest.raises(ConfigError, match="give a folder, or a URL"):
        open_objects("nowhere://bucket/prefix")
    with pytest.raises(ConfigError, match="only if it is absent"):
        open_objects("plain://bucket/prefix")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(known, "s3", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'heatfhe\[s3\]'"):
        open_objects("s3://bucket/prefix")


@pytest.mark.parametrize("absent", ["fsspec", "s3fs"])
def test_without_the_extra_a_folder_works(absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.delitem(sys.modules, "heatfhe.server.store.remote_objects", raising=False)
    store = open_objects(tmp_path)
    assert store.get("a", store.put("a", b"1")) == b"1"
    if absent == "fsspec":
        with pytest.raises(MissingExtraError, match=r"heatfhe\[s3\]"):
            open_objects("s3://bucket/prefix")
