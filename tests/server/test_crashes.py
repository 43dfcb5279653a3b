# SPDX-License-Identifier: Apache-2.0
"""What a process that died at a bad moment leaves, and what the next one makes of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.files import write_json
from heatfhe.server import ClientBook, ModelSource
from heatfhe.server.store import jobs as jobs_module
from heatfhe.server.store import keys as keys_module
from heatfhe.server.store.hold import FolderLock
from heatfhe.server.store.jobs import ENDED, Job, JobStore
from heatfhe.server.store.keys import FolderKeys, KeyStore
from heatfhe.wire import Refusal
from tests.server.serving import ROOT, BigKeyring, joined, wait_for
from tests.server.test_stores import manifest_of, queued_job, send, sha, store


class Killed(BaseException):
    """The process ends here."""


def killed_at_the_check(folder: Path, blob: bytes, *, wrong: bool = False) -> tuple[KeyStore, str]:
    """A store whose process died while it checked the last chunk of a key."""
    keys = store(folder)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set

    def die(_path: Path) -> str:
        raise Killed

    sent = bytes([blob[0] ^ wrong]) + blob[1:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "file_digest", die)
        with pytest.raises(Killed):
            keys.append("alice", key_set, sha(blob), 0, sent, sha(sent))
    assert (folder / "alice" / "partial" / sha(blob)).stat().st_size == len(blob)
    return store(folder), key_set


def test_a_key_set_killed_at_its_last_check_is_whole_when_announced_again(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(tmp_path, blob)
    assert keys.register("alice", manifest_of({"r": blob}), now=1).complete
    assert FolderKeys(tmp_path / "alice", key_set).read("r") == blob
    assert not list((tmp_path / "alice" / "partial").iterdir())


@settings(max_examples=20, deadline=None)
@given(offset=st.integers(0, 500), size=st.integers(0, 500), wrong=st.booleans())
def test_any_chunk_sent_after_such_a_kill_moves_the_upload_on(
    tmp_path_factory: pytest.TempPathFactory, offset: int, size: int, wrong: bool
) -> None:
    """Good bytes become the key, whatever the client sends next; wrong ones are dropped and the upload starts at 0."""
    folder = tmp_path_factory.mktemp("keys")
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(folder, blob, wrong=wrong)
    chunk = blob[offset : offset + size]
    if not wrong:
        assert keys.append("alice", key_set, sha(blob), offset, chunk, sha(chunk)) == 500
        assert keys.status("alice", key_set).complete
    elif offset or not chunk:
        with pytest.raises(Refusal) as caught:
            keys.append("alice", key_set, sha(blob), offset, chunk, sha(chunk))
        assert caught.value.facts == {"have": 0}
    else:
        assert keys.append("alice", key_set, sha(blob), 0, chunk, sha(chunk)) == len(chunk)


def test_wrong_bytes_found_after_a_kill_are_dropped_when_announced_again(tmp_path: Path) -> None:
    blob = np.random.default_rng(0).bytes(500)
    keys, key_set = killed_at_the_check(tmp_path, blob, wrong=True)
    assert keys.register("alice", manifest_of({"r": blob}), now=1).missing == {sha(blob): 0}
    send(keys, key_set, blob)
    assert keys.status("alice", key_set).complete


# -- a second start ---------------------------------------------------------------------------------------------------


def heat(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heatfhe.cli", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def foreign_job(folder: Path, *, version: int = 99) -> Path:
    """A job that another version of the server has written."""
    path = folder / "clients" / "alice" / "jobs" / ("ab" * 16) / "job.json"
    path.parent.mkdir(parents=True)
    write_json(path, "heatfhe-job", version, {"other": "layout"})
    (path.parent / "output-0000").write_bytes(b"paid for")
    return path.parent


def test_a_refused_second_start_changes_nothing_and_says_one_line(source: ModelSource, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    first = ClientBook(folder / "clients.json")
    token = first.add("alice")
    job = foreign_job(folder)
    with FolderLock(folder):
        before = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        arguments = ["--plan", str(source.plan), "--circuit", str(source.circuit), "--simulate", "--port", "0"]
        second = heat("serve", *arguments, "--folder", str(folder), "--with-client", "alice", "--json")
        out, err = second.communicate()
        after = {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    assert (second.returncode, out) == (1, "")
    assert "another server uses this folder" in err
    assert len(err.strip().splitlines()) == 1
    assert after == before
    assert first.who(token) == "alice"
    assert (job / "output-0000").read_bytes() == b"paid for"


@pytest.mark.parametrize("damage", ["version", "digest", "fields"])
def test_a_job_that_cannot_be_read_is_left_alone(tmp_path: Path, damage: str) -> None:
    job = foreign_job(tmp_path, version=99 if damage == "version" else 1)
    if damage == "digest":
        (job / "job.json").write_text((job / "job.json").read_text().replace("layout", "leyout"))
    jobs = JobStore(tmp_path / "clients")
    assert jobs.active() == []
    assert (job / "output-0000").read_bytes() == b"paid for"


MANY = """
import os, sys
from pathlib import Path
from heatfhe.server.store.auth import ClientBook
book, ready, go = Path(sys.argv[1]), *os.pipe()
children = []
for i in range(13):
    if (child := os.fork()) == 0:
        os.close(go)
        os.read(ready, 1)  # ends for all of them at once, when the parent closes its end
        if i == 12:
            ClientBook(book).remove("gone")
        else:
            (book.parent / f"c{i}").write_text(ClientBook(book).add(f"c{i}"))
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""


