# SPDX-License-Identifier: Apache-2.0
"""HEAT on a GPT-2-small-shaped model, all three phases of the paper's recipe, beside its control and its calibrations.

    python runs/heat_gpt2_wiki.py --checkpoint DIR --train TOKENS.npy --heldout TOKENS.npy --out runs/out/wiki \\
        [--jobs heat-plain,control,heat-relaxed] [--seconds 560]

Token arrays are one-dimensional integers. One GPU; every job prints one JSON line when it ends, and is left out when
the seconds given are nearly used up. The model folder is a plain Hugging Face checkpoint.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.ranges import FitOptions, fit_calibration, observe
from heatfhe.sites import Prepared, prepare
from heatfhe.training import Recipe, cut, preset, recipe, train, window_losses

NEEDS = {"heat": 200, "control": 100}  # seconds a job takes on an H200: it is not begun with less left


def perplexity(prepared: Prepared, rows: torch.Tensor, mode: str) -> dict[str, float]:
    """Held-out perplexity of the deployed (or exact) model in float32, of the windows that do not diverge, and how
    many do: those worse than guessing every token alike."""
    loss = window_losses(prepared, rows, 4, mode).nan_to_num(nan=math.inf)
    fine = loss < math.log(prepared.architecture.shape.vocabulary)
    return {"perplexity": math.exp(loss[fine].mean()), "diverged": int((~fine).sum()), "windows": len(loss)}


def wiki(base: Recipe, args: argparse.Namespace) -> Recipe:
    """A recipe with its learning rates lowered together (the paper's are too high for this model even with exact
    nonlinearities), each site's distribution beginning at its own calibrated count, halting logits at 3e-3 instead of
    2e-3, and the options given."""
    lr, lowest = args.lr, args.lowest_lr
    lowest = base.heat.final_lr * lr / base.heat.lr if lowest is None else lowest
    heat = replace(base.heat, lr=lr, final_lr=lowest, logit_lr=3e-3)
    last = replace(base.cooldown, lr=lowest, final_lr=lowest)
    given = {k: v for k in ("push", "margin", "slack", "loose_first") if (v := getattr(args, k)) is not None}
    if torch.cuda.is_available():
        given["micro_tokens"] = 32 * base.context
    made = replace(
        base, heat=heat, cooldown=last, support="site", checkpoint_every=10**6, validate_batches=1, **given
    )  # fmt: skip
    return made if args.share == 1.0 else made.scaled(args.share)


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
    parser.add_argument("--lr", type=float, default=5e-5, help="the weights' learning rate in phase two")
    parser.add_argument("--lowest-lr", type=float, help="and at its end (default: lowered with --lr; paper: 3e-5)")
    parser.add_argument("--push", type=float, help="weight of the guards' push-back (default: the recipe's)")
    parser.add_argument("--margin", type=float, help="how much wider than seen domains are (default: the recipe's)")
    parser.add_argument("--slack", type=float, help="how far inside a row's sum is held (default: the recipe's)")
    parser.add_argument("--loose-first", action="store_true", default=None, help="a relaxed r1 may err by any amount")
    parser.add_argument("--windows", type=int, default=10**6, help="at most so many held-out windows are measured")
    parser.add_argument("--seconds", type=float, default=560.0)
    args = parser.parse_args()
    began = time.time()
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    base = wiki(recipe(args.recipe), args)
    args.out.mkdir(parents=True, exist_ok=True)
    parent = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).to(device).eval()
    windows = cut(np.load(args.train), base.context)
    held = cut(np.load(args.heldout), base.context)
    rows = torch.from_numpy(held.rows[: args.windows]).to(device)
    card = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "lr": args.lr,
        "margin": base.margin,
        "slack": base.slack,
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
            which, _, solver = job.rpartition("-") if job.startswith("heat") else (job, "", "plain")
            chosen = preset(which, wiki(recipe(args.recipe, solver), args))
            trained = train(
                prepared, windows, chosen, held_out=held, folder=args.out / job, tensorboard=False, argmax=False
            )
            facts = {
                "iterations": trained.iterations,
                "total": sum(trained.iterations.values()),
                "seed": trained.seed_iterations,
                "deployed": perplexity(prepared, rows, "deployed"),
                "exact": perplexity(prepared, rows, "exact") if which == "heat" else None,
                "validation": trained.validation,
                "left": trained.left,
                "skipped": trained.skipped,
                "training_seconds": trained.seconds,
                "counts": trained.calibration.counts(),
            }
            trained.calibration.save(args.out / f"{job}.calibration.json")
        report(job, {**facts, **card, "seconds": round(time.time() - start, 1)}, args.out)


if __name__ == "__main__":
    main()
