# SPDX-License-Identifier: Apache-2.0
"""Calibrated counts of a GPT-2 small by family: four tolerances, both rules, both solvers, from one observation.

    python runs/calibrate_gpt2_wiki.py --weights FOLDER --data FOLDER [--windows 128] [--held-out 20] [--out FOLDER]

The folder of weights is an unpacked Hugging Face checkpoint of GPT-2 small's shape; that of data holds
wiki.finetune.txt.xz and wiki.heldout.txt.xz. Prints the table beside the paper's totals, and writes it with the
circuit's perplexity as JSON. About 7 CPU seconds a window; MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 in the
environment saves half of it on Linux (large buffers are then reused instead of mapped anew).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.cli.console import ProgressLine, format_table
from heatfhe.lowering import export, tokenizer_files
from heatfhe.ranges import FitOptions, fit_calibration, observe
from heatfhe.records import FAMILIES
from heatfhe.sites import prepare
from heatfhe.training import read_documents

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)
PAPER = {1e-1: 571, 1e-2: 642, 1e-3: 678, 1e-4: 712}  # GPT-2 on OpenWebText; at 1e-4: 235 / 63 / 105 / 309


def windows(path: Path, tokenizer: Tokenizer, context: int, count: int) -> Iterator[np.ndarray]:
    """The first ``count`` windows of context + 1 tokens of a text, documents joined by the end token."""
    end = tokenizer.token_to_id("<|endoftext|>")
    held: list[int] = []
    made = 0
    for document in read_documents(path):
        held += [end, *tokenizer.encode(document).ids]
        while len(held) > context and made < count:
            yield np.array(held[: context + 1], dtype=np.int64)
            held = held[context:]
            made += 1
        if made == count:
            return


def perplexity(logits: np.ndarray, labels: np.ndarray) -> float:
    """exp of the mean cross-entropy of one window."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    nats = np.log(np.exp(shifted).sum(axis=-1)) - shifted[np.arange(len(labels)), labels]
    return float(np.exp(nats.mean()))


def main() -> int:
    """Observe, fit sixteen times, print, measure one circuit on held-out windows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=128)
    parser.add_argument("--held-out", type=int, default=20)
    parser.add_argument(
        "--delta-2", type=int, default=None, help="fix the refinement factor (default: cheapest per block)"
    )
    parser.add_argument("--out", type=Path, default=Path("out/calibrate"))
    args = parser.parse_args()
    model = GPT2LMHeadModel.from_pretrained(args.weights, local_files_only=True).eval()
    tokenizer = Tokenizer.from_str(tokenizer_files(args.weights)["tokenizer.json"].decode())
    prepared = prepare(model)
    context = prepared.architecture.shape.context
    began = time.monotonic()
    stream = (w[:-1] for w in windows(args.data / "wiki.finetune.txt.xz", tokenizer, context, args.windows))
    seen = observe(prepared, stream, reporter=ProgressLine(sys.stderr), total=args.windows)
    print(f"observed {seen.sequences} windows of {seen.context} tokens in {time.monotonic() - began:.0f} s")
    rows, record, fitted = [], [], {}
    for rule in ("per-site", "joint"):
        for solver in ("plain", "relaxed"):
            for tolerance in TOLERANCES:
                options = FitOptions(tolerance=tolerance, rule=rule, solver=solver, delta_2=args.delta_2)
                made = fit_calibration(prepared.architecture, seen, options)
                fitted[rule, solver, tolerance] = made
                by = made.iterations()
                paper = PAPER[tolerance] if (rule, solver) == ("per-site", "plain") else "-"
                rows.append((rule, solver, f"{tolerance:.0e}", *(by[f] for f in FAMILIES), sum(by.values()), paper))
                passes = sorted({r.fit.passes for r in made.softmaxes.values()})
                record.append(
                    {"rule": rule, "solver": solver, "tolerance": tolerance, "iterations": by, "passes": passes}
                )
    print(format_table(("rule", "solver", "tolerance", *FAMILIES, "all", "paper"), rows))
    args.out.mkdir(parents=True, exist_ok=True)
    calibration = fitted["per-site", "plain", 1e-4]
    circuit = export(prepared, calibration, args.out / "circuit", tokenizer=args.weights, name="calibrated-1e-4")
    ours, parents = [], []
    for row in windows(args.data / "wiki.heldout.txt.xz", tokenizer, context, args.held_out):
        tokens, labels = row[:-1], row[1:]
        ours.append(perplexity(circuit.run(tokens), labels))
        parents.append(perplexity(prepared.logits(tokens, mode="exact").double().numpy(), labels))
        print(f"window {len(ours)}: circuit {ours[-1]:.4f} parent {parents[-1]:.4f}", flush=True)
    if ours:
        geometric = [math.exp(float(np.mean(np.log(v)))) for v in (ours, parents)]
        print(f"perplexity of the circuit {geometric[0]:.4f}, of the parent {geometric[1]:.4f} on {len(ours)} windows")
        record.append({"perplexity": {"circuit": geometric[0], "parent": geometric[1], "windows": len(ours)}})
    (args.out / "table.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
