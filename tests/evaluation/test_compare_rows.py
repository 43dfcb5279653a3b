# SPDX-License-Identifier: Apache-2.0
"""runs/compare_rows.py: rows of several run folders become one table, finished or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from heatfhe.evaluation import ComparisonRow, plaintext_row
from heatfhe.files import read_json, write_json

ROOT = Path(__file__).parent.parent.parent
SET = "insecure-native-11"


def row(name: str, perplexity: float) -> ComparisonRow:
    iterations = {"norm_goldschmidt": 3, "norm_newton": 0, "softmax_init": 4, "softmax_refine": 5}
    made = replace(plaintext_row(name, perplexity, 2), noisy_perplexity=perplexity, kl=1e-3, top1=0.9)
    return replace(made, iterations=iterations, levels=12, bootstraps=9, params=SET)


def keep(folder: Path, found: ComparisonRow) -> None:
    place = folder / found.name.replace(" ", "-")
    place.mkdir(parents=True)
    write_json(place / f"measured-{SET}.json", "heatfhe-compared", 2, {"mark": "x", "row": found.as_json()})


def test_rows_of_two_folders_make_one_table_and_the_first_folder_wins(tmp_path: Path) -> None:
    first, second, out = (tmp_path / name for name in ("first", "second", "out"))
    keep(first, row("heat plain seed 0", 3.0))
    keep(second, row("heat plain seed 0", 9.0))
    keep(second, row("heat plain seed 1", 4.0))
    keep(second, row("calibrated 1e-04 plain", 2.0))
    whole = [
        replace(plaintext_row("plaintext", 1.5, 2), params=SET),
        replace(row("control plain seed 0", 7.0), params="other"),
    ]
    write_json(second / "compare.json", "heatfhe-comparison", 2, {"rows": [r.as_json() for r in whole]})
    command = [sys.executable, str(ROOT / "runs" / "compare_rows.py"), str(first), str(second)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*command, "-o", str(out), "--params", SET], check=True, env=environment, capture_output=True)
    body = read_json(out / "compare.json", "heatfhe-comparison", (2,))
    found = [(r["name"], r["perplexity"]) for r in body["rows"]]
    assert found == [
        ("plaintext", 1.5), ("calibrated 1e-04 plain", 2.0), ("heat plain seed 0", 3.0), ("heat plain seed 1", 4.0),
    ]  # fmt: skip
    assert "| heat plain | 12 |" in (out / "compare.md").read_text()
    assert "3.5 (3 to 4)" in json.dumps(body["tables"][SET]["rows"])
