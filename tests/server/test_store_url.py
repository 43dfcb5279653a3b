# SPDX-License-Identifier: Apache-2.0
"""A server whose keys, requests, outputs and sessions are in an object store: the same answers, killed or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heatfhe.errors import ConfigError, FileFormatError, MissingExtraError
from heatfhe.server import ModelSource
from heatfhe.server.store.key_cache import KeyCache
from heatfhe.server.store.keys import FolderKeys
from heatfhe.server.store.memory_objects import MemoryObjects
from heatfhe.server.store.objects import Objects, open_objects, sha256_of
from heatfhe.wire import Refusal
from tests.server.serving import BigKeyring, Joined, joined, served_circuit
from tests.server.stores import s3_server


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with s3_server() as found:
        yield found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEATFHE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keys"


def expected(tokens: list[int], steps: int) -> list[int]:
    return list(served_circuit().generate(tokens, steps).tokens)


def test_everything_that_is_large_is_in_the_store(source: ModelSource, tmp_path: Path, url: str, cache: Path) -> None:
    place = f"{url}/whole"
    with joined(source, tmp_path, store=place) as app:
        client = app.client(keyring=BigKeyring)
        talk = client.open()
        said = list(client.stream([1, 2], 3, conversation=talk))
        objects = open_objects(place)
        names = list(objects.listing("clients/alice"))
        kinds = {name.split("/")[2] for name in names}
        assert kinds == {"blobs", "keysets", "jobs", "sessions"}
        files = [p for p in (tmp_path / "server").rglob("*") if p.is_file()]
        assert {p.name for p in files if "alice" in p.parts} == {"session.json", "job.json"}
        assert app.service.sessions.get("alice", talk.session).size > 1000
        keys = FolderKeys(objects.below("clients/alice"), client.upload_keys(), KeyCache(cache, 1 << 30))
        sent = {name: sha256_of(keys.read(name)) for name in keys.names()}
        assert sorted(p.name for p in cache.iterdir()) == sorted(sent.values())
        assert sorted(sent.values()) == sorted(n.split("/")[-1] for n in names if "/blobs/" in n)
    with joined(source, tmp_path, store=place) as app:  # a restart goes on with the session
        client = app.client(keyring=BigKeyring)
        said += list(client.stream([3], 2, conversation=talk))
        assert len(said) == 5
        assert (
            app.service.sessions.get("alice", talk.session).position == 7
        )  # of 3 given and 5 made, the last is not in it
        client.delete_session(talk.session)
        client.delete_key_set(client.upload_keys())
    assert list(objects.listing()) == ["store-id"]


def test_another_folder_is_a_store_too(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path, store=str(tmp_path / "objects")) as app:
        assert list(app.client().generate([1, 2], 3).tokens) == expected([1, 2], 3)
    assert (tmp_path / "objects" / "store-id").exists()


def test_a_store_serves_one_folder_and_what_a_kill_left_in_it_goes(
    source: ModelSource, tmp_path: Path, url: str
) -> None:
    place = f"{url}/owned"
    with joined(source, tmp_path / "first", store=place) as app:
        kept = app.client().generate([1, 2], 2, keep=True)
    objects = open_objects(place)
    before = objects.listing()
    with (
        pytest.raises(ConfigError, match="belongs to the server of another --folder"),
        joined(source, tmp_path / "second", store=place),
    ):
        pass
    assert objects.listing() == before
    for name in ("sessions/0a/state-000001/ab", "jobs/0b/request.bin", "blobs/" + "ab" * 32):
        objects.put(f"clients/alice/{name}", b"litter")
    with joined(source, tmp_path / "first", store=place) as app:
        assert app.service.sessions.get("alice", kept.session).position == 3
    assert objects.listing() == before


def test_a_worker_killed_in_the_middle_changes_no_token(source: ModelSource, tmp_path: Path, url: str) -> None:
    with joined(source, tmp_path, store=f"{url}/killed", snapshot_seconds=0.0) as app:
        struck, publish = threading.Event(), app.service.events.publish

        def strike(job: str, **facts: Any) -> None:
            publish(job, **facts)
            if facts.get("outputs") == 2 and not struck.is_set():
                struck.set()
                for device in app.service.dispatcher.seats:
                    for worker in device._workers.values():  # type: ignore[attr-defined]
                        worker._process.kill()

        app.service.events.publish = strike  # type: ignore[method-assign]
        assert list(app.client(patience=120.0).generate([1, 2], 6).tokens) == expected([1, 2], 6)
        assert struck.is_set()


def job_key_set(app: Joined, session: str) -> str:
    return app.service.sessions.get("alice", session).key_set


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_a_damaged_key_or_output_is_named_and_not_used(
    source: ModelSource, tmp_path: Path, url: str, damage: str, cache: Path
) -> None:
    place = f"{url}/{damage}"
    with joined(source, tmp_path, store=place) as app:
        client = app.client(keyring=BigKeyring)
        talk = client.open()
        list(client.stream([1, 2], 1, conversation=talk))
        objects = open_objects(place)

        def spoil(part: str) -> str:
            name = next(n for n in objects.listing() if part in n)
            objects.delete(name) if damage == "lost" else objects.put(name, b"other")
            return name.split("/")[-1]

        digest = spoil("/output-0000/")
        (job,) = app.service.jobs.of("alice")
        if damage == "lost":
            with pytest.raises(Refusal, match="has just been removed"):
                app.service.jobs.open_output(job, 0)
        else:
            with pytest.raises(Exception, match=f"object {digest} .* torn or changed"):
                app.service.jobs.open_output(job, 0)
        digest = spoil("/blobs/")
        keys = FolderKeys(objects.below("clients/alice"), job_key_set(app, talk.session), KeyCache(cache, 1 << 30))
        with pytest.raises(FileFormatError, match=f"a stored key does not match its hash: object {digest}"):
            [keys.read(name) for name in keys.names()]
        digest = spoil("/state-")
        with pytest.raises(Exception, match="does not match its journal") as caught:
            list(client.stream([1], 1, conversation=talk))
        assert digest in str(caught.value)


# -- keys on a seat's own disk ----------------------------------------------------------------------------------------


class Asked(MemoryObjects):
    """A store that counts what is read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def read(self, name: str) -> bytes | None:
        self.asked.append(name)
        return super().read(name)


