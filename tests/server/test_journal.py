# SPDX-License-Identifier: Apache-2.0
"""A session's journal over every store: written once per change, read with its hashes, and fenced by its turns."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from heatfhe.errors import FileFormatError
from heatfhe.files import write_json
from heatfhe.server.store.journal import Journal, Snapshot
from heatfhe.server.store.lease import Lease, LeaseLost
from heatfhe.server.store.memory_objects import MemoryObjects
from heatfhe.server.store.objects import Objects
from tests.server.stores import Reach, reached
from tests.server.test_stores import snapshot

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["folder", "memory", "s3"])
def reach(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reach]:
    with reached(request.param, tmp_path / "store") as found:
        yield lambda: found().below("session")


class Time:
    """A clock that goes only while someone waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def journal(objects: Objects, time: Time, seconds: float = 30.0) -> Journal:
    """One process's journal; it says that it lives only when the test does."""
    return Journal(objects, lease=Lease(objects, seconds=seconds, clock=time, sleep=time.sleep, beating=False))


def values(**ciphertexts: bytes) -> Snapshot:
    return Snapshot(position=1, job="j", units=1, values=ciphertexts)


def test_what_has_not_changed_is_not_written_again(reach: Reach) -> None:
    written: list[str] = []

    class Counted(MemoryObjects):
        def put(self, name: str, data: bytes) -> str:
            written.append(name)
            return super().put(name, data)

    for objects in (reach(), Counted()):
        first = Journal(objects)
        with first.lock():
            assert first.write(values(a=b"1" * 100, b=b"2" * 50, c=b"2" * 50)) == 150  # b and c are one object
            written.clear()
            assert first.write(values(a=b"1" * 100, b=b"3" * 50, c=b"2" * 50)) == 50
            assert first.write(values(a=b"1" * 100, b=b"3" * 50, c=b"2" * 50)) == 0
        second = Journal(objects)
        with second.lock():
            second.tidy()
            assert second.write(values(a=b"1" * 100, b=b"4" * 50)) == 50  # nor by whoever comes next
            assert second.read() == values(a=b"1" * 100, b=b"4" * 50)
        state = [name for name in objects.listing() if name.startswith("state-")]
        hashes = {hashlib.sha256(data).hexdigest() for data in (b"1" * 100, b"4" * 50)}
        assert {name.split("/")[1] for name in state} == hashes
        assert len(state) == 2  # and nothing else is left
    assert len([name for name in written if name.startswith("state-")]) == 2


def test_an_object_of_a_snapshot_that_is_lost_or_changed_is_named(reach: Reach) -> None:
    objects = reach()
    Journal(objects).write(values(a=b"1" * 100))
    digest = hashlib.sha256(b"1" * 100).hexdigest()
    (name,) = [name for name in objects.listing() if name.startswith("state-")]
    objects.put(name, b"1" * 99)
    with pytest.raises(FileFormatError, match=f"does not match its journal: object {digest} .* torn or changed"):
        Journal(objects).read()
    objects.delete(name)
    with pytest.raises(FileFormatError, match=f"does not match its journal: object {digest} .* is lost"):
        Journal(objects).read()


