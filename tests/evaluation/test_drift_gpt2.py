# SPDX-License-Identifier: Apache-2.0
"""runs/drift_gpt2.py on the CPU: a row for all values, one by value, in pieces, and nothing is done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny import tiny_circuit

ROOT = Path(__file__).parents[2]


def go(circuit: Path, out: Path, seconds: str, *options: str) -> list[dict[str, Any]]:
    words = [str(ROOT / "runs" / "drift_gpt2.py"), f"tiny={circuit}", "--heldout", str(circuit.parent / "text.npy")]
    sizes = [
        "--windows",
        "2",
        "--positions",
        "3",
        "--seeds",
        "2",
        "--by-value",
        "1,2",
        "--params",
        "insecure-openfhe-11",
    ]
    more = ["--out", str(out), "--device", "cpu", "--seconds", seconds, *options]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, *words, *sizes, *more], env=env, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_rows_are_made_in_pieces_and_kept(tmp_path: Path) -> None:
    circuit, out = tmp_path / "tiny", tmp_path / "out"
    tiny_circuit(layers=1, width=16, vocabulary=32, context=16).save(circuit)
    np.save(tmp_path / "text.npy", np.random.default_rng(0).integers(0, 32, 64).astype(np.uint16))
    (stopped,) = go(circuit, out, "0")
    assert stopped["stopped"] == "start the same command again to go on"
    everywhere, by_value = go(circuit, out, "600")
    assert (everywhere["noise"], everywhere["collapsed"], everywhere["seeds"]) == ("all", "0/4", 2)
    assert everywhere["bootstraps"] > 0
    assert 0.0 <= everywhere["kl"] < 1e-3
    assert (by_value["noise"], by_value["windows"], by_value["positions"]) == ("by value", 1, 2)
    assert by_value["amplifies_most"] == by_value["first"][0][1]
    assert abs(sum(by_value["by_operator"].values()) - 1.0) < 1e-9
    assert go(circuit, out, "600") == []
    (precise,) = go(circuit, out, "600", "--precision", "none,5")
    assert (precise["precision"], precise["noise"]) == (5.0, "all")
    assert go(circuit, out, "600") == go(circuit, out, "600", "--precision", "none,5") == []
