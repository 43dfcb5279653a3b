# SPDX-License-Identifier: Apache-2.0
"""What fronts and a desk in another process rely on, without Ray: lines, room for uploads, shared locks, sums."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heatfhe.errors import ConfigError, MissingExtraError
from heatfhe.planning import ProgramName
from heatfhe.server import ModelSource, Settings, start_desk
from heatfhe.server import lines as said
from heatfhe.server.desk import News
from heatfhe.server.holds import Holds
from heatfhe.server.http import routes
from heatfhe.server.metrics import Metrics
from heatfhe.server.store.jobs import Job
from heatfhe.server.store.keys import KeySetStatus
from heatfhe.server.store.locks import LOCKS, SharedLocks
from heatfhe.server.store.quota import Quota
from heatfhe.server.store.sessions import Session
from heatfhe.wire import JobHead, KeyEntry, KeyManifest, Refusal
from tests.server.serving import ROOT, joined

JOB = Job(
    job="1" * 32, client="alice", session="2" * 32, mode="free", steps=3, inputs=2, units=4, pending=False,
    state="running", created=1.5, idempotency="key-00000001", request="3" * 64, done=1, outputs=1, started=2.5,
)  # fmt: skip
NEWS = News(
    job=JOB, events=((1, {"state": "queued", "ahead": 0}), (2, {"eta_s": 0.5})), over=False, ahead=None, source="a"
)
HEAD = JobHead(
    config_id="4" * 64, plan="5" * 64, key_set="6" * 64, program=ProgramName.GENERATE, steps=2, start=0, inputs=3,
    prefill=(9, 2),
)  # fmt: skip
MANIFEST = KeyManifest(config_id="7" * 64, keys=(KeyEntry(name="rotation-1", size=5, sha256="8" * 64),))
STATUS = KeySetStatus(key_set="9" * 64, config_id="7" * 64, size=5, created=1, used=2, missing={"8" * 64: 3})
SESSION = Session(
    session="2" * 32, client="alice", model="tiny", config_id="7" * 64, key_set="9" * 64, created=1, used=2, position=3,
    pending=True, size=4, idempotency="key-00000002",
)  # fmt: skip


@pytest.mark.parametrize("record", [JOB, NEWS, HEAD, MANIFEST, STATUS, SESSION], ids=lambda r: type(r).__name__)
def test_a_record_arrives_as_it_was_sent(record: Any) -> None:
    found = said.answer(said.pack(record))
    assert found == record
    assert type(found) is type(record)
    assert said.unpack(said.pack(("alice", [record], {"a": None}, True))) == ("alice", (record,), {"a": None}, True)


def test_a_program_arrives_as_itself() -> None:
    assert said.unpack(said.pack(HEAD)).program is ProgramName.GENERATE


def test_other_records_do_not_travel() -> None:
    @dataclass(frozen=True)
    class Session:
        session: str

    with pytest.raises(TypeError, match="Session does not travel"):
        said.pack(Session(session="x"))


def test_a_refusal_arrives_as_one() -> None:
    sent = Refusal("conflict", "here", "go on at 7", retry_after=2.5, facts={"have": 7})
    with pytest.raises(Refusal) as found:
        said.answer(said.pack_refusal(sent))
    assert (found.value.as_json(), found.value.status, found.value.retry_after) == (sent.as_json(), 409, 2.5)


class Rooms:
    """What holds need of a service: a quota, and a place for uploads."""

    def __init__(self, folder: Path) -> None:
        self.settings = SimpleNamespace(folder=folder)
        (folder / "alice").mkdir()
        self.quota, self.made = Quota(folder, most=100, reserve=0), 0

    @contextmanager
    def incoming(self, client: str, size: int) -> Iterator[Path]:
        with self.quota.hold(client, size):
            self.made += 1
            path = self.settings.folder / f"upload-{self.made}"
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)


def test_room_for_an_upload_is_given_back_by_its_front_by_its_job_or_by_time(tmp_path: Path) -> None:
    now = [0.0]
    holds = Holds(Rooms(tmp_path), seconds=10, clock=lambda: now[0])  # type: ignore[arg-type]
    first = holds.give("alice", 60)
    (tmp_path / first).write_bytes(b"half of it")
    with pytest.raises(Refusal, match="60 of 100 are used"):
        holds.give("alice", 60)
    holds.end(first)
    assert not (tmp_path / first).exists()
    second = holds.give("alice", 60)
    with holds.taken(second) as path:
        assert path == tmp_path / second
    lost = holds.give("alice", 60)  # its front is killed
    (tmp_path / lost).write_bytes(b"half of it")
    now[0] = 9.9
    with pytest.raises(Refusal, match="60 of 100 are used"):
        holds.give("alice", 60)
    now[0] = 10.1
    holds.give("alice", 60)
    assert not (tmp_path / lost).exists()
    with pytest.raises(Refusal, match="starting again") as found, holds.taken(lost):
        pass
    assert found.value.status == 503


def test_a_lock_of_another_process_is_waited_for_and_ends_with_it(tmp_path: Path) -> None:
    """The other process is killed while it has the lock: what it wrote before is seen by who comes next."""
    code = (
        "import os, signal, sys; from pathlib import Path; from heatfhe.server.store.locks import SharedLocks\n"
        "with SharedLocks(Path(sys.argv[1])).of('alice'):\n"
        "    print('mine', flush=True); sys.stdin.readline(); Path(sys.argv[1], 'said').write_text('before')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {"PYTHONPATH": str(ROOT / "src")}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environment, **pipes)
    assert other.stdout is not None
    assert other.stdin is not None
    assert other.stdout.readline() == "mine\n"
    locks = SharedLocks(tmp_path)
    with locks.of("bob"):  # nobody else's
        assert not (tmp_path / "said").exists()
    other.stdin.write("\n")
    other.stdin.flush()
    with locks.of("alice"), locks.of("alice"):
        assert (tmp_path / "said").read_text() == "before"
    assert other.wait() == -9
    assert sorted(p.name for p in (tmp_path / LOCKS).iterdir()) == ["alice", "bob"]


def test_counters_move_from_one_process_to_another_once() -> None:
    front, desk = Metrics(), Metrics()
    front.count("heatfhe_requests_total", 2, status="200")
    desk.count("heatfhe_requests_total", 3, status="200")
    grown = front.take()
    desk.add(grown)
    desk.add(front.take())
    front.count("heatfhe_requests_total", status="404")
    desk.add(front.take())
    text = desk.text({})
    assert 'heatfhe_requests_total{status="200"} 5\n' in text
    assert 'heatfhe_requests_total{status="404"} 1\n' in text


class Restarted:
    """A desk that tells of a job, and another process that does so after it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    async def news(self, client: str, job: str, after: int, seconds: float) -> News:
        self.asked.append((after, seconds))
        return NEWS if len(self.asked) == 1 else replace(NEWS, source="b")


