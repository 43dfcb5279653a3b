# SPDX-License-Identifier: Apache-2.0
"""runs/heat_gpt2_shapes.py on the CPU: plain training, the squeeze behind it, and both steps from what was saved."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def go(*options: str) -> dict[str, dict[str, Any]]:
    """The lines that it prints, by what they are of; the last of each."""
    words = [str(ROOT / "runs" / "heat_gpt2_shapes.py"), "--shape", "tiny", "--context", "32", "--batch", "2", *options]
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return {(line := json.loads(text))["what"]: line for text in ended.stdout.splitlines()}


@pytest.mark.slow
def test_a_shape_is_trained_squeezed_saved_and_timed(tmp_path: Path) -> None:
    saved = str(tmp_path / "tiny.pt")
    made = go("--plain-seconds", "2", "--plain-batch", "8", "--squeeze", "0.02", "--save", saved)
    assert made["plain"]["updates"] > 0
    assert made["squeezed"]["updates"] == 8
    assert made["squeezed"]["before"]["total"] == made["calibrated"]["total"] > 0
    timed = go("--updates", "3", "--load", saved, "--json", str(tmp_path / "tiny.json"))
    assert timed["heat"]["finite_updates"] == timed["control"]["finite_updates"] == 3
    kept = json.loads((tmp_path / "tiny.json").read_text())
    assert kept["calibrated"]["total"] == sum(kept["calibrated"]["iterations"].values())
    assert kept["time_ratio"] == pytest.approx(kept["heat"]["seconds"] / kept["control"]["seconds"])
