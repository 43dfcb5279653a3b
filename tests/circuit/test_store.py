# SPDX-License-Identifier: Apache-2.0
"""A circuit directory: round trips bit for bit, and refuses whatever is truncated, altered or foreign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.errors import FileFormatError, HeatError
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


@pytest.mark.parametrize("name", ["weights.safetensors", "calibration.json"])
def test_no_file_is_read_without_its_hash(folder: Path, name: str) -> None:
    raw = json.loads((folder / "circuit.json").read_text())
    del raw["body"]["files"][name]
    raw["digest"] = json_digest(raw["body"])
    (folder / "circuit.json").write_text(json.dumps(raw))
    with pytest.raises(FileFormatError, match=f"no hash is given for {name}"):
        Circuit.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body["stages"].pop(0), "before it is written"),
        (lambda body: body["stages"].pop(), None),  # an argmax may be missing
        (lambda body: body["stages"].insert(1, body["stages"][0]), "a second time"),
        (lambda body: body["shape"].update(layers=3), "2 attentions do not make 3 layers"),
        (lambda body: body["shape"].update(layers=True), "of the wrong kind"),
        (lambda body: body["shape"].update(hidden=63), "64 wide, expected 63"),
        (lambda body: body["stages"][1].update(eps=1e-6), "another width or eps"),
        (lambda body: body["stages"][3].update(heads=4), "has 4 heads"),
        (lambda body: body["stages"][8].update(function="relu"), "computes relu"),
        (lambda body: body["stages"][2].update(residual=0), "of the wrong kind"),
        (lambda body: body.update(surprise=1), "unexpected keyword"),
        (lambda body: body.pop("notes"), "missing"),
    ],
)
def test_a_header_whose_parts_do_not_fit_is_refused(folder: Path, change: Any, message: str | None) -> None:
    """With its digest recomputed, as somebody hostile would."""
    raw = json.loads((folder / "circuit.json").read_text())
    change(raw["body"])
    raw["digest"] = json_digest(raw["body"])
    (folder / "circuit.json").write_text(json.dumps(raw))
    if message is None:
        assert Circuit.load(folder).run([1, 2]).shape == (2, 64)
        return
    with pytest.raises(HeatError, match=message):
        Circuit.load(folder)


def test_no_folder_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="heat export"):
        Circuit.load(tmp_path / "none")
