# SPDX-License-Identifier: Apache-2.0
"""heat prepare: list a model's sites, and save it with its side file."""

from __future__ import annotations

import argparse
from pathlib import Path

from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_model
from heatfhe.records import FAMILIES

HELP = """List the places where a model's solvers iterate: its sites, by family.

With -o, the checkpoint is written unchanged beside a side file (heat.json) that holds what training will learn. A GGUF
file of a Llama is unpacked: what is written is a plain checkpoint with its tokenizer."""
EXAMPLES = """  heat prepare default
  heat prepare my-gpt2 --json
  heat prepare my-gpt2 -o out/prepared
  heat prepare my-llama.gguf -o out/prepared
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, help="folder for the checkpoint and its side file")


def run(args: argparse.Namespace, console: Console) -> int:
    """Prepare, list, save if asked."""
    from heatfhe.sites import load_gguf, prepare, save_prepared

    model, tokenizer = load_gguf(Path(args.model)) if args.model.endswith(".gguf") else (args.model, None)
    prepared = prepare(model)
    kind, shape, sites = prepared.architecture.kind, prepared.architecture.shape, prepared.sites
    console.print(
        f"{kind}: {shape.layers} layers, width {shape.width}, {shape.heads} heads, hidden {shape.hidden}, "
        f"vocabulary {shape.vocabulary}, context {shape.context}; {len(sites)} sites"
    )
    rows = []
    for family in FAMILIES.values():
        own = [s for s in sites if s.family == family.name]
        rows.append((family.name, len(own), own[0].name, own[0].floor, own[0].max_count, family.levels))
    console.table(("family", "sites", "first", "floor", "max count", "levels per iteration"), rows)
    if args.out is not None:
        save_prepared(prepared, args.out)
        if tokenizer is not None:
            tokenizer.save_pretrained(args.out)
        console.print(f"written: {args.out}")
    console.json(
        {
            "architecture": kind,
            "sites": [{k: getattr(s, k) for k in ("name", "family", "layer", "floor", "max_count")} for s in sites],
            "out": None if args.out is None else str(args.out),
        }
    )
    return 0
