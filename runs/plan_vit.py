# SPDX-License-Identifier: Apache-2.0
"""Bootstraps of one image on a ViT-B/16 shape, 80 rows at once, at 8 levels: the paper's two circuits.

    python runs/plan_vit.py [--params paper-16] [--cost paper-a100]

The paper gives iterations per image (617 calibrated, 250 HEAT) and bootstraps (575 and 326), not counts by site. Here
HEAT's are as in its GPT-2 (3 and 2 for each of 25 norms, 2 for each first reciprocal) with the other 101 refinements in
one pass, and the calibrated ones are spread over families in the proportions of its GPT-2, two to five passes a
block. Domains are typical ones. 79 patches and a class token: a strip of 16 x 1264 pixels stands for the image.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
from gpt2_small_fixture import CALIBRATED_PASSES, HEADS, HIDDEN, LAYERS, WIDTH, activation, norm, softmax, spread

from heatfhe.circuit import Circuit
from heatfhe.models.vit import patches, stages
from heatfhe.planning import cost_table, plan, preset
from heatfhe.records import Calibration
from heatfhe.stages import Activation, Attention, Norm, Shape, of

ROWS, LABELS, EPS = 80, 10, 1e-5
PUBLISHED = {"calibrated": 575, "heat": 326}
AIMED = {"calibrated": 400, "heat": 230}


def vit_base(counts: str) -> Circuit:
    """The shape with these counts, heat or calibrated, and weights all equal: planning reads shapes only."""
    shape = Shape(layers=LAYERS, width=WIDTH, heads=HEADS, hidden=HIDDEN, vocabulary=LABELS, context=ROWS)
    cut = patches((3, 16, 16 * (ROWS - 1)), (16, 16))
    found = stages(shape, cut, eps=EPS)
    norms, rows = [s.name for s in of(found, Norm)], [s.name for s in of(found, Attention)]
    if counts == "heat":
        goldschmidt, newton, init = [3] * len(norms), [2] * len(norms), [2] * LAYERS
        passes, refine = [1] * LAYERS, spread(101, LAYERS)
    else:  # 617 / 712 of 235, 63, 105 and 309; each pass of a block runs its refinements
        goldschmidt, newton, init = spread(204, len(norms)), spread(55, len(norms)), spread(91, LAYERS)
        passes, refine = list(CALIBRATED_PASSES), [8 if p == 5 else 7 for p in CALIBRATED_PASSES]
        refine[1], refine[-1] = 8, 10  # 36 passes: 267 in all
    magnitudes = {value: 40.0 for s in found for value in (*s.inputs, s.writes)} | {"logits": 60.0}
    magnitudes |= dict.fromkeys(norms, 12.0) | dict.fromkeys(rows, 4.0)
    magnitudes |= {f"{name}/{part}": size for name in rows for part, size in (("q", 8.0), ("k", 8.0), ("v", 4.0))}
    calibration = Calibration(
        fingerprint="fixture", tolerance=1e-2, rule="fixture", solver="plain", context=ROWS, sequences=0,
        norms={n: norm(n, g, k) for n, g, k in zip(norms, goldschmidt, newton)},
        softmaxes={n: softmax(n, *row) for n, *row in zip(rows, passes, init, refine)},
        activations={s.name: activation(s.name, s.function) for s in of(found, Activation)},
        argmax=None, magnitudes=magnitudes,
    )  # fmt: skip
    weights, widths = {}, dict.fromkeys((cut.writes, *norms, *rows), WIDTH)
    for stage in found:
        given = [widths[v] for v in stage.inputs]
        outer = HIDDEN if stage.label.endswith("fc1") else WIDTH
        held = dict.fromkeys(stage.tensors, (outer, *given))
        needs = stage.needs(shape, given, held)
        widths[stage.writes] = needs.width
        weights |= {
            n: np.broadcast_to(np.full((1,), 0.01, dtype=np.float32), size) for n, size in needs.tensors.items()
        }
    return Circuit(name=f"vit-base-{counts}", shape=shape, stages=found, weights=weights, calibration=calibration)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", default="paper-16")
    parser.add_argument("--cost", default="paper-a100")
    parser.add_argument("--counts", default="calibrated,heat")
    args = parser.parse_args()
    chosen = preset(args.params)
    print(f"{ROWS} rows of a ViT-B/16 shape on {chosen.name}: {chosen.levels} levels, {chosen.security_bits} bits")
    heads = ("counts", "iterations", "bootstraps", "published", "aim", "predicted s", "bootstraps by operator")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for counts in args.counts.split(","):
        circuit = vit_base(counts)
        program = plan(circuit, chosen, cost=cost_table(args.cost)).program("classify")
        by = Counter(step.operator for step in program.bootstraps())
        iterations, found = sum(circuit.calibration.iterations().values()), len(program.bootstraps())
        operators = ", ".join(f"{k} {v}" for k, v in by.most_common())
        cells = (
            counts,
            iterations,
            found,
            PUBLISHED[counts],
            AIMED[counts],
            f"{program.predicted_seconds:.1f}",
            operators,
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
