# SPDX-License-Identifier: Apache-2.0
"""What killed processes leave in a server's folder is gone after the next start, and nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.client.pending import PendingJobs
from heatfhe.files import write_json
from heatfhe.server import ModelSource
from heatfhe.server.store.jobs import JobStore
from heatfhe.server.store.journal import Journal
from heatfhe.server.store.sessions import SessionStore
from heatfhe.wire import Refusal
from tests.server.serving import BigKeyring, joined
from tests.server.test_crashes import Killed, job_in, killed_at_the_check
from tests.server.test_stores import CONFIG, manifest_of, send, sha, snapshot, store

IGNORED = ("clock.json", "lock", "incoming/", "partial/")


def tree(folder: Path) -> dict[str, bytes]:
    """Every file and empty folder below a folder, except what a start itself may touch."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
        elif not any(path.iterdir()):
            found[f"{path.relative_to(folder)}/"] = b""
    return {name: data for name, data in found.items() if not name.endswith(IGNORED)}


def litter(folder: Path) -> None:
    """One of everything that a kill at a bad moment leaves."""
    alice = folder / "clients" / "alice"
    session = next(alice.glob("sessions/*"))
    job = next(alice.glob("jobs/*"))
    files = [
        folder / ".clients.json.123.partial",
        folder / ".clock.json.123.partial",
        alice / "incoming" / "ab",
        alice / "jobs" / ("0a" * 16) / "request.bin",
        alice / "jobs" / ("0b" * 16) / ".job.json.123.partial",
        alice / "jobs" / ("0c" * 16) / "output-0000",
        job / ".job.json.123.partial",
        job / ".output-0000.123.partial",
        job / "request.bin",
        alice / "sessions" / ("0d" * 16) / ".session.json.123.partial",
        alice / "sessions" / ("0e" * 16) / "state-000001" / "00000",
        session / ".session.json.123.partial",
        session / ".journal.json.123.partial",
        session / ".state-000009.123.partial" / "00000",
        session / "state-000099" / "00000",
        alice / "keysets" / f".{CONFIG}.json.123.partial",
        alice / "blobs" / ("ab" * 32),
        alice / "partial" / ("cd" * 32),
        alice / "partial" / next(alice.glob("blobs/*")).name,
    ]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"litter")
    (alice / "jobs" / ("0f" * 16)).mkdir()


def test_a_start_removes_what_killed_processes_left_and_nothing_else(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        kept = client.generate([1, 2], 2, keep=True)
    before = tree(tmp_path / "server")
    litter(tmp_path / "server")
    assert len(tree(tmp_path / "server")) == len(before) + 20
    with joined(source, tmp_path) as app:
        assert app.service.sessions.get("alice", kept.session).position == 3
    assert tree(tmp_path / "server") == before


def test_folders_without_a_record_do_not_count_as_sessions(tmp_path: Path) -> None:
    sessions = SessionStore(tmp_path, most=1)
    (tmp_path / "alice" / "sessions" / ("ab" * 16)).mkdir(parents=True)
    sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=0)
    with pytest.raises(Refusal, match="already has 1"):
        sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=0)


def test_what_another_version_wrote_stays_and_stops_nobody(source: ModelSource, tmp_path: Path) -> None:
    """A later server's records, with files of its own beside them and keys that only it knows to be needed."""
    alice = tmp_path / "server" / "clients" / "alice"
    for place, kind in (("sessions", "session"), ("jobs", "job")):
        path = alice / place / ("ab" * 16) / f"{kind}.json"
        path.parent.mkdir(parents=True)
        write_json(path, f"heatfhe-{kind}", 99, {"new": "layout"})
        (alice / place / ("cd" * 16)).mkdir()
        (alice / place / ("cd" * 16) / "record.cbor").write_bytes(b"a layout of tomorrow")
    (alice / "keysets").mkdir()
    write_json(alice / "keysets" / f"{CONFIG}.json", "heatfhe-key-set", 99, {"new": "layout"})
    (alice / "blobs").mkdir()
    (alice / "blobs" / sha(b"key")).write_bytes(b"key")
    before = tree(tmp_path / "server")
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        assert len(client.generate([1, 2], 2).tokens) == 2
        app.service.sweep()
        assert client.sessions() == []
        client.delete_key_set(client.upload_keys())
    after = tree(tmp_path / "server")
    assert {name: after.get(name) for name in before} == before


def test_a_start_finishes_a_key_set_killed_at_its_last_check(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(tmp_path, blob)
    keys.tidy()
    assert keys.status("alice", key_set).complete
    keys, key_set = killed_at_the_check(tmp_path, blob[1:], wrong=True)
    keys.tidy()
    assert keys.status("alice", key_set).missing == {sha(blob[1:]): 0}


def test_a_state_a_worker_is_about_to_write_is_left_to_it(tmp_path: Path) -> None:
    """The worker of a killed server holds its session for a moment longer."""
    sessions = SessionStore(tmp_path, most=1)
    session = sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=0).session
    folder = sessions.folder("alice", session)
    Journal(folder).write(snapshot(1))
    (folder / ".state-000002.1.partial").mkdir()
    with Journal(folder).lock():
        sessions.tidy()
        assert (folder / ".state-000002.1.partial").exists()
    sessions.tidy()
    assert not (folder / ".state-000002.1.partial").exists()
    assert Journal(folder).read() == snapshot(1)


