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

from gpt2_small_fixture import POWERS, gpt2_small

from heatfhe.planning import (
    ALGORITHMS,
    OperatorTally,
    Packing,
    Plan,
    Rules,
    Step,
    cost_table,
    place,
    plan,
    preset,
    record,
    tally,
)

MLPS = ("A", "B")
PUBLISHED = """published, other models of the same token: HEAT paper 326 (HEAT) and 513 (calibrated) at 8 levels;
other planners on unadapted models 416, 584, 618, 894 and 912 (quoted)"""


def placements(counts: str, levels: int, mlp: str, markdown: bool) -> None:
    """One line per algorithm and rule."""
    circuit = gpt2_small(counts)
    params = replace(preset("paper-16"), levels=levels)
    recording = record(circuit, Packing(circuit.shape, params.slots, 128), "generate", reach=params.reach, mlp=mlp)
    graph = recording.graph(levels=levels, fixed={}, required={"next": levels})
    for name in ALGORITHMS:
        for pairing in (True, False) if name != "shortest-path" else (False,):
            rules = Rules(pairing=pairing)
            began = time.process_time()
            count = place(graph, params, cost_table("unit"), algorithm=name, rules=rules)
            weighed = place(graph, params, cost_table("equivalents"), algorithm=name, rules=rules)
            spent = (time.process_time() - began) / 2
            row = (counts, levels, mlp, name, "yes" if pairing else "no", count.bootstraps, count.pairs)
            price = (f"{weighed.refresh_seconds:.1f}", str(weighed.bootstraps), f"{spent:.1f} s")
            cells = [*(str(v) for v in row), *price]
            print("| " + " | ".join(cells) + " |" if markdown else "  ".join(f"{c:>12s}" for c in cells), flush=True)


FAMILIES = {
    # plaintext products, masks, hoisted rotations, full rotations, conjugations, ct x ct: the layout counted by hand
    "layernorm": (0, 0, 0, 250, 0, 425),
    "q, k, v": (576, 12, 180, 252, 36, 0),
    "cache append": (0, 96, 36, 24, 0, 0),
    "scores, values": (0, 12, 72, 168, 0, 96),
    "softmax": (0, 108, 0, 168, 0, 326),
    "output projection": (192, 0, 180, 72, 12, 0),
    "fc1": (768, 12, 180, 120, 12, 0),
    "gelu": (0, 0, 0, 0, 0, 276),
    "fc2": (768, 0, 180, 108, 12, 0),
    "head": (1024, 0, 31, 31, 1, 0),
    "argmax": (0, 10, 0, 150, 0, 83),  # five rounds of two Newton passes, which do not hold the leader
    "embedding": (1024, 0, 31, 36, 1, 0),
}
COLUMNS = ("plain_products", "masks", "hoisted", "rotations", "conjugations", "products")


def family(step: Step) -> str:
    """The family of FAMILIES a step belongs to."""
    if step.operator == "linear":
        ends = {"c_attn": "q, k, v", "attn.c_proj": "output projection", "c_fc": "fc1", "mlp.c_proj": "fc2"}
        return next(name for end, name in ends.items() if step.name.endswith(end))
    return {"cache": "cache append", "attention": "scores, values"}.get(step.operator, step.operator)


def by_family(made: Plan) -> dict[str, OperatorTally]:
    """The generate step's tally by those families."""
    whole = made.program("generate")
    steps = tuple(replace(s, operator=family(s)) for s in whole.steps)
    named = replace(made, programs={"generate": replace(whole, steps=steps)})
    return tally(named, "generate", cost_table("paper-a100"))


def planned(counts: str, mlp: str, powers: tuple[int, ...] = POWERS) -> Plan:
    """The exact plan at 8 levels on the paper's prices."""
    circuit = gpt2_small(counts, powers=powers)
    return plan(circuit, preset("paper-16"), programs=("generate",), context=128, cost="paper-a100", mlp=mlp)


def operations(counts: str, mlp: str) -> None:
    """Operation counts of the exact plan at 8 levels, by operator; for HEAT's counts and variant A also by family."""
    made = planned(counts, mlp)
    found = tally(made, "generate", cost_table("paper-a100"))
    keys = len(made.rotations)
    print(f"\noperations of a token, {counts} counts, MLP {mlp}, T = 128, exact at 8 levels; {keys} rotation keys")
    names = [n for n in OperatorTally.__slots__ if n not in ("operator", "seconds", "bootstrap_seconds")]
    print("| operator | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for t in found.values():
        print(f"| {t.operator} | " + " | ".join(str(getattr(t, n)) for n in names) + " |")
    print("| **total** | " + " | ".join(str(sum(getattr(t, n) for t in found.values())) for n in names) + " |")
    if counts == "heat" and mlp == "A":
        against_hand_count()


def against_hand_count() -> None:
    """Ours / the hand count by family, the argmax in the same five rounds."""
    found = by_family(planned("heat", "A", powers=(9, 3, 3, 3, 7)))
    print("\nours / counted by hand, argmax powers 9, 3, 3, 3, 7")
    print("| family | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, expected in FAMILIES.items():
        cells = (f"{getattr(found[name], c)} / {e}" for c, e in zip(COLUMNS, expected))
        print(f"| {name} | " + " | ".join(cells) + " |")
    sums = [sum(getattr(t, c) for t in found.values()) for c in COLUMNS]
    hand = [sum(e[k] for e in FAMILIES.values()) for k in range(len(COLUMNS))]
    print("| **total** | " + " | ".join(f"{a} / {b}" for a, b in zip(sums, hand)) + " |")


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
