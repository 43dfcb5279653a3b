# SPDX-License-Identifier: Apache-2.0
"""runs/drift_default.py: a line for each circuit and set, kept, and not made twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def go(out: Path, *words: str) -> list[dict[str, Any]]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "runs" / "drift_default.py"), "--out", str(out), *words]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_bootstraps_with_and_without_a_precision(tmp_path: Path) -> None:
    """At five bits both circuits of the package need two bootstraps more at most, at both windows."""
    words = ("--circuits", "default,default-calibrated", "--plans-alone")
    made = go(tmp_path, *words)
    assert [(line["circuit"], line["params"]) for line in made] == [
        (circuit, params)
        for params in ("insecure-paper-12", "insecure-openfhe-12")
        for circuit in ("default", "default-calibrated")
    ]
    assert all(line["meets"] and line["bootstraps"][1] <= line["bootstraps"][0] + 2 for line in made)
    assert go(tmp_path, *words) == []


def test_what_noise_leaves_is_measured(tmp_path: Path) -> None:
    small = ("--windows", "2", "--positions", "3", "--seeds", "1")
    (line,) = go(tmp_path, "--circuits", "default-calibrated", "--params", "insecure-paper-12", *small)
    assert (line["runs"], line["collapsed"], line["finite"]) == (2, 0, 1.0)
    assert 0.5 <= line["top1"] <= 1.0
