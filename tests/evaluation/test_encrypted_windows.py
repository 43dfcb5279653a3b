# SPDX-License-Identifier: Apache-2.0
"""runs/encrypted_windows.py on the clear engine: one process per window, resumed where it stopped, then a card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from heatfhe.engine.noise import NoiseTable, PeriodNoise
from tests.tiny import tiny_circuit

ROOT = Path(__file__).parents[2]


def go(circuit: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    noise = ["--noise", str(circuit.parent / "noise.json")]
    sizes = ["--windows", "2", "--positions", "3", "--params", "insecure-openfhe-11", "--engine", "clear"]
    words = [str(ROOT / "runs" / "encrypted_windows.py"), str(circuit), *sizes, *noise, "--out", str(out), *more]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)


def test_windows_are_resumed_and_judged(tmp_path: Path) -> None:
    circuit, out = tmp_path / "tiny", tmp_path / "out"
    tiny_circuit(layers=1, width=16, vocabulary=32, context=16).save(circuit)
    none = {1.0: 0.0}
    NoiseTable(
        name="none", engine="clear", params="insecure-openfhe-11", hardware="h", samples=1, sigma=none, constant=none,
        largest=none, periods={1: PeriodNoise(0.0, 0.0)},
    ).save(tmp_path / "noise.json")  # fmt: skip
    cut = go(circuit, out, "--limit", "-1")
    assert cut.returncode == 1
    assert "2 windows are not finished" in cut.stderr
    assert go(circuit, out, "--window", "1").returncode == 0
    kept = out / "tiny" / "window-001.npz"
    before = kept.stat().st_mtime_ns
    done = go(circuit, out, "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert kept.stat().st_mtime_ns == before  # a finished window is not run again
    card = json.loads((out / "card.json").read_text())
    (row,) = card["rows"]
    assert row["holds"]
    assert row["top-1"] == row["top-1 predicted"] == 1.0
    assert row["bootstraps"] > 0
    with np.load(out / "tiny" / "window-000.npz") as held:
        assert held["logits"].shape == (3, 32)
