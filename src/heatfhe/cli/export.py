# SPDX-License-Identifier: Apache-2.0
"""heat export: a model and its calibration become a Circuit directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_model, model_folder
from heatfhe.errors import ConfigError

HELP = """Write a Circuit: weights, constants, counts and tokenizer in one directory that needs no torch to run.

The calibration is the file of heat calibrate, or, for a folder of heat train, what its side file holds."""
EXAMPLES = """  heat export default --calibration calibration.json -o circuit
  heat export out/heat/model -o circuit --name mine
  heat export out/heat/model -o short --context 32
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="circuit directory to write")
    parser.add_argument("--calibration", type=Path, help="file of heat calibrate (default: the model's side file)")
    parser.add_argument("--name", help="name of the circuit (default: the model folder's)")
    parser.add_argument("--context", type=int, metavar="T", help="longest text, in tokens (default: as calibrated)")
    parser.add_argument("--tokenizer", type=Path, help="folder of the tokenizer (default: the model's)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Load, export, say what comes next."""
    from heatfhe.lowering import export
    from heatfhe.records import Calibration
    from heatfhe.sites import PrepareConfig, load_checkpoint, load_prepared, prepare

    folder = model_folder(args.model)
    model = load_checkpoint(folder)
    if args.calibration is not None:
        calibration = Calibration.load(args.calibration)
        prepared = prepare(model, PrepareConfig(prefix=calibration.prefix))
    elif (folder / "heat.json").is_file():
        prepared, calibration = load_prepared(folder, model), None
    else:
        raise ConfigError(f"{folder}: has no side file heat.json; give --calibration FILE (made by heat calibrate)")
    name = args.name or (args.model if args.model == "default" else folder.name)
    tokenizer = args.tokenizer or folder
    circuit = export(prepared, calibration, args.out, tokenizer=tokenizer, name=name, context=args.context)
    total = sum(circuit.calibration.iterations().values())
    longest = prepared.architecture.shape.context
    if circuit.shape.context < longest:
        console.print(f"texts of up to {circuit.room} tokens, as calibrated; the model takes {longest}")
    console.print(f"circuit {circuit.name}: {len(circuit.stages)} stages, {total} iterations per forward")
    console.print(f"written: {args.out}    next: heat inspect {args.out}")
    console.json({"out": str(args.out), "digest": circuit.digest, "iterations": circuit.calibration.iterations()})
    return 0