def blobs(store: Objects, *sizes: int) -> list[tuple[str, str]]:
    made = [bytes([k]) * size for k, size in enumerate(sizes)]
    return [(f"blobs/{k}", store.put(f"blobs/{k}", data)) for k, data in enumerate(made)]


def test_keys_are_kept_within_their_budget(tmp_path: Path) -> None:
    store = Asked()
    a, b, c, large = blobs(store, 400, 400, 400, 1100)
    cache = KeyCache(tmp_path, 1000)
    for name, digest in (a, b, a, c, a, large, a):  # c takes the room of b, which was used longest ago
        assert sha256_of(cache.get(store, name, digest)) == digest
        assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 1000
    assert store.asked == [a[0], b[0], c[0], large[0]]
    assert {p.name for p in tmp_path.iterdir()} == {a[1], c[1]}


def test_a_kept_key_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    store = Asked()
    ((name, digest),) = blobs(store, 100)
    cache = KeyCache(tmp_path, 1000)
    cache.get(store, name, digest)
    (tmp_path / digest).write_bytes(b"other")
    assert sha256_of(cache.get(store, name, digest)) == digest
    assert store.asked == [name, name]
    assert sha256_of((tmp_path / digest).read_bytes()) == digest


def test_without_the_extra_a_server_says_what_to_install(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.delitem(sys.modules, "heatfhe.server.store.remote_objects", raising=False)
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'heatfhe\[s3\]'"),
        joined(source, tmp_path, store="s3://bucket/prefix"),
    ):
        pass
    with joined(source, tmp_path) as app:
        assert list(app.client().generate([1, 2], 2).tokens) == expected([1, 2], 2)