def test_a_stream_ends_when_another_desk_answers() -> None:
    """Its listener asks again: the numbers of the former desk's events mean nothing to the new one."""
    desk = Restarted()

    async def listen() -> list[bytes]:
        return [line async for line in routes._events(desk, JOB, "alice")]  # type: ignore[arg-type]

    found = asyncio.run(listen())
    assert [line.split(b"\n")[0] for line in found] == [b"id: 0", b"id: 1", b"id: 2"]
    assert desk.asked == [(0, 0.0), (2, routes._BEAT)]


def test_fronts_need_a_cluster(source: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --ray ADDRESS"):
        Settings(folder=tmp_path, models=(source,), fronts=2)


def test_without_the_extra_it_says_what_to_install(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a server without Ray is not affected."""
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("ray_desk", "ray_seat"):
        monkeypatch.delitem(sys.modules, f"heatfhe.server.work.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=r"heatfhe\[ray\]"):
        start_desk(Settings(folder=tmp_path / "server", models=(source,), ray="local", fronts=2))
    with joined(source, tmp_path) as app, app.http() as http:
        assert http.get("/healthz").status_code == 200
        assert not (tmp_path / "server" / LOCKS).exists()


def test_steps_are_counted_once(source: ModelSource, tmp_path: Path) -> None:
    """Two inputs and six steps are seven runs of a program, whatever a worker says before the first of them."""
    with joined(source, tmp_path) as app:
        app.client("alice").generate([1, 2], 6)
        assert "heatfhe_steps_total 7\n" in app.service.metrics.text({})
