# SPDX-License-Identifier: Apache-2.0
"""From a Hugging Face checkpoint to a Circuit: python examples/02_calibrate_and_export.py out/circuit [MODEL-FOLDER]"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import heatfhe
from heatfhe.assets import default_parent, sampled_stories
from heatfhe.training import pack


def main() -> None:
    """Prepare, calibrate, export, and compare the circuit's logits with the model's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="circuit directory to write")
    parser.add_argument("model", type=Path, nargs="?", default=default_parent(), help="GPT-2 checkpoint")
    parser.add_argument("--windows", type=int, default=32, help="windows of text to watch")
    args = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, local_files_only=True).eval()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    context = model.config.n_positions
    text = pack(sampled_stories(), lambda s: tokenizer.encode(s).ids, context, end=0)
    rows = torch.from_numpy(text.rows[: args.windows + 1, :-1])
    with torch.no_grad():
        wanted = model(rows[-1:]).logits[0].double().numpy()

    prepared = heatfhe.prepare(model)  # nonlinearities become sites; weights are untouched
    calibration = heatfhe.calibrate(prepared, rows[:-1].split(8), tolerance=1e-4)
    circuit = heatfhe.export(prepared, calibration, args.out, tokenizer=args.model, name="example")

    for family, count in calibration.iterations().items():
        print(f"{family:<18s} {count:4d} iterations per token")
    logits = circuit.run(rows[-1].numpy())  # float64, + - * alone: what the server will compute
    same = float((logits.argmax(-1) == wanted.argmax(-1)).mean())
    worst = float(abs(logits - wanted).max())
    print(f"circuit against model on unseen text: largest difference {worst:.2e}, same token {same:.1%}")
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
