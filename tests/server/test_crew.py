# SPDX-License-Identifier: Apache-2.0
"""Seats come while jobs wait and go when they are idle; a seat's folder is known by its mark, its models by digests."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heatfhe.errors import ConfigError, MissingExtraError
from heatfhe.server import ModelSource, Settings
from heatfhe.server.metrics import METRICS
from heatfhe.server.service import Service
from heatfhe.server.store.shelf import read_mark, shelve, store_mark
from heatfhe.server.work.crew import Crew
from heatfhe.server.work.program import load_models
from tests.server.serving import ROOT


class Row:
    """The dispatcher and the queue as a crew sees them, on a clock of the test."""

    def __init__(self) -> None:
        self.seats, self.waits, self.now, self.free = list[str](), 0.0, 0.0, dict[str, float]()

    def add(self, seat: str) -> None:
        self.seats.append(seat)

    def remove(self, seat: str) -> None:
        self.seats.remove(seat)
        self.free.pop(seat)

    def idle(self) -> list[tuple[str, float]]:
        return list(self.free.items())

    def longest_wait(self) -> float:
        return self.waits


def crew_of(row: Row, least: int = 1, most: int = 3) -> Crew:
    made: Any = lambda number: f"seat-{number}"  # noqa: E731
    times = {"grow_seconds": 10.0, "idle_seconds": 60.0}
    return Crew(row, row, made, least=least, most=most, clock=lambda: row.now, **times)  # type: ignore[arg-type]


def test_seats_follow_the_waiting_time_between_their_bounds() -> None:
    row = Row()
    crew = crew_of(row)
    crew._add()
    seen = []
    for row.now in range(0, 100, 5):  # a job has waited since the beginning
        row.waits = float(row.now)
        crew.look()
        seen.append(len(row.seats))
    assert seen[:6] == [1, 1, 2, 2, 3, 3]  # at 10 s, at 20 s, and never a fourth
    assert max(seen) == 3
    row.waits, row.free = 0.0, {"seat-1": 100.0, "seat-2": 110.0, "seat-3": 105.0}
    ends = []
    for row.now in range(100, 220, 5):
        before = set(row.seats)
        crew.look()
        ends += [(row.now, seat) for seat in before - set(row.seats)]
    assert ends == [(160, "seat-1"), (165, "seat-3")]  # the longest idle first, and one stays
    row.waits, row.now = 99.0, 300.0
    crew.look()
    assert row.seats == ["seat-2"]  # nothing waits for a seat while one is idle


def test_settings_of_seats_are_checked(source: ModelSource, tmp_path: Path) -> None:
    base = Settings(folder=tmp_path, models=(source,))
    for seats in ((0, 1), (3, 2)):
        with pytest.raises(ConfigError, match="seats must be at least 1"):
            replace(base, seats=seats)
    with pytest.raises(ConfigError, match="give --ray"):
        replace(base, seats=(1, 2))
    with pytest.raises(ConfigError, match="same device"):
        replace(base, ray="auto", devices=("cuda:0", "cuda:1"))
    with pytest.raises(ConfigError, match="Ray's client protocol"):
        replace(base, ray="ray://head:10001")


def test_without_the_extra_a_server_on_ray_says_what_to_install(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "heatfhe.server.work.ray_seat", raising=False)
    settings = Settings(folder=tmp_path / "server", models=(source,), simulate=True, ray="local")
    with pytest.raises(MissingExtraError, match=r"heatfhe\[ray\]"):
        Service(settings, load_models(settings))
    plain = replace(settings, ray="")
    Service(plain, load_models(plain))  # nothing else asks for it


def test_a_model_is_shelved_once_and_a_folder_keeps_its_mark(source: ModelSource, tmp_path: Path) -> None:
    assert read_mark(tmp_path) == ""
    mark = store_mark(tmp_path)
    assert (len(mark), store_mark(tmp_path), read_mark(tmp_path)) == (32, mark, mark)
    left = tmp_path / "models" / ".abc.1.partial"
    left.mkdir(parents=True)
    named = shelve(tmp_path, source, "abc")
    assert (named.plan, named.circuit) == (Path("models/abc/plan.json"), Path("models/abc/circuit"))
    assert (tmp_path / named.plan).read_bytes() == source.plan.read_bytes()
    assert not left.exists()
    (tmp_path / named.plan).write_bytes(b"kept")
    shelve(tmp_path, source, "abc")
    assert (tmp_path / named.plan).read_bytes() == b"kept"


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    board = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = set(re.findall(r"heatfhe_\w+", " ".join(expressions)))
    assert {re.sub(r"_bucket$", "", name) for name in named} == set(METRICS)
