# SPDX-License-Identifier: Apache-2.0
"""The rivals on gpt2-small-wiki as one table, from what the jobs of runs/h200.toml left in a folder.

    python runs/table_gpt2.py OUT [--json TABLE.json]

Rows are circuits, the mean over training or search seeds with the least and the largest behind it. Iterations,
bootstraps, seconds and everything under noise are from OUT/noise-*/drift.jsonl (runs/drift_gpt2.py: short windows, the
set named there, plans with a precision as rows of their own); perplexity of whole windows is what
runs/search_gpt2_wiki.py and the stage ``stress`` of runs/encrypted_gpt2.py found on held-out text. What is not there
yet is a dash.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COLUMNS: dict[str, Callable[[Row], float]] = {
    "iterations": lambda r: sum(r["iterations"].values()),
    "LN Goldschmidt": lambda r: r["iterations"]["norm_goldschmidt"],
    "LN Newton": lambda r: r["iterations"]["norm_newton"],
    "softmax init": lambda r: r["iterations"]["softmax_init"],
    "refine": lambda r: r["iterations"]["softmax_refine"],
    "bootstraps": lambda r: r["bootstraps"],
    "predicted s": lambda r: r["predicted_seconds"],
    "perplexity, whole windows": lambda r: r.get("whole", math.nan),
    "short windows": lambda r: r["clear_perplexity"],
    "under noise": lambda r: r["perplexity"],
    "top-1, %": lambda r: 100 * r["top1"],
}


def lines(path: Path) -> Iterator[Row]:
    """The JSON lines of a file, none where it is missing."""
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def whole_windows(out: Path) -> dict[str, float]:
    """Held-out perplexity of windows of the model's whole context, by circuit."""
    found: dict[str, float] = {}
    for path in sorted(out.glob("atlas-*/results.jsonl")):
        for line in lines(path):
            names = {"chosen": f"atlas-{line['seed']}", "calibrated": "calibrated"}
            found |= {names[which]: held["perplexity"] for which, held in line.get("heldout", {}).items()}
    for path in sorted(out.glob("judge-*/stress.jsonl")):
        first = next((line for line in lines(path) if line["what"] == "text"), None)
        if first is not None:
            name = path.parent.name.removeprefix("judge-")
            found[name if name.startswith("control") else f"heat-{name}"] = first["perplexity"]
    return found


def rows_of(out: Path) -> list[Row]:
    """A row for every circuit that was run under noise on more than a trial's windows."""
    whole, rows = whole_windows(out), []
    for path in sorted(out.glob("noise-*/drift.jsonl")):
        for row in lines(path):
            if row["noise"] == "all":
                rows.append(row | ({"whole": whole[row["circuit"]]} if row["circuit"] in whole else {}))
    return rows


def cell(values: list[float]) -> str:
    """Mean (least to largest) of what exists."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return "-"
    mean, least, most = (f"{v:.4g}" for v in (sum(known) / len(known), min(known), max(known)))
    return mean if least == most else f"{mean} ({least} to {most})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", type=Path, help="write all rows there, one by one")
    args = parser.parse_args()
    groups: dict[str, list[Row]] = {}
    for row in (rows := rows_of(args.out)):
        kind, bits = re.sub(r"-\d+$", "", row["circuit"]), row.get("precision")
        groups.setdefault(kind if bits is None else f"{kind}, {bits:g} bits", []).append(row)
    print(f"| circuit | {' | '.join(COLUMNS)} | collapsed |\n{'|---' * (len(COLUMNS) + 2)}|")
    for name, group in groups.items():
        collapsed = [sum(int(r["collapsed"].split("/")[k]) for r in group) for k in (0, 1)]
        cells = [cell([value(r) for r in group]) for value in COLUMNS.values()]
        print(f"| {name} ({len(group)}) | {' | '.join(cells)} | {collapsed[0]}/{collapsed[1]} |")
    for name, perplexity in whole_windows(args.out).items():
        if name.startswith("control"):
            print(f"{name}: perplexity {perplexity:.4g} of whole windows, as deployed")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
