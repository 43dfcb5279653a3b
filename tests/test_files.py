# SPDX-License-Identifier: Apache-2.0
"""Files are written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.errors import FileFormatError
from heatfhe.files import atomic_directory, atomic_write, canonical_json, read_json, write_json


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
