# SPDX-License-Identifier: Apache-2.0
"""Put the default model's circuits into the package: the parent calibrated at 1e-4, and a HEAT run's, in float16.

    python runs/embed_default.py --heat out/heat/circuit

The HEAT circuit's argmax schedule is fitted on its own logits. Prints held-out perplexity of both before and after
rounding to float16; refuses a circuit that rounding changes by more than 0.1 %. The log of the HEAT run goes with it,
shortened, so that a report can show the training without torch. Parent and text come from runs/default_model.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.assets import default_parent, sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.cli.model_source import load_encoder, load_model
from heatfhe.evaluation import perplexity
from heatfhe.lowering import export
from heatfhe.ranges import calibrate, fit_argmax
from heatfhe.sites import prepare
from heatfhe.training import pack

HELD_OUT, CALIBRATION_WINDOWS, ARGMAX_WINDOWS = 64, 1024, 48
UPDATES_KEPT, UPDATE_FACTS = 4, ("kind", "step", "phase", "task", "iterations")


def narrowed(circuit: Circuit, name: str) -> Circuit:
    weights = {k: np.asarray(v, dtype=np.float16) for k, v in circuit.weights.items()}
    return replace(circuit, weights=weights, name=name)


def shortened(log: str) -> str:
    """Every fourth update with its loss and iterations; probabilities to three digits; the rest as it is."""
    kept = []
    for row in map(json.loads, log.splitlines()):
        if row["kind"] == "update":
            if row["step"] % UPDATES_KEPT:
                continue
            row = {k: round(row[k], 5) if k == "task" else row[k] for k in UPDATE_FACTS}
        elif row["kind"] == "distributions":
            row["p"] = {site: [round(v, 3) for v in p] for site, p in row["p"].items()}
        kept.append(json.dumps(row, separators=(",", ":")) + "\n")
    return "".join(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heat", type=Path, required=True)
    args = parser.parse_args()
    folder = default_parent()
    assets = folder.parent
    encode, end = load_encoder(folder)
    training, held_out = pack(sampled_stories(), encode, 128, end).split(HELD_OUT)
    prepared = prepare(load_model(folder))
    windows = torch.from_numpy(training.rows[:CALIBRATION_WINDOWS, :-1]).split(16)
    calibrated = export(prepared, calibrate(prepared, windows, 1e-4), tokenizer=folder, name="default-calibrated")
    rows = held_out.rows
    trained = Circuit.load(args.heat)
    logits = trained.run(training.rows[:ARGMAX_WINDOWS, :-1])[:, ::3].reshape(-1, trained.shape.vocabulary)
    trained = replace(trained, calibration=replace(trained.calibration, argmax=fit_argmax(logits)))
    for circuit, name in ((calibrated, "calibrated"), (trained, "heat")):
        narrow = narrowed(circuit, f"default-{name}")
        before, after = (perplexity(c.run(rows[:, :-1]), rows[:, 1:]) for c in (circuit, narrow))
        if abs(after / before - 1) > 1e-3:
            raise SystemExit(f"{name}: float16 moves its perplexity from {before:.4f} to {after:.4f}")
        narrow.save(assets / name)
        counts = narrow.calibration.iterations()
        moved = f"perplexity {before:.4f} -> {after:.4f} in float16"
        print(f"{name}: {sum(counts.values())} iterations {counts}, {moved}")
    (assets / "heat" / "log.jsonl").write_text(shortened((args.heat.parent / "log.jsonl").read_text()))


if __name__ == "__main__":
    main()
