# SPDX-License-Identifier: Apache-2.0
"""Cost tables: the shipped figures, interpolation, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import ConfigError, FileFormatError, PlanError
from heatfhe.planning import default_cost, preset
from heatfhe.planning.cost import INSTRUCTIONS, SINCE_2, CostTable, cost_table, cost_tables

SHIPPED = (
    "cheddar-h200", "equivalents", "fideslib-h200", "native-16-r40-lean-h200", "native-cpu-11", "native-cpu-12",
    "native-cpu-13", "openfhe-cpu-11", "openfhe-cpu-12", "openfhe-cpu-16", "paper-a100", "unit",
)  # fmt: skip


NEW: dict[str, object] = {
    "pairs": {1: 1.5, 16: 2.0, 256: 8.0, 1024: 17.0},
    "seconds": {**dict.fromkeys(INSTRUCTIONS, (0.5, 1.0)), "drop": (0.25,)},
}


def make(**changes: object) -> CostTable:
    facts: dict[str, object] = {
        "name": "mine", "provenance": "test", "hardware": "a desk", "slots": 1024,
        "bootstrap": {1: 1.0, 16: 2.0, 256: 4.0, 1024: 10.0}, "seconds": dict.fromkeys(INSTRUCTIONS, (0.5, 1.0)),
    }  # fmt: skip
    return CostTable(**{**facts, **changes})  # type: ignore[arg-type]


def test_a_linear_map_has_prices_of_its_own_or_those_of_its_parts() -> None:
    work = {"rotate": 1, "linear.rotate": 2, "linear.add": 3, "linear.multiply_plain": 5}
    assert make().price(work, 1) == 3 * make().seconds["rotate"][1] + 3 * 1.0 + 5 * 1.0
    maps = {f"linear.{word}": (0.0, price) for word, price in (("rotate", 7.0), ("add", 0.0), ("multiply_plain", 0.1))}
    rich = make(**NEW | {"seconds": {**NEW["seconds"], **maps}})  # type: ignore[dict-item]
    assert rich.price(work, 1) == pytest.approx(1.0 + 2 * 7.0 + 5 * 0.1)


def test_every_shipped_table_prices_every_instruction_and_says_where_from() -> None:
    assert cost_tables() == SHIPPED
    for name in SHIPPED:
        table = cost_table(name)
        assert table.name == name
        assert set(table.seconds) == {*INSTRUCTIONS, *(SINCE_2 if table.version == 2 else ())}
        assert len(table.provenance) > 30


def test_quoted_and_measured_figures() -> None:
    assert cost_table("paper-a100").refresh(32768, 32768) == 0.0821
    assert cost_table("paper-a100").price({"rotate": 2, "add": 1}, 8) == pytest.approx(2 * 0.575e-3 + 0.047e-3)
    assert cost_table("cheddar-h200").refresh(32768, 32768) == 0.0212
    assert cost_table("fideslib-h200").refresh(32768, 32768) == 0.0526
    assert cost_table("openfhe-cpu-12").refresh(2048, 2048) == 0.93
    assert cost_table("openfhe-cpu-12").refresh(128, 2048) == 0.527
    assert cost_table("unit").refresh(1, 2048) == cost_table("unit").refresh(2048, 2048) == 1.0


def test_a_refresh_between_two_periods_is_linear_in_the_logarithm() -> None:
    table = make()
    assert [table.refresh(p, 1024) for p in (1, 2, 4, 16, 64, 256)] == [1.0, 1.25, 1.5, 2.0, 3.0, 4.0]
    assert table.refresh(512, 1024) == 4.0  # still sparse: no jump to the full price
    assert table.refresh(1024, 1024) == 10.0
    assert table.refresh(64, 64) == 10.0  # fills its ring


def test_a_price_by_level_holds_beyond_the_last_entry() -> None:
    assert [make().price({"rotate": 2}, level) for level in (0, 1, 7)] == [1.0, 2.0, 2.0]


def test_version_2_prices_pairs_and_drops_and_version_1_has_them_as_they_were(tmp_path: Path) -> None:
    old, new = make(), make(**NEW)
    assert (old.version, new.version) == (1, 2)
    assert [old.refresh(p, 1024, pair=True) for p in (1, 4, 1024)] == [1.0, 1.5, 10.0]
    assert [new.refresh(p, 1024, pair=True) for p in (1, 4, 512, 1024)] == [1.5, 1.75, 8.0, 17.0]
    assert [new.refresh(p, 1024) for p in (1, 4, 512, 1024)] == [1.0, 1.5, 4.0, 10.0]
    assert [t.price({"drop": 3, "add": 1}, 1) for t in (old, new)] == [1.0, 1.75]
    for table in (old, new):
        table.save(tmp_path / "t.json")
        assert json.loads((tmp_path / "t.json").read_text())["version"] == table.version
        assert cost_table(tmp_path / "t.json") == table
    assert "pairs" not in old.as_json()


def test_what_is_started_by_itself_may_have_a_price_of_its_own(tmp_path: Path) -> None:
    table = make(**NEW, started={"add": (2.0, 3.0)})
    work = {"add": 2, "rotate": 1}
    assert [table.price(work, level) for level in (0, 1)] == [1.5, 3.0]
    assert [table.price(work, level, started=True) for level in (0, 1, 9)] == [4.5, 7.0, 7.0]
    assert make(**NEW).price(work, 1, started=True) == make(**NEW).price(work, 1)
    table.save(tmp_path / "t.json")
    assert cost_table(tmp_path / "t.json") == table
    assert "started" not in make(**NEW).as_json()
    raised = CostTable.measured(
        name="m", provenance="timed", hardware="a desk", slots=16, bootstrap={16: 3.0}, pairs={16: 4.0},
        seconds={"add": (3.0, 4.0), "drop": (2.0,)}, started={"add": (5.0, 1.0)},
    )  # fmt: skip
    assert raised.started == {"add": (5.0, 5.0)}


def test_measured_tables_are_made_monotone() -> None:
    table = CostTable.measured(
        name="m", provenance="timed", hardware="a desk", slots=16, bootstrap={1: 2.0, 16: 1.0},
        seconds={"add": (3.0, 1.0, 4.0)},
    )  # fmt: skip
    assert table.seconds["add"] == (3.0, 3.0, 4.0)
    assert table.bootstrap == {1: 2.0, 16: 2.0}
    table = CostTable.measured(
        name="m", provenance="timed", hardware="a desk", slots=16, bootstrap={1: 2.0, 16: 3.0},
        seconds={"add": (3.0,), "drop": (2.0, 1.0)}, pairs={1: 5.0, 16: 2.5},
    )  # fmt: skip
    assert table.seconds["drop"] == (2.0, 2.0)
    assert table.pairs == {1: 5.0, 16: 5.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provenance": " "}, "says no provenance"),
        ({"bootstrap": {1: 1.0}}, "no price for a bootstrap of all 1024 slots"),
        ({"bootstrap": {3: 1.0, 1024: 1.0}}, "powers of two"),
        ({"bootstrap": {1: 5.0, 1024: 1.0}}, "must not be cheaper"),
        ({"seconds": {"rotate": (2.0, 1.0)}}, "rotate needs at least one price, never falling"),
        ({"seconds": {"fly": (1.0,)}}, "unknown instruction 'fly'"),
        ({"seconds": {"add": (float("nan"),)}}, "finite"),
        ({**NEW, "pairs": {}}, "both drops and pairs"),
        ({"started": {"add": (1.0,)}}, "started steps need version 2"),
        ({**NEW, "started": {"linear.add": (1.0,)}}, "a price in recordings"),
        ({**NEW, "started": {"add": (2.0, 1.0)}}, "add needs at least one price, never falling"),
        ({**NEW, "started": {"add": (-1.0,)}}, "finite and not negative"),
        ({"pairs": NEW["pairs"]}, "both drops and pairs"),
        ({**NEW, "pairs": {1024: 17.0}}, "of every period, or neither"),
        ({**NEW, "pairs": {1: 1.5, 16: 1.75, 256: 8.0, 1024: 17.0}}, "cheaper than one refresh"),
        ({**NEW, "pairs": {1: 9.0, 16: 2.0, 256: 8.0, 1024: 17.0}}, "must not be cheaper"),
        ({**NEW, "pairs": {1: 1.5, 16: 2.0, 256: 8.0, 1024: float("inf")}}, "finite"),
    ],
)
def test_bad_tables_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def test_a_missing_instruction_is_named() -> None:
    with pytest.raises(PlanError, match="has no price for 'tensor', of which 4 are needed"):
        make(seconds={"add": (1.0,)}).price({"add": 1, "tensor": 4}, 2)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(full=st.floats(1, 100), sparse=st.floats(0.01, 1), prices=st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_tables_survive_json(full: float, sparse: float, prices: list[float]) -> None:
    table = make(bootstrap={1: sparse, 1024: full}, seconds={"rotate": tuple(sorted(prices))})
    assert CostTable.from_json(table.as_json()) == table


def test_a_users_own_table_replaces_the_shipped_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    make().save(path)
    assert cost_table(path) == make()
    path.write_text(path.read_text().replace("10.0", "11.0"))
    with pytest.raises(FileFormatError, match="digest"):
        cost_table(path)
    with pytest.raises(ConfigError, match="unknown cost table 'mine'; have: cheddar-h200"):
        cost_table("mine")


def test_the_default_table_is_the_sets_own_where_one_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = preset("native-16-r40"), preset("openfhe-16")
    assert [default_cost(ours, d) for d in ("cpu", "cuda")] == ["native-16-r40-lean-h200"] * 2  # measured there alone
    assert default_cost(preset("native-16-r40-lean"), "cuda") == "native-16-r40-lean-h200"
    assert [default_cost(p) for p in (theirs, preset("paper-16"))] == ["openfhe-cpu-16", "paper-a100"]
    shipped = (*SHIPPED, "native-16-r40-cpu", "native-16-r40-h200")
    monkeypatch.setattr(sys.modules[default_cost.__module__], "cost_tables", lambda: shipped)
    assert [default_cost(ours, d) for d in ("cpu", "cuda")] == ["native-16-r40-cpu", "native-16-r40-h200"]
    assert default_cost(preset("insecure-native-11"), "cuda") == "cheddar-h200"  # not measured at that set
    toys = ("insecure-native-11", "insecure-native-12", "insecure-native-12-r40", "insecure-native-13")
    assert [default_cost(preset(t)) for t in toys] == [f"native-cpu-{k}" for k in (11, 12, 12, 13)]
    assert default_cost(theirs) == "openfhe-cpu-16"
