# SPDX-License-Identifier: Apache-2.0
"""Bootstraps of one GPT-2-small token at the paper's counts, from the recorded graph: every placement, 8 and 13 levels.

    python runs/plan_gpt2_small.py [--counts heat,calibrated] [--levels 8,13] [--markdown]

A whole token: 12 blocks, final norm, head over 50257 words, argmax (a schedule that holds the leader), embedding of the
result, refreshed for the next token. ``full-slot equivalents`` weigh each bootstrap by the price of its period.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from gpt2_small_fixture import gpt2_small

from heatfhe.planning import ALGORITHMS, Packing, Rules, cost_table, place, plan, record
from heatfhe.planning.params import preset
from heatfhe.planning.tally import OperatorTally, tally

MLPS = ("A", "B")
PUBLISHED = """published, other models of the same token: HEAT paper 326 (HEAT) and 513 (calibrated) at 8 levels;
other planners on unadapted models 416, 584, 618, 894 and 912 (quoted)"""


def placements(counts: str, levels: int, mlp: str, markdown: bool) -> None:
    """One line per algorithm and rule."""
    circuit = gpt2_small(counts)
    params = replace(preset("paper-16"), levels=levels)
    recording = record(circuit, Packing(circuit.shape, params.slots, 128), "generate", window=params.window, mlp=mlp)
    graph = recording.graph(levels=levels, fixed={}, required={"next": levels})
    for name in ALGORITHMS:
        for pairing in (True, False):
            rules = Rules(pairing=pairing)
            began = time.perf_counter()
            count = place(graph, params, cost_table("unit"), algorithm=name, rules=rules)
            weighed = place(graph, params, cost_table("equivalents"), algorithm=name, rules=rules)
            spent = (time.perf_counter() - began) / 2
            row = (counts, levels, mlp, name, "yes" if pairing else "no", count.bootstraps, count.pairs)
            price = (f"{weighed.refresh_seconds:.1f}", str(weighed.bootstraps), f"{spent:.1f} s")
            cells = [*(str(v) for v in row), *price]
            print("| " + " | ".join(cells) + " |" if markdown else "  ".join(f"{c:>12s}" for c in cells), flush=True)


def operations(counts: str, mlp: str) -> None:
    """Operation counts of the exact plan at 8 levels, by operator."""
    circuit = gpt2_small(counts)
    made = plan(circuit, preset("paper-16"), programs=("generate",), context=128, cost="paper-a100", mlp=mlp)
    found = tally(made, "generate", cost_table("paper-a100"))
    keys = len(made.rotations)
    print(f"\noperations of a token, {counts} counts, MLP {mlp}, T = 128, exact at 8 levels; {keys} rotation keys")
    names = [n for n in OperatorTally.__slots__ if n not in ("operator", "seconds", "bootstrap_seconds")]
    print("| operator | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for t in found.values():
        print(f"| {t.operator} | " + " | ".join(str(getattr(t, n)) for n in names) + " |")
    print("| **total** | " + " | ".join(str(sum(getattr(t, n) for t in found.values())) for n in names) + " |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="heat,calibrated")
    parser.add_argument("--levels", default="8,13")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    heads = ["counts", "levels", "MLP", "placement", "pairing", "bootstraps", "paired"]
    heads += ["equivalents", "its count", "planned in"]
    print("| " + " | ".join(heads) + " |" if args.markdown else "  ".join(f"{h:>12s}" for h in heads))
    if args.markdown:
        print("|---" * len(heads) + "|")
    for counts in args.counts.split(","):
        for levels in args.levels.split(","):
            for mlp in MLPS:
                placements(counts, int(levels), mlp, args.markdown)
    print("\n" + PUBLISHED)
    for counts in args.counts.split(","):
        for mlp in MLPS:
            operations(counts, mlp)


if __name__ == "__main__":
    main()
