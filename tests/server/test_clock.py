# SPDX-License-Identifier: Apache-2.0
"""Ages under a wall clock that jumps: nothing goes before its time, and what is old does go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.server import ModelSource
from heatfhe.server.store.clock import DOWN_SECONDS, SteadyClock
from tests.server.serving import BigKeyring, joined

DAY = 86_400.0
JUMPS = [0.0, 31 * DAY, -31 * DAY, 1.0, -1.0]


class Clocks:
    """A wall clock that can be set and a monotonic one that cannot."""

    def __init__(self) -> None:
        self.wall, self.passed = 1.7e9, 100.0

    def tick(self, seconds: float, jump: float = 0.0) -> None:
        self.wall, self.passed = self.wall + seconds + jump, self.passed + seconds

    def clock(self, path: Path) -> SteadyClock:
        made = SteadyClock(path, wall=lambda: self.wall, passed=lambda: self.passed)
        made.start()
        return made


def test_a_wall_clock_that_behaves_is_followed_exactly(tmp_path: Path) -> None:
    clocks = Clocks()
    clock = clocks.clock(tmp_path / "clock.json")
    for seconds in (0.0, 1.0, 59.0, 3600.0, 40 * DAY):
        clocks.tick(seconds)
        assert clock.now() == clocks.wall
    clock.save()
    clocks.wall += 3600.0  # the server was down for an hour, and the machine was started anew
    clocks.passed = 3.0
    assert clocks.clock(tmp_path / "clock.json").now() == clocks.wall


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(st.floats(0, DAY), st.sampled_from(JUMPS)), max_size=12))
def test_whatever_the_wall_clock_does_ages_stay_within_twice_the_time_that_passed(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[float, float]]
) -> None:
    clocks = Clocks()
    clock = clocks.clock(tmp_path_factory.mktemp("clock") / "clock.json")
    begin, old, start = clock.now(), clock.now(), clocks.passed
    for seconds, jump in turns:
        clocks.tick(seconds, jump)
        now = clock.now()
        assert now >= old
        old, spent = now, clocks.passed - start
        assert spent / 2 - 1e-3 <= now - begin <= 2 * spent + 1e-3


def test_a_jump_between_two_runs_counts_for_half_a_day_once(tmp_path: Path) -> None:
    clocks = Clocks()
    begin = clocks.clock(tmp_path / "clock.json").now()
    clocks.wall += 31 * DAY
    for _ in range(5):
        assert clocks.clock(tmp_path / "clock.json").now() == begin + DOWN_SECONDS
    clocks.wall -= 62 * DAY
    assert clocks.clock(tmp_path / "clock.json").now() == begin + DOWN_SECONDS


def test_a_wrong_clock_is_forgotten_when_it_is_put_right(tmp_path: Path) -> None:
    clocks = Clocks()
    clock = clocks.clock(tmp_path / "clock.json")
    clocks.tick(600.0, 31 * DAY)
    assert clock.now() - 1.7e9 == 1200.0  # ten minutes count as twenty
    clocks.tick(600.0, -31 * DAY)
    clocks.tick(600.0)
    assert clock.now() == clocks.wall


def test_an_unreadable_note_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "clock.json").write_text("{")
    assert Clocks().clock(tmp_path / "clock.json").now() == 1.7e9


@pytest.mark.parametrize("days", [31, -31])
def test_a_clock_set_wrong_erases_nothing(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """While the server runs, and over a restart: jobs (kept a day), sessions (a week) and keys (a month) stay."""
    real = time.time
    with joined(source, tmp_path) as app:
        client = app.client(keyring=BigKeyring)
        kept = client.generate([1, 2], 2, keep=True)
        (job,) = app.service.jobs.of("alice")
        monkeypatch.setattr(time, "time", lambda: real() + days * DAY)
        later = client.generate([1, 2], 2, keep=True)
        app.service.sweep()
        assert {s["session"] for s in client.sessions()} == {kept.session, later.session}
        assert len(app.service.jobs.of("alice")) == 2
    with joined(source, tmp_path) as app:
        app.service.sweep()
        client = app.client(keyring=BigKeyring)
        assert {s["session"] for s in client.sessions()} == {kept.session, later.session}
        assert [s["complete"] for s in client.key_sets()] == [True]
        assert app.service.jobs.get("alice", job.job).state == "done"
        monkeypatch.setattr(time, "time", real)
        app.service.sweep()
        assert len(app.service.jobs.of("alice")) == 2
        assert {s["session"] for s in client.sessions()} == {kept.session, later.session}