def test_clients_added_at_once_all_get_valid_tokens(tmp_path: Path) -> None:
    """Twelve processes change the book at the same moment, while another removes someone."""
    book = ClientBook(tmp_path / "clients.json")
    gone = book.add("gone")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", MANY, str(tmp_path / "clients.json")], env=environment, check=True)
    assert [book.who((tmp_path / f"c{i}").read_text()) for i in range(12)] == [f"c{i}" for i in range(12)]
    assert book.who(gone) is None


@settings(max_examples=10, deadline=None)
@given(names=st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=5))
def test_a_book_changed_by_others_is_read_again(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    """However fast the changes follow each other, within one tick of the file system's clock."""
    path = tmp_path_factory.mktemp("book") / "clients.json"
    reader, tokens = ClientBook(path), {}
    for name in names:
        old = tokens.get(name)
        tokens[name] = ClientBook(path).add(name)
        os.utime(path, ns=(1, 1))
        assert reader.who(tokens[name]) == name
        assert old is None or reader.who(old) is None


# -- jobs whose end the disk did not take -----------------------------------------------------------------------------


def no_room_for_ends(path: Path, kind: str, version: int, body: dict[str, Any]) -> None:
    """write_json on a disk that is full whenever a job ends."""
    if body.get("state") in ENDED:
        raise OSError(errno.ENOSPC, "no space left on device")
    write_json(path, kind, version, body)


def job_in(jobs: JobStore, folder: Path, key: str = "key-0") -> Job:
    upload = folder / "upload"
    upload.write_bytes(b"message")
    job = queued_job(steps=2, units=3, idempotency=key, request=sha(b"message"), created=1)
    jobs.add(job, upload)
    return job


def test_a_request_stays_until_the_record_of_its_jobs_end_is_on_disk(tmp_path: Path) -> None:
    jobs = JobStore(tmp_path)
    job = job_in(jobs, tmp_path)
    request = jobs.folder("alice", job.job) / "request.bin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "write_json", no_room_for_ends)
        assert jobs.update(job.job, state="done", ended=5.0).state == "done"
        jobs.settle()
        assert request.exists()
        assert JobStore(tmp_path).get("alice", job.job).state == "queued"
    jobs.settle()  # there is room again
    assert not request.exists()
    assert JobStore(tmp_path).get("alice", job.job).state == "done"


@pytest.mark.parametrize("more", [0, 1])
def test_a_done_job_is_still_done_after_a_restart_although_the_disk_was_full(
    source: ModelSource, tmp_path: Path, more: int
) -> None:
    """No job.json gets onto the disk from the end of a job on, then the process ends; ``more`` jobs ran meanwhile."""
    with joined(source, tmp_path) as app, pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "write_json", no_room_for_ends)
        client = app.client(keyring=BigKeyring)
        talk = client.open()
        said = [list(client.stream([1 + turn], 2, conversation=talk)) for turn in range(1 + more)]
        wait_for(lambda: not app.service.jobs.active())
        position = app.service.sessions.get("alice", talk.session).position
        records = [app.service.jobs.folder("alice", j.job) / "job.json" for j in app.service.jobs.of("alice")]
        app.service.jobs._unsaved.clear()  # the process is killed before it finds room
    assert not any('"state": "done"' in path.read_text() for path in records)
    with joined(source, tmp_path) as app:
        wait_for(lambda: not app.service.jobs.active())
        found = app.service.jobs.of("alice")
        assert [(j.state, j.done, j.outputs) for j in found] == [("done", j.units, 2) for j in found]
        assert len(found) == 1 + more
        assert app.service.sessions.get("alice", talk.session).position == position
        assert not list(tmp_path.rglob("request.bin"))
        assert [len(s) for s in said] == [2] * len(found)


def test_a_job_whose_request_is_gone_is_done_when_every_step_is_there(tmp_path: Path) -> None:
    jobs = JobStore(tmp_path)
    whole, half = job_in(jobs, tmp_path, "key-0"), job_in(jobs, tmp_path, "key-1")
    for job, steps in ((whole, 2), (half, 1)):
        folder = jobs.folder("alice", job.job)
        (folder / "request.bin").unlink()
        for step in range(steps):
            (folder / f"output-{step:04d}").write_bytes(b"output")
    again = JobStore(tmp_path)
    again.tidy()
    assert again.get("alice", whole.job).state == "done"
    with again.open_output(again.get("alice", whole.job), 1) as f:
        assert f.read() == b"output"
    assert again.get("alice", half.job).state == "queued"
    assert JobStore(tmp_path).get("alice", whole.job).state == "done"


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "cannot write")])
def test_a_disk_that_takes_nothing_is_a_clear_refusal(
    source: ModelSource, tmp_path: Path, number: int, said: str
) -> None:
    real = os.mkdir

    def refuse(path: Any, *args: Any, **options: Any) -> None:
        if (tmp_path / "server") in Path(path).parents:
            raise OSError(number, os.strerror(number))
        real(path, *args, **options)

    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring, patience=0.0)
        client.upload_keys()
        talk = client.open()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "mkdir", refuse)
            for ask in (client.open, lambda: list(client.stream([1], 1, conversation=talk))):
                with pytest.raises(Refusal, match=said) as caught:
                    ask()
                assert (caught.value.status, caught.value.code) == (507, "disk_full")
        assert len(list(client.stream([1], 1, conversation=talk))) == 1
