# SPDX-License-Identifier: Apache-2.0
"""One table from rows that heat compare measured in several run folders, or on several machines.

    python runs/compare_rows.py FOLDER... -o OUT [--params insecure-openfhe-12]

heat compare writes its table when every row is done. This one takes what there is: FOLDER/compare.json, and where it
is missing ROW/measured-SET.json, a row from the first folder that has it. Writes OUT/compare.json and OUT/compare.md,
as heat compare does. (The parent in plaintext is in finished tables alone.)
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.evaluation import ComparisonRow, comparison_markdown, comparison_summary
from heatfhe.files import read_json, write_json

ORDER = (
    "plaintext", "calibrated", "atlas", "squeezed", "depth-only", "fixed-counts", "transplant", "control", "heat",
    "noisy", "plan-aware", "stairs",
)  # fmt: skip


def place(row: ComparisonRow) -> tuple[int, str]:
    """Where a row belongs in the table."""
    kind = next(i for i, start in enumerate(ORDER) if row.name.startswith(start))
    return kind, row.name


def rows_of(folder: Path, params: str) -> list[ComparisonRow]:
    """The rows of one run folder, whether its table is finished or not."""
    paths = sorted(folder.glob(f"*/measured-{params}.json"))
    bodies = [read_json(path, "heatfhe-compared", (2,))["row"] for path in paths]
    if (table := folder / "compare.json").exists():
        bodies += [row for row in read_json(table, "heatfhe-comparison", (2,))["rows"] if row["params"] == params]
    return [ComparisonRow.from_json(body) for body in bodies]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--params", default="insecure-openfhe-12", help="the set that was planned; sites for none")
    args = parser.parse_args()
    found: dict[str, ComparisonRow] = {}
    for folder in args.folders:
        for row in rows_of(folder, args.params):
            found.setdefault(row.name, row)
    rows = sorted(found.values(), key=place)
    headers, body = comparison_summary(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    result = {
        "rows": [row.as_json() for row in rows], "params": args.params,
        "tables": {args.params: {"headers": headers, "rows": body}},
    }  # fmt: skip
    write_json(args.out / "compare.json", "heatfhe-comparison", 2, result)
    (args.out / "compare.md").write_text(comparison_markdown(rows))
    print(f"{len(rows)} rows: {', '.join(row.name for row in rows)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
