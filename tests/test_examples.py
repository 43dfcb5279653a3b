# SPDX-License-Identifier: Apache-2.0
"""The four examples run, in order, at tiny size, and say what they claim; each stays under 60 lines."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRAINING = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the train extra")
SERVING = pytest.mark.skipif(importlib.util.find_spec("fastapi") is None, reason="needs the serve extra")


def run(name: str, *arguments: object, timeout: int = 500) -> str:
    path = next(p for p in EXAMPLES if p.name.startswith(name))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(path), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_there_are_four_and_they_are_short() -> None:
    assert [p.name[:2] for p in EXAMPLES] == ["01", "02", "03", "04"]
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) < 60, path.name


def test_approximating_shows_depth_and_error() -> None:
    lines = run("01").splitlines()
    counts = [line for line in lines if line.startswith("  count")]
    errors = [float(line.split()[-1]) for line in counts]
    levels = [int(line.split()[2]) for line in counts]
    assert levels == list(range(3, 10))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5


@TRAINING
def test_calibrating_exports_a_circuit_that_serves(tmp_path: Path) -> None:
    said = run("02", tmp_path / "circuit", "--windows", 2)
    assert "same token" in said
    assert float(said.split("same token ")[1].split("%")[0]) >= 95.0
    if importlib.util.find_spec("fastapi") is None:
        pytest.skip("serving needs the serve extra")
    answer = run("04", tmp_path / "circuit", "--simulate", "--tokens", 1, "--folder", tmp_path / "ask")
    assert "equal to the plaintext circuit: True" in answer


@TRAINING
@pytest.mark.slow
def test_training_learns_counts(tmp_path: Path) -> None:
    said = run("03", tmp_path / "heat", "--share", 0.1)
    assert "iterations per token calibrated" in said
    assert (tmp_path / "heat" / "circuit" / "circuit.json").is_file()


@TRAINING
@SERVING
@pytest.mark.slow
def test_asking_under_encryption(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="needs the native extra")
    run("02", tmp_path / "circuit", "--windows", 4)
    answer = run(
        "04", tmp_path / "circuit", "--tokens", 1, "--prompt", "Once", "--folder", tmp_path / "ask", timeout=1800
    )
    assert "equal to the plaintext circuit: True" in answer