def test_a_folder_from_before_turns_is_read_and_becomes_one_with_turns(tmp_path: Path) -> None:
    """journal.json of version 1 and a state of numbered files, as every server before this one wrote them."""
    old = snapshot(4)
    (tmp_path / "state-000007").mkdir()
    rows = []
    for number, (name, data) in enumerate(old.values.items()):
        (tmp_path / "state-000007" / f"{number:05d}").write_bytes(data)
        rows.append([name, hashlib.sha256(data).hexdigest()])
    facts = {"position": old.position, "pending": old.pending, "job": old.job, "units": old.units}
    write_json(tmp_path / "journal.json", "heatfhe-journal", 1, {**facts, "values": rows, "state": "state-000007"})
    assert Journal(tmp_path).read() == old
    mine = Journal(tmp_path)
    with mine.lock():
        mine.tidy()
        assert mine.read() == old
        mine.write(snapshot(5))
    assert Journal(tmp_path).read() == snapshot(5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lock", "state-000001", "turns"]


# -- turns ------------------------------------------------------------------------------------------------------------


def test_a_holder_that_was_silent_for_a_lease_is_refused(reach: Reach) -> None:
    """The second waits for exactly the time of a lease after the last word of the first; from then on the first can
    write nothing, not even what it had begun."""
    time, objects = Time(), reach().below("part")
    stopped, successor = journal(objects, time), journal(reach().below("part"), time)
    stopped.write(snapshot(1))
    with stopped.lock():
        stopped.write(snapshot(2))
        if hasattr(objects, "folder"):  # the stopped process keeps its file lock, as SIGSTOP leaves it
            assert (objects.folder / "lock").exists()
        with successor.lock():
            assert time.now == pytest.approx(30.0, abs=1.0)
            assert successor.read() == snapshot(2)
            for attempt in range(2):
                with pytest.raises(LeaseLost):
                    stopped.write(snapshot(3))
                assert successor.read() == snapshot(2), attempt
            with pytest.raises(LeaseLost):
                stopped.check()
            successor.write(snapshot(4))
        with pytest.raises(LeaseLost):
            stopped.write(snapshot(3))
    assert Journal(objects).read() == snapshot(4)
    with pytest.raises(LeaseLost):
        Journal(objects).write(snapshot(5))  # without a turn nothing is written any more


def test_a_holder_that_speaks_keeps_its_turn_however_long_it_takes(reach: Reach) -> None:
    time, objects = Time(), reach().below("part")
    lease = Lease(objects, seconds=30.0, clock=time, sleep=time.sleep, beating=False)
    working, other = Journal(objects, lease=lease), reach().below("part")
    spoken = 0

    def sleep(seconds: float) -> None:
        nonlocal spoken
        time.sleep(seconds)
        if time.now < 100 and time.now // 10 > spoken:
            spoken += 1
            lease.say()

    with working.lock():
        waiting = Journal(other, lease=Lease(other, seconds=30.0, clock=time, sleep=sleep, beating=False))
        with waiting.lock():
            assert spoken == 9
            assert time.now == pytest.approx(90 + 30, abs=2.0)


def test_a_turn_that_ended_is_followed_at_once(reach: Reach) -> None:
    time = Time()
    for turn in range(1, 4):
        mine = journal(reach(), time)
        with mine.lock():
            mine.write(snapshot(turn))
            mine.tidy()
    assert time.now == 0.0
    assert Journal(reach()).read() == snapshot(3)
    assert sorted(n for n in reach().listing() if n.startswith("turns")) == [
        f"turns/00000003/{what}.json" for what in ("journal", "lease")
    ]


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("writes", [True, False])
def test_stopped_between_any_two_calls_to_the_store_it_changes_nothing_for_its_successor(at: int, writes: bool) -> None:
    """The worst moment: the first has checked its turn and is stopped before it writes or deletes. While it stands
    still the second takes over and goes on from what it finds; then the first does the rest of what it was at, after
    the second ``writes`` or while it still computes."""
    time, objects = Time(), MemoryObjects()
    calls, seen = 0, Snapshot()
    second, during = journal(objects, time), ExitStack()

    class Interrupted(Objects):
        """The first process's way to the store: before its call ``at``, the second has its turn."""

        def _step(self) -> None:
            nonlocal calls, seen
            calls += 1
            if calls == at + 1:
                during.enter_context(second.lock())
                second.tidy()
                seen = second.read()
                if writes:
                    second.write(snapshot(7))

        def put(self, name: str, data: bytes) -> str:
            self._step()
            return objects.put(name, data)

        def create(self, name: str, data: bytes) -> bool:
            return objects.create(name, data)

        def read(self, name: str) -> bytes | None:
            self._step()
            return objects.read(name)

        def listing(self, prefix: str = "") -> dict[str, int]:
            self._step()
            return objects.listing(prefix)

        def delete(self, name: str) -> None:
            self._step()
            objects.delete(name)

    first = journal(Interrupted(), time)
    calls = -1000
    with first.lock():
        first.write(snapshot(1))
        calls, finished = 0, False
        try:
            first.write(snapshot(2))
            finished = True
        except LeaseLost:
            pass
        met = calls > at
        calls = -1000
    assert met, "the write has fewer calls than this test has moments"
    if not writes:
        assert second.read() == seen
        second.write(snapshot(7))
    during.close()
    assert Journal(objects).read() == snapshot(7)
    assert seen in (snapshot(1), snapshot(2))  # whole, whichever it was
    assert not finished or seen == snapshot(2)  # what was reported as written was there for the second


STOPPED = """
import os, signal, sys
from pathlib import Path
from heatfhe.server.store.journal import Journal, Snapshot
from heatfhe.server.store.lease import LeaseLost
journal = Journal(Path(sys.argv[1]))
with journal.lock():
    journal.write(Snapshot(position=1, values={"a": b"first"}))
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        journal.write(Snapshot(position=2, values={"a": b"late"}))
    except LeaseLost:
        sys.exit(42)
"""


def test_a_stopped_and_resumed_process_has_its_write_refused(tmp_path: Path) -> None:
    """Two real processes on one folder: one is stopped while it holds the session, and with it its file lock."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)], env=environment)
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        mine = Journal(tmp_path, lease=Lease(_folder(tmp_path), seconds=0.2))
        with mine.lock():
            assert mine.read() == Snapshot(position=1, values={"a": b"first"})
            mine.write(Snapshot(position=3, values={"a": b"second"}))
            os.kill(process.pid, signal.SIGCONT)
            assert process.wait(60) == 42
            assert mine.read() == Snapshot(position=3, values={"a": b"second"})
    finally:
        process.kill()
        process.wait()
    with Journal(tmp_path).lock():  # and whoever comes next does not wait for anybody
        assert Journal(tmp_path).read().position == 3


KILLED = STOPPED.replace("SIGSTOP", "SIGKILL")


@pytest.mark.parametrize("known", ["by its lock", "by its number"])
def test_a_killed_process_is_followed_at_once(tmp_path: Path, known: str) -> None:
    """A lease of an hour, whose holder is gone: its file lock went with it, and this machine knows it is no more."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    time = Time()
    with (tmp_path / "lock").open("ab") as held:
        if known == "by its number":
            fcntl.flock(held.fileno(), fcntl.LOCK_EX)  # so that the lock says nothing
        _followed(journal(_folder(tmp_path), time, seconds=3600.0), time)


def _followed(mine: Journal, time: Time) -> None:
    with mine.lock():
        assert time.now == 0.0
        assert mine.read().position == 1


def _folder(path: Path) -> Any:
    from heatfhe.server.store.folder_objects import FolderObjects

    return FolderObjects(path)
