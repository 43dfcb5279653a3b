# SPDX-License-Identifier: Apache-2.0
"""What is on disk: keys in chunks, journals, jobs, tokens. Cut anywhere, full at any moment, nothing is half there."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import ConfigError, FileFormatError, MissingKeyError
from heatfhe.server.store import disk
from heatfhe.server.store.auth import ClientBook
from heatfhe.server.store.disk import folder_bytes
from heatfhe.server.store.jobs import Job, JobStore
from heatfhe.server.store.journal import Journal, Snapshot
from heatfhe.server.store.keys import FolderKeys, KeyStore
from heatfhe.server.store.quota import Quota
from heatfhe.server.store.sessions import SessionStore
from heatfhe.wire import KeyEntry, KeyManifest, Refusal

CONFIG = "ab" * 32


def queued_job(**facts: Any) -> Job:
    """A job of alice that waits."""
    same = {"client": "alice", "session": "s", "mode": "free", "inputs": 2, "pending": False, "state": "queued"}
    return Job(job=secrets.token_hex(16), **same, **facts)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def manifest_of(blobs: dict[str, bytes], config: str = CONFIG) -> KeyManifest:
    return KeyManifest(
        config_id=config, keys=tuple(KeyEntry(name=n, size=len(b), sha256=sha(b)) for n, b in blobs.items())
    )


def store(folder: Path, *, quota: int = 1 << 20, most: int = 3, reserve: int = 0) -> KeyStore:
    folder.mkdir(parents=True, exist_ok=True)
    return KeyStore(folder, quota=Quota(folder, most=quota, reserve=reserve), most=most)


def send(keys: KeyStore, key_set: str, data: bytes, *, client: str = "alice", step: int = 97) -> None:
    have = 0
    while have < len(data):
        chunk = data[have : have + step]
        have = keys.append(client, key_set, sha(data), have, chunk, sha(chunk))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_an_upload_in_any_chunks_with_any_repeats_ends_complete(
    tmp_path_factory: pytest.TempPathFactory, seed: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    blob = np.random.default_rng(seed).bytes(1000)
    keys = store(folder)
    key_set = keys.register("alice", manifest_of({"rotation-1": blob}), now=0).key_set
    have = 0
    while have < 1000:
        offset = data.draw(st.sampled_from([have, max(0, have - 7), have + 3]))
        chunk = blob[offset : offset + data.draw(st.integers(80, 400))]
        if offset == have:
            have = keys.append("alice", key_set, sha(blob), offset, chunk, sha(chunk))
        else:
            with pytest.raises(Refusal) as caught:
                keys.append("alice", key_set, sha(blob), offset, chunk, sha(chunk))
            assert caught.value.status == 409
            assert caught.value.facts == {"have": have}
    assert keys.status("alice", key_set).complete
    assert FolderKeys(folder / "alice", key_set).read("rotation-1") == blob


def test_wrong_bytes_are_dropped_and_can_be_sent_again(tmp_path: Path) -> None:
    keys, blob = store(tmp_path), np.random.default_rng(0).bytes(500)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set
    bad = bytes([blob[0] ^ 1]) + blob[1:]
    with pytest.raises(Refusal, match="do not match its hash"):
        keys.append("alice", key_set, sha(blob), 0, bad, sha(bad))
    with pytest.raises(Refusal, match="chunk does not match"):
        keys.append("alice", key_set, sha(blob), 0, blob, sha(bad))
    with pytest.raises(Refusal, match="does not fit") as caught:
        keys.append("alice", key_set, sha(blob), 0, blob + b"x", sha(blob + b"x"))
    assert caught.value.status == 413
    assert keys.status("alice", key_set).missing == {sha(blob): 0}
    send(keys, key_set, blob)
    assert keys.status("alice", key_set).complete


def test_quota_number_and_expiry(tmp_path: Path) -> None:
    keys = store(tmp_path, quota=3000, most=2)
    blobs = [np.random.default_rng(i).bytes(900) for i in range(3)]
    sets = [keys.register("alice", manifest_of({"r": b}), now=i).key_set for i, b in enumerate(blobs[:2])]
    with pytest.raises(Refusal, match="already has 2") as caught:
        keys.register("alice", manifest_of({"r": blobs[2]}), now=2)
    assert caught.value.status == 429
    with pytest.raises(Refusal, match="do not fit"):
        store(tmp_path, quota=3000).register("bob", manifest_of({"r": b"x" * 2, "big": bytes(3001)}), now=0)
    for key_set, blob in zip(sets, blobs):
        send(keys, key_set, blob)
    assert keys.expire(now=100, after=99.5, keep=[("alice", sets[1])]) == [("alice", sets[0])]
    assert not (tmp_path / "alice" / "blobs" / sha(blobs[0])).exists()
    assert [s.key_set for s in keys.all("alice")] == [sets[1]]


def test_a_blob_shared_by_two_sets_survives_the_first_delete(tmp_path: Path) -> None:
    keys, blob = store(tmp_path), np.random.default_rng(0).bytes(300)
    first = keys.register("alice", manifest_of({"r": blob}), now=0).key_set
    send(keys, first, blob)
    second = keys.register("alice", manifest_of({"r": blob}, config="cd" * 32), now=0)
    assert second.complete
    keys.delete("alice", first)
    assert FolderKeys(tmp_path / "alice", second.key_set).read("r") == blob
    with pytest.raises(Refusal, match="no such key set"):
        keys.status("alice", first)


def test_clients_do_not_see_each_other(tmp_path: Path) -> None:
    keys, blob = store(tmp_path), np.random.default_rng(0).bytes(300)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set
    send(keys, key_set, blob)
    with pytest.raises(Refusal) as caught:
        keys.status("bob", key_set)
    assert caught.value.status == 404
    assert keys.register("bob", manifest_of({"r": blob}), now=0).missing == {sha(blob): 0}


@pytest.mark.parametrize("name", ["secret", "bootstrap/sk"])
def test_a_secret_by_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refusal) as caught:
        store(tmp_path).register("alice", manifest_of({name: b"x" * 300}), now=0)
    assert caught.value.code == "secret_key"
    assert not list(tmp_path.rglob("*.json"))


def test_a_secret_by_content_is_refused_and_not_stored(tmp_path: Path) -> None:
    keys = store(tmp_path)
    secret = np.random.default_rng(0).integers(-1, 2, size=4096).astype(np.int8).tobytes()
    key_set = keys.register("alice", manifest_of({"rotation-1": secret}), now=0).key_set
    with pytest.raises(Refusal) as caught:
        keys.append("alice", key_set, sha(secret), 0, secret, sha(secret))
    assert caught.value.code == "secret_key"
    hidden = np.random.default_rng(0).bytes(10) + secret  # a first chunk too short to tell
    key_set = keys.register("alice", manifest_of({"rotation-1": hidden}), now=0).key_set
    with pytest.raises(Refusal) as caught:
        send(keys, key_set, hidden, step=100)
    assert caught.value.code == "secret_key"
    assert not any(secret[:64] in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_a_full_disk_leaves_the_upload_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, blob = store(tmp_path), np.random.default_rng(0).bytes(1000)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set
    keys.append("alice", key_set, sha(blob), 0, blob[:400], sha(blob[:400]))
    real = os.fsync

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    with pytest.raises(Refusal, match="disk is full") as caught:
        keys.append("alice", key_set, sha(blob), 400, blob[400:900], sha(blob[400:900]))
    assert caught.value.status == 507
    with pytest.raises(Refusal, match="disk is full"):
        keys.register("alice", manifest_of({"r": blob[:10]}), now=0)
    monkeypatch.setattr(disk.os, "fsync", real)
    assert keys.status("alice", key_set).missing == {sha(blob): 400}
    keys.append("alice", key_set, sha(blob), 400, blob[400:], sha(blob[400:]))
    assert FolderKeys(tmp_path / "alice", key_set).read("r") == blob
    assert len(keys.all("alice")) == 1


def test_the_quota_is_asked_at_every_chunk(tmp_path: Path) -> None:
    """Two sets that fit one by one are announced before a byte comes; the chunk that goes over is refused."""
    keys = store(tmp_path, quota=6000)
    blobs = [np.random.default_rng(k).bytes(3000) for k in (1, 2)]
    sets = [keys.register("alice", manifest_of({"r": b}), now=0).key_set for b in blobs]
    send(keys, sets[0], blobs[0], step=500)
    with pytest.raises(Refusal, match="do not fit") as caught:
        send(keys, sets[1], blobs[1], step=500)
    assert caught.value.code == "quota"
    assert folder_bytes(tmp_path / "alice") <= 6000
    assert keys.status("alice", sets[0]).complete
    (have,) = keys.status("alice", sets[1]).missing.values()
    assert have % 500 == 0


def test_uploads_at_once_do_not_share_room(tmp_path: Path) -> None:
    quota = Quota(tmp_path, most=1000, reserve=0)
    with quota.hold("alice", 600):
        (tmp_path / "alice" / "incoming").mkdir(parents=True)
        (tmp_path / "alice" / "incoming" / "x").write_bytes(bytes(600))  # counted once, as announced
        quota.check("alice", 400)
        with pytest.raises(Refusal, match="600 of 1000 are used"), quota.hold("alice", 401):
            pass
        quota.check("bob", 1000)
    (tmp_path / "alice" / "incoming" / "x").unlink()
    quota.check("alice", 1000)


def test_a_disk_near_its_reserve_refuses_before_writing(tmp_path: Path) -> None:
    keys = store(tmp_path, reserve=1 << 60)
    with pytest.raises(Refusal) as caught:
        keys.register("alice", manifest_of({"r": b"x" * 300}), now=0)
    assert caught.value.code == "disk_full"
    assert caught.value.retry_after == 60


def test_stored_keys_are_checked_again_when_read(tmp_path: Path) -> None:
    keys, blob = store(tmp_path), np.random.default_rng(0).bytes(300)
    key_set = keys.register("alice", manifest_of({"r": blob}), now=0).key_set
    send(keys, key_set, blob)
    (tmp_path / "alice" / "blobs" / sha(blob)).write_bytes(blob[:-1] + b"!")
    with pytest.raises(FileFormatError, match="does not match its hash"):
        FolderKeys(tmp_path / "alice", key_set).read("r")
    with pytest.raises(MissingKeyError, match="'other'"):
        FolderKeys(tmp_path / "alice", key_set).read("other")


# -- journal ----------------------------------------------------------------------------------------------------------


def snapshot(k: int) -> Snapshot:
    values = {f"h.0.attn/k#{i}": bytes([k, i]) * 50 for i in range(3)}
    return Snapshot(position=k, pending=k % 2 == 0, job="j", units=k, values=values)


@settings(max_examples=25, deadline=None)
@given(fail_at=st.integers(0, 25))
def test_a_journal_killed_anywhere_shows_the_last_whole_state(
    tmp_path_factory: pytest.TempPathFactory, fail_at: int
) -> None:
    """Every call that changes the disk may be the last one; what is read next is the old state or the new, whole."""
    journal = Journal(tmp_path_factory.mktemp("session"))
    journal.write(snapshot(1))
    calls = 0

    class Killed(BaseException):
        pass

    def dying(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > fail_at:
                raise Killed
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            journal.write(snapshot(2))
            finished = True
        except Killed:
            finished = False
    found = journal.read()
    assert found in (snapshot(1), snapshot(2))
    assert not finished or found == snapshot(2)
    journal.tidy()
    journal.write(snapshot(3))
    assert journal.read() == snapshot(3)


def test_a_full_disk_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.write(snapshot(1))

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            journal.write(snapshot(2))
    assert journal.read() == snapshot(1)
    assert len(list(tmp_path.glob("*state-*"))) == 1


def test_an_altered_state_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.read() == Snapshot()
    journal.write(snapshot(1))
    next(tmp_path.glob("state-*/*")).write_bytes(b"other")
    with pytest.raises(FileFormatError, match="does not match its journal"):
        journal.read()


# -- sessions, jobs, tokens -------------------------------------------------------------------------------------------


def test_sessions_have_owners_and_limits(tmp_path: Path) -> None:
    sessions = SessionStore(tmp_path, most=2)
    made = [sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=i) for i in range(2)]
    with pytest.raises(Refusal, match="already has 2"):
        sessions.create("alice", model="m", config_id=CONFIG, key_set=CONFIG, now=3)
    with pytest.raises(Refusal, match="no such session"):
        sessions.get("bob", made[0].session)
    Journal(sessions.folder("alice", made[0].session)).write(snapshot(4))
    found = sessions.get("alice", made[0].session)
    assert (found.position, found.pending) == (4, True)
    assert found.size > 300
    assert sessions.expire(now=100, after=99.5) == [("alice", made[0].session)]
    assert [s.session for s in sessions.all("alice")] == [made[1].session]


def test_jobs_survive_a_restart_and_ended_ones_stay_ended(tmp_path: Path) -> None:
    jobs = JobStore(tmp_path)
    made = []
    for i in range(2):
        upload = tmp_path / f"upload{i}"
        upload.write_bytes(b"message")
        made.append(queued_job(steps=3, units=4, idempotency=f"key-{i}", request=sha(b"message"), created=i))
        jobs.add(made[-1], upload)
    jobs.update(made[0].job, state="done", ended=5.0, outputs=3)
    assert jobs.update(made[0].job, state="running").state == "done"
    again = JobStore(tmp_path)
    assert again.get("alice", made[0].job).state == "done"
    assert [j.job for j in again.active()] == [made[1].job]
    assert again.by_key("alice", "key-1") == made[1]
    assert again.by_key("bob", "key-1") is None
    with pytest.raises(Refusal):
        again.get("bob", made[1].job)
    again.expire(now=100, after=50)
    with pytest.raises(Refusal):
        again.get("alice", made[0].job)


def test_tokens_are_hashed_at_rest_and_end_when_replaced(tmp_path: Path) -> None:
    book = ClientBook(tmp_path / "clients.json")
    token = book.add("alice")
    assert book.who(token) == "alice"
    assert book.who(token[:-1]) is None
    text = (tmp_path / "clients.json").read_text()
    assert token not in text
    assert token.removeprefix("heat_") not in text
    assert (tmp_path / "clients.json").stat().st_mode & 0o777 == 0o600
    second = ClientBook(tmp_path / "clients.json").add("alice")  # another process
    os.utime(tmp_path / "clients.json", ns=(1, 1))
    assert (book.who(token), book.who(second)) == (None, "alice")
    assert book.remove("alice")
    assert book.who(second) is None
    with pytest.raises(ConfigError, match="client name"):
        book.add("../alice")
