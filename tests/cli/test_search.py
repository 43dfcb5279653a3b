# SPDX-License-Identifier: Apache-2.0
"""heat search on the embedded calibrated circuit: its files, its JSON, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="candidates run on torch")
pytest.importorskip("pymoo", reason="the search needs pymoo's NSGA-II")

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.files import read_json

SHORT = ["--population", "4,6", "--generations", "1,2", "--tokens", "64", "--judge-tokens", "64", "--bound", "2"]


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    text = "Once upon a time there was a little girl. She had a red ball and a dog. One day they went to the park. "
    path = tmp_path / "ids.npy"
    np.save(path, np.array(Circuit.from_pretrained("default-calibrated").encode(text * 20))[:400])
    return path


def test_a_search_exports_the_circuit_it_chose(ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "atlas"
    arguments = ["search", "default-calibrated", "--text", str(ids), "-o", str(out), *SHORT]
    assert main([*arguments, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body == read_json(out / "front.json", "heatfhe-front", (1,))
    assert body["candidates"] == 4 * 2 + 6 * 3
    assert len(body["ends"]) == 6
    made, parent = Circuit.load(out / "circuit"), Circuit.from_pretrained("default-calibrated")
    assert made.name == f"{parent.name}-atlas"
    assert sum(made.calibration.iterations().values()) == body["chosen"]["iterations"]
    assert made.calibration.softmaxes["h.0.attn"].fit == parent.calibration.softmaxes["h.0.attn"].fit
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "calibrated" in said
    assert "chosen" in said
    assert f"wrote {out / 'circuit'}" in said
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib")
    assert (out / "front.png").read_bytes().startswith(b"\x89PNG")
    assert main([*arguments, "--seed", "1"]) == 1
    assert "begun with seed 0, not 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--bound", "1e-9"], "bound 1e-09 is infeasible: the calibrated circuit itself is off by"),
        (["--population", "4"], "--population takes two whole numbers"),
        (["--population", "2,2"], "at least 4"),
        (["--generations", "1,x"], "--generations takes two whole numbers"),
        (["--tokens", "1"], "--tokens and --judge-tokens are at least 2"),
        (["--tokens", "4096"], "400 tokens, the search needs 4"),
    ],
)
def test_refusals(change: list[str], words: str, ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", "default-calibrated", "--text", str(ids), "-o", str(tmp_path / "atlas"), *SHORT, *change]
    assert main(arguments) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "atlas" / "front.json").exists()


def test_a_circuit_without_a_text_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Circuit.from_pretrained("default-calibrated").save(tmp_path / "circuit")
    assert main(["search", str(tmp_path / "circuit"), "-o", str(tmp_path / "atlas")]) == 1
    assert "no text: give --text FILE" in capsys.readouterr().err
