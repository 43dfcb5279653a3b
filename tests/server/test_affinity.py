# SPDX-License-Identifier: Apache-2.0
"""A seat serves the key sets it has open, until passing another client over has cost more than opening its keys."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.server import ModelSource
from heatfhe.server.work.queue import FairQueue
from tests.server.serving import joined, served_circuit

OPENING = 8.0
Key = tuple[str, ...]


class Place:
    """A seat as the queue sees it, on a clock of the test: what is open, least recently used first."""

    count = 0

    def __init__(self, name: str, resident: int) -> None:
        self.name, self.resident, self.openings, self.open = name, resident, 0, list[Key]()
        self.free_at, self.session = 0.0, ""

    def open_keys(self) -> tuple[Key, ...]:
        return tuple(self.open)

    def serve(self, key: Key) -> bool:
        """Open a key set if it is not open; whether it had to be."""
        fresh = key not in self.open
        if not fresh:
            self.open.remove(key)
        self.open = [*self.open, key][-self.resident :]
        self.openings += fresh
        return fresh


class World:
    """Seats, a queue and a clock that goes from event to event; jobs are named by their client."""

    def __init__(self, seats: int, resident: int, *, seed: int = 0, spread: float = 1.0) -> None:
        self.now, self.turns = 0.0, list[tuple[float, str, str]]()
        self.queue = FairQueue(most=10_000, most_per_client=10_000, clock=lambda: self.now)
        self.seats = [Place(f"seat-{i}", resident) for i in range(seats)]
        self._random, self._spread, self._jobs = random.Random(seed), spread, 0
        for seat in self.seats:
            self.queue.join(seat)  # type: ignore[arg-type]

    def put(self, client: str) -> None:
        self._jobs += 1
        self.queue.put(client, f"{client}/{self._jobs}", client, key=("model", client, "keys"))

    def run(self, seconds: float) -> None:
        """Serve what waits, each job for about so long, until nothing does."""
        while len(self.queue) or any(seat.session for seat in self.seats):
            for seat in self.seats:
                if seat.free_at <= self.now:
                    self._turn(seat, seconds)
            busy = [seat.free_at for seat in self.seats if seat.free_at > self.now]
            self.now = min([*busy, self.now + OPENING / 16] if len(self.queue) else busy, default=self.now)

    def _turn(self, seat: Place, seconds: float) -> None:
        if seat.session:
            self.queue.release(seat.session)
            seat.session = ""
        before = set(self.queue._busy)
        client = self.queue.take(timeout=0, seat=seat)  # type: ignore[arg-type]
        if client is None:
            return
        (seat.session,) = set(self.queue._busy) - before
        self.turns.append((self.now, seat.name, client))
        took = OPENING * self._about() if seat.serve(("model", client, "keys")) else 0.0
        if took:
            self.queue.opened(("model", client, "keys"), took)
        seat.free_at = self.now + took + seconds * self._about()

    def _about(self) -> float:
        return self._spread ** self._random.uniform(-1, 1)

    @property
    def openings(self) -> int:
        return sum(seat.openings for seat in self.seats)


@pytest.mark.parametrize("seconds", [0.01, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("seed", range(8))
def test_six_clients_with_four_jobs_each_are_opened_at_most_eight_times(seconds: float, seed: int) -> None:
    """Two seats with room for three each; openings and jobs take up to a quarter more or less than usual."""
    world = World(2, 3, seed=seed, spread=1.25)
    for _ in range(4):
        for client in "abcdef":
            world.put(client)
    world.run(seconds)
    assert len(world.turns) == 24
    assert 6 <= world.openings <= 8


def test_a_lone_busy_client_uses_both_seats() -> None:
    world = World(2, 3)
    for _ in range(12):
        world.put("a")
    world.run(seconds=10.0)
    assert {seat.openings for seat in world.seats} == {1}
    assert {name for _, name, _ in world.turns} == {"seat-0", "seat-1"}
    assert world.now < 0.65 * 12 * 10.0 + 2 * OPENING


def test_a_lone_client_whose_jobs_are_short_stays_where_its_keys_are() -> None:
    world = World(2, 3)
    world.put("a")
    world.run(seconds=0.1)
    for _ in range(12):
        world.put("a")
    world.run(seconds=0.1)
    assert world.openings == 1


@given(
    jobs=st.lists(st.sampled_from("abcde"), min_size=1, max_size=40),
    resident=st.integers(1, 4),
    seconds=st.sampled_from([0.1, 3.0, 20.0]),
    seed=st.integers(0, 99),
)
def test_nobody_is_passed_over_for_longer_than_two_openings(
    jobs: list[str], resident: int, seconds: float, seed: int
) -> None:
    """However seats and clients fall: once a waiting client has been passed over for two openings, the next turn on any
    seat is its own, or that of one who has waited for as long."""
    world = World(2, resident, seed=seed)
    for client in jobs:
        world.put(client)
    left = {c: jobs.count(c) for c in jobs}
    world.run(seconds)
    assert len(world.turns) == len(jobs)
    served = dict.fromkeys(left, 0.0)
    for when, _, client in world.turns:
        for other in left:
            if left[other] and other != client and served[other] < served[client]:
                longest = 2 * OPENING + (OPENING + seconds) * (len(left) + 1)  # and a turn of everyone before it
                assert when - served[other] <= longest
        served[client], left[client] = when, left[client] - 1


def test_turns_come_round_among_those_who_are_open() -> None:
    world = World(1, 3)
    for client in "aaabbbccc":
        world.put(client)
    world.run(seconds=1.0)
    assert "".join(client for _, _, client in world.turns) == "abcabcabc"
    assert world.openings == 3


def test_a_seat_that_leaves_holds_nobodys_keys_and_takes_nothing() -> None:
    world = World(2, 3)
    first, second = world.seats
    world.put("a")
    world.run(seconds=1.0)
    world.put("a")
    assert world.queue.take(timeout=0, seat=second) is None  # type: ignore[arg-type]
    world.queue.leave(first)  # type: ignore[arg-type]
    assert world.queue.take(timeout=0, seat=first) is None  # type: ignore[arg-type]
    assert world.queue.take(timeout=0, seat=second) == "a"  # type: ignore[arg-type]


def test_two_devices_with_room_for_three_open_six_clients_once_each(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers, and openings that count as an hour, so that no stall of this machine is worth another one: 24 jobs,
    six openings, and every answer has the circuit's tokens."""
    with (
        joined(source, tmp_path, devices=("first", "second"), resident_workers=3) as app,
        ThreadPoolExecutor(6) as pool,
    ):
        queue = app.service.queue
        opened = queue.opened
        monkeypatch.setattr(queue, "opened", lambda key, _seconds: opened(key, 3600.0))
        clients = [app.client(f"client-{i}") for i in range(6)]
        queue.opened((clients[0].config.config_id,), 0.0)
        for client in clients:
            client.upload_keys()

        def ask(i: int) -> list[list[int]]:
            return [list(clients[i].generate([i + 1, k + 1], 1).tokens) for k in range(4)]

        said = list(pool.map(ask, range(6)))
        assert said == [[served_circuit().generate([i + 1, k + 1], 1).tokens for k in range(4)] for i in range(6)]
        assert "\nheatfhe_openings_total 6\n" in app.service.metrics.text(app.service.gauges())
