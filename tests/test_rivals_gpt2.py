# SPDX-License-Identifier: Apache-2.0
"""The plans of docs/results/rivals-gpt2.md, made again from the calibrations that are kept."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "cards" / "gpt2-small-wiki_h200_202611"
ROWS = {
    "calibrated 1e-4": "atlas-0/calibration.json",
    "ATLAS, seed 0": "atlas-0/seed-0/chosen.calibration.json",
    "**HEAT, seed 0**": "heat-0/circuit/calibration.json",
    "**HEAT, seed 1**": "heat-1/circuit/calibration.json",
    "**HEAT, seed 2**": "heat-2/circuit/calibration.json",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "HEAT, seed 0" in name else pytest.mark.slow) for name in ROWS]
)
def test_a_row_is_what_its_calibration_is_planned_with(name: str, tmp_path: Path) -> None:
    for path in KEPT.glob("*.tar.xz"):
        with tarfile.open(path) as tar:
            tar.extractall(tmp_path, filter="data")
    command = [sys.executable, str(ROOT / "runs" / "plan_calibrations.py"), f"row={tmp_path / ROWS[name]}"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (refreshes, seconds), (less, fewer) = found["generate"], found["logits"]
    cells = [name, f"{found['iterations']}", *map(str, found["by_family"].values())]
    cells += [f"{refreshes}, {less}", f"{seconds:.2f}, {fewer:.2f}"]
    table = (ROOT / "docs" / "results" / "rivals-gpt2.md").read_text().replace(f"**{found['iterations']}**", cells[1])
    assert f"| {' | '.join(cells)} |" in table
