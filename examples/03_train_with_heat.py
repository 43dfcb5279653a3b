# SPDX-License-Identifier: Apache-2.0
"""Learn counts and weights together: python examples/03_train_with_heat.py out/heat --share 0.5"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

import heatfhe
from heatfhe.assets import default_parent, sampled_stories
from heatfhe.training import pack, recipe


def main() -> None:
    """Train the embedded model on its own text; killed and started again, it goes on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="run folder: log, checkpoint, circuit")
    parser.add_argument("--share", type=float, default=0.5, help="of the recipe's updates")
    args = parser.parse_args()

    parent = default_parent()
    chosen = recipe("default-model").scaled(args.share)
    model = AutoModelForCausalLM.from_pretrained(parent, dtype=torch.float32, local_files_only=True)
    tokenizer = Tokenizer.from_file(str(parent / "tokenizer.json"))
    text = pack(sampled_stories(), lambda s: tokenizer.encode(s).ids, chosen.context, end=0)
    training, held_out = text.split(16)

    prepared = heatfhe.prepare(model)
    trained = heatfhe.train(prepared, training, chosen, held_out=held_out, folder=args.out)
    circuit = heatfhe.export(prepared, trained.calibration, args.out / "circuit", tokenizer=parent, name="example-heat")

    before, after = sum(trained.seed_iterations.values()), sum(trained.iterations.values())
    print(f"{before} iterations per token calibrated, {after} learned, held-out loss {trained.validation:.3f}")
    print(f"circuit {circuit.digest[:12]} in {args.out / 'circuit'}")


if __name__ == "__main__":
    main()
