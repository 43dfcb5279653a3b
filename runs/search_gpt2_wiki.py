# SPDX-License-Identifier: Apache-2.0
"""ATLAS on a GPT-2-small-shaped model: counts searched on frozen weights, from its calibration, over several seeds.

    python runs/search_gpt2_wiki.py --checkpoint DIR --train TOKENS.npy --heldout TOKENS.npy --out runs/out/atlas \\
        [--seeds 0,1,2] [--seconds 560] [--carried FOLDER]

The arguments are those of runs/heat_gpt2_wiki.py: token arrays are one-dimensional integers, the model folder is a
plain Hugging Face checkpoint. The model is calibrated on the training text (tolerance 1e-4, per site, plain) and the
odd windows that the recipe gpt2-small has its circuits hold on (--odd 0 for the text alone), candidates run on the
training text behind that, ends are judged on the windows after those; the held-out text is judged once, at the end.
One JSON line is printed, and kept in results.jsonl, for every seed that ends. When the seconds given are used up, it
stops where it is: the same command goes on there. Everything that it needs for that is small (OUT/calibration.json and
the folders OUT/seed-N, under 16 MB), so that a run can move to another machine in pieces. Before it begins it says how
much memory a batch of candidates takes at most; batches are cut to half of what is free.

pymoo need not be installed: --carried names a folder of packages that is searched for modules last. Made with

    pip install --target FOLDER --no-deps --only-binary=:all: --python-version 3.12 pymoo==0.6.2 moocore==0.3.2 \\
        cffi==2.1.1 pycparser==3.12 platformdirs==4.14.5 alive-progress==3.3.0 about-time==4.2.1 graphemeu==0.7.2

for the Python of the machine that runs it, 30 MB; numpy and scipy are that machine's own.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).parent))

from pieces import Clock, Used, pair, say

from heatfhe.circuit import Circuit
from heatfhe.lowering import export
from heatfhe.ranges import FitOptions, fit_calibration, observe
from heatfhe.records import Calibration
from heatfhe.sites import Prepared, prepare
from heatfhe.training import Recipe, cut, odd_windows, recipe, window_losses


def calibrated(prepared: Prepared, windows: np.ndarray, ground: Recipe, path: Path, device: str) -> Circuit:
    """The circuit that is searched: the checkpoint with its calibration, made once and kept. ``ground`` says which odd
    windows it has to hold on beside the text."""
    context = ground.context
    if path.exists():
        found = Calibration.load(path)
    else:
        parts = (windows, odd_windows(prepared, ground, windows))
        text, odd = ([*torch.from_numpy(part[:, :-1]).to(device).split(4)] if len(part) else [] for part in parts)
        seen = observe(prepared, text, odd=odd)
        found = fit_calibration(prepared.architecture, seen, FitOptions(tolerance=1e-4))
        found.save(path)
    return export(prepared, found, tokenizer={}, name="calibrated", context=context)


def say_memory(circuit: Circuit, texts: dict[str, np.ndarray], most: int, device: str) -> None:
    """How much memory batches of candidates take at most, beside what there is."""
    from heatfhe.search import Batched, Space

    for name, rows in texts.items():
        batched = Batched(circuit, rows, Space.of(circuit).names, device=device)
        size = min(most, batched.together)
        say(f"{name}: {rows.shape[0]} x {rows.shape[1]} tokens, {size} of {most} candidates at a time, at most "
            f"{batched.memory(most) / 2**30:.1f} GiB")  # fmt: skip
    if device == "cuda":
        free, whole = torch.cuda.mem_get_info()
        say(f"GPU: {free / 2**30:.1f} of {whole / 2**30:.1f} GiB free with weights loaded")


def perplexity(prepared: Prepared, calibration: Calibration, rows: torch.Tensor) -> dict[str, float]:
    """Held-out perplexity of the deployed model, of the windows that do not diverge, and how many do."""
    prepared.adopt(calibration)
    loss = window_losses(prepared, rows, 4, "deployed")
    fine = torch.isfinite(loss)
    return {"perplexity": math.exp(loss[fine].mean()), "diverged": int((~fine).sum()), "windows": len(loss)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--population", type=pair, default=(48, 96), help="of both stages")
    parser.add_argument("--generations", type=pair, default=(50, 225), help="of both stages")
    parser.add_argument("--calibration-windows", type=int, default=128)
    parser.add_argument("--odd", type=float, help="0: calibrated on the text alone (default: the recipe's odd windows)")
    parser.add_argument("--bound", type=float, help="on the error (default: measured; the paper's is 1.0)")
    parser.add_argument(
        "--dtype", choices=("tf32", "float32", "float64"), default="tf32", help="that candidates run in (default tf32)"
    )
    parser.add_argument("--sigma", type=float, default=0.0, help="search under noise of this standard deviation")
    parser.add_argument("--tokens", type=pair, default=(4, 512), help="windows and tokens that candidates run on")
    parser.add_argument("--judged", type=pair, default=(8, 1024), help="windows and tokens that ends are judged on")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=64, help="at most so many held-out windows are measured")
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--carried", type=Path, help="folder of packages for pymoo, searched last")
    args = parser.parse_args()
    end = time.time() + args.seconds
    logging.basicConfig(level=logging.WARNING)  # a function that could not be compiled is worth knowing
    if args.carried is not None:
        sys.path.append(str(args.carried.resolve()))
    from heatfhe.search import SearchSettings, search

    device = "cuda" if torch.cuda.is_available() else "cpu"
    args.out.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32).to(device).eval()
    prepared = prepare(model)
    stream = np.load(args.train)
    used = args.calibration_windows * args.context + 1
    first = cut(stream[:used], args.context)
    behind = stream[used:]
    size = args.tokens[0] * args.tokens[1]
    tokens = np.asarray(behind[:size], dtype=np.int64).reshape(args.tokens)
    judged = cut(behind[size:], args.judged[1]).rows[: args.judged[0]]
    began = time.time()
    ground = recipe("gpt2-small").adjusted(context=args.context)
    ground = ground if args.odd is None else replace(ground, odd_share=args.odd)
    circuit = calibrated(prepared, first.rows, ground, args.out / "calibration.json", device)
    say(f"circuit ready after {time.time() - began:.0f} s")
    say_memory(circuit, {"searched": tokens, "judged": judged[:, :-1]}, max(args.population), device)
    held = torch.from_numpy(cut(np.load(args.heldout), args.context).rows[: args.windows]).to(device)
    settings = SearchSettings(
        population=args.population, generations=args.generations, bound=args.bound, sigma=args.sigma, device=device,
        dtype=args.dtype,
    )  # fmt: skip
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    card = {"device": name, "dtype": args.dtype, "torch": torch.__version__}
    for seed in (int(part) for part in args.seeds.split(",")):
        folder = args.out / f"seed-{seed}"
        if (folder / "done.json").exists():
            continue
        try:
            found = search(circuit, tokens, judged, replace(settings, seed=seed), folder=folder, reporter=Clock(end))
        except Used:
            print(json.dumps({"seed": seed, "stopped": "start the same command again to go on"}), flush=True)
            return 0
        line = {
            "seed": seed, "candidates": found.candidates, "search_seconds": round(found.seconds, 1),
            "bound": found.bound, "calibrated": found.as_json()["calibrated"], "chosen": found.as_json()["chosen"],
            "ends": [[e.iterations, e.levels, round(e.error, 5), round(e.perplexity, 4)] for e in found.ends],
            **card,
        }  # fmt: skip
        if found.chosen is not None:
            made = found.applied(circuit).calibration
            made.save(folder / "chosen.calibration.json")
            line["iterations"] = made.iterations()
            line["heldout"] = {
                "chosen": perplexity(prepared, made, held),
                "calibrated": perplexity(prepared, circuit.calibration, held),
            }
        text = json.dumps(line)
        print(text, flush=True)
        with (args.out / "results.jsonl").open("a") as f:
            f.write(text + "\n")
        (folder / "done.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
