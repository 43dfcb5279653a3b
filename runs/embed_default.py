# SPDX-License-Identifier: Apache-2.0
"""Put the default model's circuits into the package: the parent calibrated at 1e-4, and a HEAT run's, in float16.

    python runs/embed_default.py --heat out/heat/circuit      # both circuits anew, and the log of that run
    python runs/embed_default.py                              # the argmax schedules of the circuits in the package

The parent is calibrated on as many odd windows as windows of text. The argmax schedules are fitted on each circuit's
own logits along the sampled text, with sampling noise up to temperature 1 and the settling rounds of the recipe
default-model. Prints held-out perplexity before and after rounding to float16, and how often the argmax names another
word than the largest logit on held-out text; refuses a circuit that rounding changes by more than 0.1 %. The parent and
its text come from runs/default_model.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.approx import cutmax, gumbel_noise
from heatfhe.assets import default_circuit, default_parent, sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.evaluation import perplexity
from heatfhe.lowering import export
from heatfhe.models import encoder
from heatfhe.odd import KINDS, odd_rows
from heatfhe.ranges import MAX_TEMPERATURE, calibrate, fit_argmax, sampled_rows
from heatfhe.sites import prepare
from heatfhe.training import pack, recipe

HELD_OUT, CALIBRATION_WINDOWS, ODD_WINDOWS, ARGMAX_WINDOWS = 64, 1024, 1024, 64


def narrowed(circuit: Circuit, name: str) -> Circuit:
    weights = {k: np.asarray(v, dtype=np.float16) for k, v in circuit.weights.items()}
    return replace(circuit, weights=weights, name=name)


def with_argmax(circuit: Circuit, windows: np.ndarray) -> Circuit:
    """The circuit with a schedule for its own logits, greedy and sampled."""
    rng = np.random.default_rng(0)
    logits = circuit.run(windows)[:, ::4].reshape(-1, circuit.shape.vocabulary)
    rows = np.concatenate([sampled_rows(row, MAX_TEMPERATURE, rng) for row in logits])
    argmax = fit_argmax(rows, temperature=MAX_TEMPERATURE, settle=recipe("default-model").settle)
    return replace(circuit, calibration=replace(circuit.calibration, argmax=argmax))


def wrong_words(circuit: Circuit, logits: np.ndarray, temperature: float) -> str:
    """On how many rows of logits plus noise the argmax names another word, or ends under 0.9 away from near ties."""
    rng, size = np.random.default_rng(1), logits.shape[-1]
    rows = np.stack([row + gumbel_noise(rng, size, temperature) for row in logits])
    assert circuit.calibration.argmax is not None
    hot = cutmax(rows, circuit.calibration.argmax.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=size)
    two = np.partition(hot, -2, axis=-1)[:, -2:]
    ties = two[:, 0] > 0.1 * two[:, 1]
    wrong, weak = (hot.argmax(-1) != rows.argmax(-1)).sum(), ((two[:, 1] < 0.9) & ~ties).sum()
    return f"temperature {temperature:g}: {wrong} wrong, {weak} weak, {ties.sum()} near ties of {len(rows)}"


def thinned(log: Path) -> str:
    """A run's log for the package: every fourth update, distributions to three digits."""
    kept = []
    for line in map(json.loads, log.read_text().splitlines()):
        if line["kind"] == "update":
            if line["step"] % 4:
                continue
            line = {k: line[k] for k in ("kind", "step", "phase", "task", "iterations")}
        kept.append(json.dumps(_rounded(line), separators=(",", ":")))
    return "\n".join(kept) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [round(v, 3) for v in value]
    return round(value, 5) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heat", type=Path, help="a HEAT run's circuit; without it the circuits in the package")
    args = parser.parse_args()
    folder = default_parent()
    assets = folder.parent
    encode, end = encoder(folder)
    training, held_out = pack(sampled_stories(), encode, 128, end).split(HELD_OUT)
    if args.heat is None:
        calibrated, trained = (Circuit.load(default_circuit(kind)) for kind in ("calibrated", "heat"))
    else:
        prepared = prepare(folder)
        text = training.rows[:CALIBRATION_WINDOWS, :-1]
        odd = odd_rows(KINDS, ODD_WINDOWS, text, prepared.architecture.shape.vocabulary, seed=0)
        made = calibrate(prepared, torch.from_numpy(text).split(16), 1e-4, odd=torch.from_numpy(odd).split(16))
        calibrated = export(prepared, made, tokenizer=folder, name="default-calibrated")
        trained = Circuit.load(args.heat)
    rows = held_out.rows
    for circuit, name in ((calibrated, "calibrated"), (trained, "heat")):
        narrow = with_argmax(narrowed(circuit, f"default-{name}"), training.rows[:ARGMAX_WINDOWS, :-1])
        before, logits = (c.run(rows[:, :-1]) for c in (circuit, narrow))
        moved = perplexity(before, rows[:, 1:]), perplexity(logits, rows[:, 1:])
        if abs(moved[1] / moved[0] - 1) > 1e-3:
            raise SystemExit(f"{name}: float16 moves its perplexity from {moved[0]:.4f} to {moved[1]:.4f}")
        log = assets / name / "log.jsonl"
        kept = log.read_text() if log.exists() else None
        if args.heat is not None and name == "heat":
            kept = thinned(args.heat.parent / "log.jsonl")
        narrow.save(assets / name)
        if kept is not None:
            log.write_text(kept)
        counts, argmax = narrow.calibration.iterations(), narrow.calibration.argmax
        assert argmax is not None
        print(f"{name}: {sum(counts.values())} iterations {counts}, perplexity {moved[0]:.4f} -> {moved[1]:.4f}")
        powers = [part.power for part in (*argmax.schedule.rounds, *argmax.schedule.settle)]
        print(f"  argmax: powers {powers}, {argmax.schedule.levels} levels, near ties {argmax.near_ties:.2%}")
        for temperature in (0.0, 0.5 * MAX_TEMPERATURE, MAX_TEMPERATURE):
            print("  " + wrong_words(narrow, logits[:32].reshape(-1, logits.shape[-1]), temperature))


if __name__ == "__main__":
    main()
