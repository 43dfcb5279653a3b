# SPDX-License-Identifier: Apache-2.0
"""A circuit directory: round trips bit for bit, and refuses whatever is truncated, altered or foreign."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.errors import FileFormatError
from heatfhe.files import json_digest
from tests.tiny import tiny_circuit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_circuit(seed=1).save(tmp_path / "c")
    return tmp_path / "c"


def test_round_trip_is_exact(folder: Path) -> None:
    made, read = tiny_circuit(seed=1), Circuit.load(folder)
    assert read.digest == made.digest
    assert read.calibration.as_json() == made.calibration.as_json()
    np.testing.assert_array_equal(read.run([1, 2, 3]), made.run([1, 2, 3]))


def test_saving_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    Circuit.load(folder).save(tmp_path / "d")
    for path in folder.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "d" / path.relative_to(folder)).read_bytes()


@pytest.mark.parametrize("name", ["weights.safetensors", "calibration.json", "circuit.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damage_is_noticed(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "delete":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"."):
        Circuit.load(folder)


def test_names_cannot_leave_the_folder(folder: Path) -> None:
    raw = json.loads((folder / "circuit.json").read_text())
    raw["body"]["files"]["../../etc/passwd"] = "0" * 64
    raw["digest"] = json_digest(raw["body"])
    (folder / "circuit.json").write_text(json.dumps(raw))
    with pytest.raises(FileFormatError, match="leaves the circuit's directory"):
        Circuit.load(folder)


def test_no_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="heat export"):
        Circuit.load(tmp_path / "none")