@contextmanager
def dying(after: int) -> Iterator[None]:
    """The process ends at its n-th call that changes the disk."""
    calls = 0

    def wrap(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise Killed
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, wrap(getattr(os, name)))
        try:
            yield
        except Killed:
            return


@settings(max_examples=25, deadline=None)
@given(after=st.integers(0, 12))
def test_a_deletion_killed_anywhere_leaves_the_whole_thing_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, after: int
) -> None:
    home = tmp_path_factory.mktemp("clients")
    sessions, jobs, keys = SessionStore(home, most=9), JobStore(home), store(home)
    session = sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=0).session
    Journal(sessions.folder("alice", session)).write(snapshot(4))
    job = job_in(jobs, home)
    (jobs.folder("alice", job.job) / "output-0000").write_bytes(b"output")
    blob = np.random.default_rng(0).bytes(300)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set
    send(keys, key_set, blob)
    with dying(after):
        sessions.delete("alice", session)
    with dying(after):
        jobs.forget("s")
    with dying(after):
        keys.delete("alice", key_set)
    sessions, jobs, keys = SessionStore(home, most=9), JobStore(home), store(home)
    for tidy in (sessions.tidy, jobs.tidy, keys.tidy):
        tidy()
    if sessions.all("alice"):
        assert Journal(sessions.folder("alice", session)).read() == snapshot(4)
    else:
        assert not sessions.folder("alice", session).exists()
    if jobs.of("alice"):
        assert {p.name for p in jobs.folder("alice", job.job).iterdir()} == {"job.json", "request.bin", "output-0000"}
    else:
        assert not jobs.folder("alice", job.job).exists()
    if keys.all("alice"):
        assert keys.status("alice", key_set).complete
    else:
        assert not list((home / "alice" / "blobs").iterdir())
    shutil.rmtree(home)


def test_jobs_of_a_session_that_is_gone_go_too(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as app:
        kept = app.client(keyring=BigKeyring).generate([1, 2], 2, keep=True)
        app.service.sessions.delete("alice", kept.session)  # and the process is killed before its jobs go
    assert list(tmp_path.glob("server/clients/alice/jobs/*"))
    with joined(source, tmp_path):
        assert not list(tmp_path.glob("server/clients/alice/jobs/*"))


# -- sessions that nobody uses ----------------------------------------------------------------------------------------


def test_sessions_that_never_got_a_job_do_not_lock_their_owner_out(source: ModelSource, tmp_path: Path) -> None:
    """Thirty-two clients died between opening a session and using it; ten minutes later the owner has room again."""
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        kept = client.generate([1, 2], 2, keep=True).session
        left = [client.open().session for _ in range(31)]
        with pytest.raises(Refusal, match="already has 32"):
            client.open()
        clock = app.service.clock.now
        app.service.clock.now = lambda: clock() + 601
        fresh = client.open().session
        found = {s["session"] for s in client.sessions()}
        assert len(found) == 32
        assert {kept, fresh} <= found < {kept, fresh, *left}
        app.service.clock.now = lambda: clock() + 7202
        app.service.sweep()
        assert {s["session"] for s in client.sessions()} == {kept, fresh}


def test_empty_sessions_of_long_ago_make_room(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        kept = client.open().session
        (facts,) = client.sessions()
        words = {name: facts[name] for name in ("model", "config_id", "key_set")}
        left = {app.service.sessions.create("alice", **words, now=1000.0 + i).session for i in range(31)}
        fresh = client.open().session
        found = {s["session"] for s in client.sessions()}
        assert {kept, fresh} <= found < {kept, fresh, *left}


def test_a_session_whose_only_job_failed_is_empty_and_goes_with_its_job(source: ModelSource, tmp_path: Path) -> None:
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        talk = client.open()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.keyring, "encrypt", lambda *_a, **_o: b"no ciphertext")
            with pytest.raises(Refusal, match="failed after 0 of 2"):
                list(client.stream([1, 2], 2, conversation=talk))
        assert app.service.sessions.get("alice", talk.session).empty
        app.service.sweep(now=app.service.clock.now() + 7202)
        assert client.sessions() == []
        assert app.service.jobs.of("alice") == []


def test_an_empty_session_with_a_job_on_its_way_stays(tmp_path: Path) -> None:
    sessions = SessionStore(tmp_path, most=1)
    session = sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=0).session
    busy = frozenset({session})
    assert sessions.make_room("alice", now=1e9, keep=busy) == []
    assert sessions.expire(now=1e9, after=1e12, empty_after=1, keep=busy) == []
    assert sessions.make_room("alice", now=599, keep=frozenset()) == []
    assert sessions.make_room("alice", now=601, keep=frozenset()) == [session]


# -- the client's own disk --------------------------------------------------------------------------------------------


def test_a_client_removes_what_killed_clients_left_and_nothing_of_living_ones(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        dead = ended.pid
    for name in (f".a.json.{dead}.partial", f".b.json.{os.getpid()}.partial", "c.bin", "d.bin", "d.json", "e.bin"):
        (tmp_path / name).write_bytes(b"x")
    os.utime(tmp_path / "c.bin", (1, 1))
    os.utime(tmp_path / "d.bin", (1, 1))
    PendingJobs(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {f".b.json.{os.getpid()}.partial", "d.bin", "d.json", "e.bin"}
