# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.errors import FileFormatError
from heatfhe.files import atomic_directory, atomic_write, canonical_json, plain, read_json, rebuilt, remade, write_json
from tests.mutations.mutator import digest as trusting


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), atomic_write(path) as f:
        f.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failed_directory_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with atomic_directory(folder) as partial:
        (partial / "x").write_text("1")
    with pytest.raises(RuntimeError), atomic_directory(folder) as partial:
        (partial / "x").write_text("2")
        raise RuntimeError
    assert (folder / "x").read_text() == "1"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]
    with atomic_directory(folder) as partial:
        (partial / "y").write_text("3")
    assert sorted(p.name for p in folder.iterdir()) == ["y"]


@given(
    st.dictionaries(
        st.text(max_size=5), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    )
)
def test_json_round_trip(tmp_path_factory: pytest.TempPathFactory, body: dict[str, object]) -> None:
    path = tmp_path_factory.mktemp("j") / "f.json"
    write_json(path, "kind", 3, body)
    assert canonical_json(read_json(path, "kind", (2, 3))) == canonical_json(body)


def test_json_refuses_what_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, "kind", 1, {"a": 1})
    with pytest.raises(FileFormatError, match="expected a other file, found 'kind'"):
        read_json(path, "other", (1,))
    with pytest.raises(FileFormatError, match="version 1 is not among"):
        read_json(path, "kind", (2,))
    raw = json.loads(path.read_text())
    raw["body"]["a"] = 2
    path.write_text(json.dumps(raw))
    with pytest.raises(FileFormatError, match="digest"):
        read_json(path, "kind", (1,))
    path.write_text(path.read_text()[:-9])
    with pytest.raises(FileFormatError, match="truncated or altered"):
        read_json(path, "kind", (1,))
    with pytest.raises(FileFormatError, match="no such file"):
        read_json(tmp_path / "none", "kind", (1,))


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "1e999", "9" * 5000, "[" * 4000 + "]" * 4000, "[" * 100_000, '"\\ud800"', '{"a":1,"a":2}'],
)
def test_json_that_no_writer_of_ours_makes_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Each with the digest a trusting reader would compute, so that only the suspicion is in its way."""
    path = tmp_path / "f.json"
    body = f'{{"a":{text}}}'.encode()
    path.write_bytes(b'{"digest":"%s","kind":"kind","version":1,"body":%s}' % (trusting(body).encode(), body))
    with pytest.raises(FileFormatError, match=r"f\.json: not valid JSON \("):
        read_json(path, "kind", (1,))


def test_a_folder_another_encoding_and_an_odd_envelope_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, "kind", 1, {"a": 1})
    good = path.read_text()
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_json(tmp_path, "kind", (1,))
    for data in (good.encode("utf-16"), b"\xef\xbb\xbf" + good.encode()):
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="not valid JSON"):
            read_json(path, "kind", (1,))
    for change in ({"version": True}, {"version": 1.0}, {"more": 1}):
        path.write_text(json.dumps({**json.loads(good), **change}))
        with pytest.raises(FileFormatError):
            read_json(path, "kind", (1,))


@dataclass(frozen=True)
class Sample:
    """A record of every kind of field."""

    name: str
    count: int
    sizes: tuple[float, ...] = ()
    rows: Mapping[int, float] = field(default_factory=dict)
    more: Sample | None = None

    def as_json(self) -> dict[str, Any]:
        rows = {str(k): v for k, v in self.rows.items()}
        more = None if self.more is None else self.more.as_json()
        return {"name": self.name, "count": self.count, "sizes": list(self.sizes), "rows": rows, "more": more}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Sample:
        rows = {int(k): float(v) for k, v in body.get("rows", {}).items()}
        more = None if body["more"] is None else cls.from_json(body["more"])
        return cls(body["name"], body["count"], tuple(body["sizes"]), rows, more)


GOOD: dict[str, Any] = {"name": "a", "count": 2, "sizes": [1, 2.5], "rows": {"1": 0.5}, "more": None}


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1}, {"count": True}, {"count": 2.0}, {"count": "2"}, {"sizes": [1, "2"]}, {"sizes": "12"},
        {"sizes": 1}, {"sizes": [True]}, {"rows": {"01": 0.5}}, {"rows": {"1": "0.5"}}, {"rows": {"1": True}},
        {"rows": {"x": 1}},
        {"rows": None}, {"surprise": 1}, {"more": {}}, {"more": []}, {"more": {**GOOD, "count": None}},
    ],
)  # fmt: skip
def test_a_record_says_what_its_file_says_or_is_refused(change: dict[str, Any]) -> None:
    """Nothing is filled in, dropped or bent into another kind; 1 and 1.0 are the same number."""
    told = {"where": "f.json", "remedy": "make it again"}
    assert rebuilt(Sample.from_json, GOOD, **told).as_json() == GOOD
    assert rebuilt(Sample.from_json, {**GOOD, "more": GOOD}, **told).more == Sample.from_json(GOOD)
    with pytest.raises(FileFormatError, match=r"f\.json: .*; make it again"):
        rebuilt(Sample.from_json, {**GOOD, **change}, **told)
    with pytest.raises(FileFormatError):
        rebuilt(Sample.from_json, {k: v for k, v in GOOD.items() if k != "rows"}, **told)


def test_a_record_is_plain_down_to_its_leaves() -> None:
    @dataclass(frozen=True, slots=True)
    class Leaf:
        size: float

        def as_json(self) -> dict[str, Any]:
            return {"own": self.size}

    @dataclass(frozen=True)
    class Branch:
        path: Path
        flag: bool | None = None

    @dataclass(frozen=True, kw_only=True)
    class Tree:
        leaves: tuple[Leaf, ...]
        branch: Branch
        by_name: Mapping[str, Any]
        hidden: str = "x"

        @property
        def count(self) -> int:
            return len(self.leaves)

    tree = Tree(leaves=(Leaf(1.5), Leaf(2.0)), branch=Branch(Path("a/b")), by_name={"row": (1, Leaf(0.0))})
    branch = {"path": "a/b", "flag": None}
    leaves, by_name = [{"own": 1.5}, {"own": 2.0}], {"row": [1, {"own": 0.0}]}
    assert plain(tree) == {"leaves": leaves, "branch": branch, "by_name": by_name, "hidden": "x"}
    assert list(plain(tree, ("count", "leaves")).items()) == [("count", 2), ("leaves", leaves)]


@dataclass(frozen=True)
class Place:
    """A part with a path, of which a sum may have two kinds."""

    path: Path
    size: float


@dataclass(frozen=True)
class Sum:
    """A record of parts."""

    one: Place | Sample
    some: tuple[Place, ...]
    pair: tuple[float, int]
    named: Mapping[str, Place | None]
    sample: Sample | None = None


def test_a_dataclass_written_plain_is_made_again_part_by_part() -> None:
    sample = Sample("a", 2, (1.0,), {1: 0.5})
    place = Place(Path("x/y"), 2.0)
    whole = Sum(place, (place, place), (1.0, 2), {"a": place, "b": None}, sample)
    body = json.loads(json.dumps(plain(whole)))
    assert body["one"] == {"path": "x/y", "size": 2.0}
    assert body["sample"] == sample.as_json()
    assert remade(Sum, body) == whole
    assert type(remade(Place, {"path": "x", "size": 3}).size) is float
    assert remade(Place, {"path": "x", "size": "3"}).size == "3"  # not bent to fit: rebuilt refuses it
    with pytest.raises(TypeError, match="size"):
        remade(Place, {"path": "x"})
    with pytest.raises(ValueError, match="unexpected keyword 'more'"):
        remade(Place, {"path": "x", "size": 1.0, "more": 1})
    with pytest.raises(ValueError, match="not in list"):
        remade(Sum, body | {"one": {"path": "x"}})
