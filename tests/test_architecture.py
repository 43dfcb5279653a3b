# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md is the house: its rooms are those of the import graph, its types are at the doors it names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.test_rooms import BESIDE, FILES, FLOORS, SOURCE, TORCH_FREE, exports, imports, room

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TYPES = sorted(set(re.findall(r"`([a-z]+(?:\.[a-z]+)*)\.([A-Z]\w+)`", PAGE)))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


@cache
def used() -> set[tuple[str, str]]:
    """Which room imports which, at run time."""
    pairs = {
        (room(path), module.split(".")[1]) for path in FILES for module, _ in imports(path) if "heatfhe." in module
    }
    return {
        (own, other) for own, other in pairs if own != other and own not in ("__init__", "__main__") and other in FLOORS
    }


def test_the_rooms_and_their_floors_are_those_of_the_walls() -> None:
    found = {name: int(floor) for floor, cell, *_ in rows("Rooms") for name in named(cell)}
    assert len(rows("Rooms")) == len(FLOORS)
    assert found == FLOORS
    assert [int(row[0]) for row in rows("Rooms")] == sorted(FLOORS.values(), reverse=True)


def test_who_looks_beside_is_who_does() -> None:
    found = {(own, other) for _, cell, _, beside in rows("Rooms") for own in named(cell) for other in named(beside)}
    assert found == BESIDE == {pair for pair in used() if FLOORS[pair[0]] <= FLOORS[pair[1]]}


def test_rooms_with_torch_are_marked() -> None:
    for _, cell, purpose, _ in rows("Rooms"):
        (name,) = named(cell)
        files = [path for path in FILES if room(path) == name]
        imported = any(module.split(".")[0] == "torch" for path in files for module, _ in imports(path))
        assert ("*torch*" in purpose) == imported, name
        assert not (imported and name in TORCH_FREE), name


@pytest.mark.parametrize(("place", "name"), TYPES)
def test_every_type_is_at_the_door_named(place: str, name: str) -> None:
    module = SOURCE.joinpath(*place.split("."))
    if module.with_suffix(".py").is_file():
        assert re.search(rf"^class {name}\b", module.with_suffix(".py").read_text(), flags=re.M), f"{place}.{name}"
    else:
        assert name in exports(module), f"heatfhe.{place} gives out no {name}"


def test_both_walks_pass_the_rooms_they_should() -> None:
    """A weight goes from its model to its engine; a token's walk stays on the side without torch."""
    walk = PAGE.partition("## A weight's way")[2].partition("## Walls")[0]
    steps = re.split(r"\n\d\. ", walk)[1:]
    assert len(steps) == 7
    first = [next(iter(re.findall(r"`([a-z]+)\.\w+`", step)), "") for step in steps]
    assert first == ["models", "sites", "lowering", "circuit", "planning", "planning", "ckks"]
    token = PAGE.partition("## A token's way")[2].partition("## A weight's way")[0]
    assert {place for place, _ in re.findall(r"`([a-z]+)\.([A-Z]\w+)`", token)} == {
        "client",
        "wire",
        "engine",
        "planning",
    }


def test_reading_the_code_still_takes_an_hour() -> None:
    minutes = re.findall(
        r"^\| (\d+) \| `src|^\| (\d+) \| `tests", (ROOT / "docs" / "reading.md").read_text(), flags=re.M
    )
    assert len(minutes) >= 14
    assert sum(int(a or b) for a, b in minutes) <= 60
