# SPDX-License-Identifier: Apache-2.0
"""HEAT on a GPT-2-small-shaped model, all three phases of the recipe, beside its controls and its calibrations.

    python runs/heat_gpt2_wiki.py --checkpoint DIR --train TOKENS.npy --heldout TOKENS.npy --out runs/out/wiki \\
        [--jobs heat-plain,heat-plan-aware,control,control-distilled,heat-relaxed] [--seconds 560]

Token arrays are one-dimensional integers. One GPU; every job prints one JSON line when it ends, and is left out when
the seconds given are nearly used up. The model folder is a plain Hugging Face checkpoint. The recipe is that of
``heat train``; --share shortens it for a trial, --odd changes the share of odd windows. Training looks at the last 64
windows of its own text, choices are made on those; the held-out text is judged once, at the end. heat-plan-aware is
told by plans for --plan-set, whose first 128 positions are planned, what an iteration costs; heat-stairs-N hands at
most N iterations of a softmax over to others where such a plan is cheaper (heat-stairs: the preset's). Every trained
job reports the bootstraps and the predicted seconds of a token in such a plan.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.planning import IterationPrices, preset
from heatfhe.ranges import FitOptions, fit_calibration, observe
from heatfhe.sites import Prepared, prepare
from heatfhe.training import ablation, cut, recipe, train, window_losses

# Seconds a job takes on an H200: it is not begun with less left. Those with plans are guesses: 16 processes make them.
NEEDS = {"heat-plan-aware": 400, "heat-stairs": 240, "heat": 200, "control": 100}


def perplexity(prepared: Prepared, rows: torch.Tensor, mode: str) -> dict[str, float]:
    """Held-out perplexity of the deployed (or exact) model in float32, of the windows that do not diverge, and how
    many do."""
    loss = window_losses(prepared, rows, 4, mode)
    fine = torch.isfinite(loss)
    return {"perplexity": math.exp(loss[fine].mean()), "diverged": int((~fine).sum()), "windows": len(loss)}


def report(name: str, facts: dict, out: Path) -> None:
    line = json.dumps({"job": name, **facts})
    print(line, flush=True)
    with (out / "results.jsonl").open("a") as f:
        f.write(line + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", default="calibrated,heat-plain,control,heat-relaxed")
    parser.add_argument("--recipe", default="gpt2-small")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--odd", type=float, help="share of odd windows (default: the recipe's)")
    parser.add_argument("--windows", type=int, default=10**6, help="at most so many held-out windows are measured")
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plan-set", default="native-16-r40-lean", help="of 13 levels")
    args = parser.parse_args()
    began = time.time()
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = recipe(args.recipe).scaled(args.share)
    args.out.mkdir(parents=True, exist_ok=True)
    parent = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).to(device).eval()
    windows, last = cut(np.load(args.train), base.context).split(64)  # choices are made on the end of the training text
    held = cut(np.load(args.heldout), base.context)
    rows = torch.from_numpy(held.rows[: args.windows]).to(device)
    card = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
    }

    for job in args.jobs.split(","):
        left = args.seconds - (time.time() - began)
        if left < args.share * next((n for start, n in NEEDS.items() if job.startswith(start)), 30):
            report(job, {"left_out": f"{left:.0f} s left"}, args.out)
            continue
        start = time.time()
        prepared = prepare(copy.deepcopy(parent))
        if job == "calibrated":
            sequences = torch.from_numpy(windows.rows[: base.calibration_windows, :-1]).to(device).split(4)
            seen = observe(prepared, sequences, argmax=False)
            facts: dict = {"exact": perplexity(prepared, rows, "exact")}
            for solver in ("plain", "relaxed"):
                for rule in ("per-site", "joint"):
                    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4):
                        found = fit_calibration(
                            prepared.architecture,
                            seen,
                            FitOptions(tolerance=tolerance, solver=solver, rule=rule, argmax=False),
                        )
                        row = {"iterations": found.iterations(), "total": sum(found.iterations().values())}
                        if rule == "per-site" and tolerance == 1e-4:
                            prepared.adopt(found)
                            row["deployed"] = perplexity(prepared, rows, "deployed")
                        facts[f"{solver} {rule} {tolerance:g}"] = row
        else:
            solver = "relaxed" if job.endswith("-relaxed") else "plain"
            which, reach = job, job.rpartition("-")[2]
            if job.startswith("heat"):
                which = next((known for known in ("plan-aware", "stairs") if known in job), "heat")
            chosen = replace(ablation(which, recipe(args.recipe, solver).scaled(args.share)), seed=args.seed)
            if which == "stairs" and reach.isdigit():
                chosen = replace(chosen, stairs=int(reach))
            told = IterationPrices(
                stages=prepared.architecture.stages, shape=prepared.architecture.shape, params=preset(args.plan_set),
                context=128, processes=min(16, os.cpu_count() or 1),
            )  # fmt: skip
            chosen = chosen if args.odd is None else replace(chosen, odd_share=args.odd)
            trained = train(
                prepared, windows, chosen, held_out=last, folder=args.out / f"{job}-{args.seed}", tensorboard=False,
                argmax=False, prices=told,
            )  # fmt: skip
            facts = {
                "recipe": chosen.as_json(),
                "iterations": trained.iterations,
                "total": sum(trained.iterations.values()),
                "plan_set": args.plan_set,
                "bootstraps": told.bootstraps(trained.calibration),
                "predicted_seconds": told.seconds(trained.calibration),
                "seed": trained.seed_iterations,
                "deployed": perplexity(prepared, rows, "deployed"),
                "exact": perplexity(prepared, rows, "exact") if which == "heat" else None,
                "validation": trained.validation,
                "left": trained.left,
                "skipped": trained.skipped,
                "training_seconds": trained.seconds,
                "counts": trained.calibration.counts(),
            }
            trained.calibration.save(args.out / f"{job}-{args.seed}.calibration.json")
        report(job, {**facts, **card, "seconds": round(time.time() - start, 1)}, args.out)


if __name__ == "__main__":
    main()
