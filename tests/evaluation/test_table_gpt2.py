# SPDX-License-Identifier: Apache-2.0
"""runs/table_gpt2.py: what several jobs left becomes one table, and what is missing a dash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FAMILIES = ("norm_goldschmidt", "norm_newton", "softmax_init", "softmax_refine")


def drifted(out: Path, circuit: str, refine: int, collapsed: int) -> None:
    facts: dict[str, Any] = {
        "circuit": circuit, "noise": "all", "windows": 64, "iterations": dict(zip(FAMILIES, (9, 0, 20, refine))),
        "bootstraps": 30, "predicted_seconds": 1.5, "clear_perplexity": 31.0, "perplexity": 31.5, "top1": 0.995,
        "collapsed": f"{collapsed}/192",
    }  # fmt: skip
    place = out / f"noise-{circuit}"
    place.mkdir(parents=True)
    precise = facts | {"bootstraps": 32, "precision": 5.0, "collapsed": "0/192"}
    rows = [facts, precise, {"circuit": circuit, "noise": "by value"}]
    (place / "drift.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_seeds_become_a_row_and_what_is_missing_a_dash(tmp_path: Path) -> None:
    for number, refine in enumerate((20, 22)):
        drifted(tmp_path, f"heat-{number}", refine, number)
    drifted(tmp_path, "calibrated", 60, 192)
    (tmp_path / "judge-0").mkdir()
    judged = [{"what": "hard tokens"}, {"what": "text", "perplexity": 35.0}, {"what": "text", "perplexity": 99.0}]
    (tmp_path / "judge-0" / "stress.jsonl").write_text("\n".join(map(json.dumps, judged)))
    (tmp_path / "judge-control-0").mkdir()
    (tmp_path / "judge-control-0" / "stress.jsonl").write_text(json.dumps({"what": "text", "perplexity": 34.9}))
    command = [sys.executable, str(ROOT / "runs" / "table_gpt2.py"), str(tmp_path), "--json", str(tmp_path / "t.json")]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert ended[2] == "| calibrated (1) | 89 | 9 | 0 | 20 | 60 | 30 | 1.5 | - | 31 | 31.5 | 99.5 | 192/192 |"
    heat = "| heat (2) | 50 (49 to 51) | 9 | 0 | 20 | 21 (20 to 22) | 30 | 1.5 | 35 | 31 | 31.5 | 99.5 | 1/384 |"
    assert ended[3] == "| calibrated, 5 bits (1) | 89 | 9 | 0 | 20 | 60 | 32 | 1.5 | - | 31 | 31.5 | 99.5 | 0/192 |"
    assert ended[4] == heat
    assert ended[5].startswith("| heat, 5 bits (2) | 50 (49 to 51) |")
    assert ended[6] == "control-0: perplexity 34.9 of whole windows, as deployed"
    rows = json.loads((tmp_path / "t.json").read_text())
    assert [row["circuit"] for row in rows][::2] == ["calibrated", "heat-0", "heat-1"]
