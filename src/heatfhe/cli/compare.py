# SPDX-License-Identifier: Apache-2.0
"""heat compare: every preset trained or calibrated on the same text, one table."""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_model, load_encoder, load_model, load_text, model_folder

HELP = """Train or calibrate a model in every way the paper compares, and print one table.

Rows: the parent calibrated at each tolerance, then the presets heat, squeezed, depth-only, fixed-counts and control.
Finished rows are kept in the run folder and not made again."""
EXAMPLES = """  heat compare default -o out/compare
  heat compare default -o out/compare --presets heat,control --seeds 0,1,2
"""
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="run folder")
    parser.add_argument("--text", help="as in heat train")
    parser.add_argument("--recipe", default=None)
    parser.add_argument("--presets", default="heat,squeezed,depth-only,fixed-counts,control")
    parser.add_argument("--solvers", default="plain", help="plain, relaxed, or both with a comma")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--sigma", type=float, default=1.7e-4, help="refresh noise injected at every site (the paper's engine)")
    parser.add_argument("--windows", type=int, default=32, help="held-out windows measured")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--params", default=None, help="also plan every circuit with this parameter set and count bootstraps")


def run(args: argparse.Namespace, console: Console) -> int:
    """Make every circuit that is missing, measure all, print."""
    import torch

    from heatfhe.evaluation.compare import HEADERS, measure, table_row
    from heatfhe.lowering import export
    from heatfhe.ranges import FitOptions, fit_calibration, observe
    from heatfhe.sites import prepare
    from heatfhe.training import preset, recipe, train

    folder = model_folder(args.model)
    base = recipe(args.recipe or ("default-model" if args.model == "default" else "gpt2-small"))
    if args.share != 1.0:
        base = base.scaled(args.share)
    encode, end = load_encoder(folder)
    training, held_out = load_text(args.text, args.model, encode, base.context, end).split(args.windows)
    parent = load_model(folder)
    price = _pricer(args.params)
    rows = []

    def add(name: str, circuit: Circuit) -> None:
        rows.append(measure(name, circuit, held_out.rows, args.sigma, bootstraps=price))
        console.print(f"{name}: {rows[-1].total} iterations, perplexity {rows[-1].perplexity:.3f}")

    solvers = args.solvers.split(",")
    seen = None
    for solver in solvers:
        for tolerance in TOLERANCES:
            name = f"calibrated {tolerance:.0e} {solver}"
            place = args.out / name.replace(" ", "-")
            if not place.exists():
                prepared = prepare(copy.deepcopy(parent))
                if seen is None:
                    windows = torch.from_numpy(training.rows[: base.calibration_windows, :-1])
                    seen = observe(prepared, windows.split(8), reporter=console.reporter)
                fitted = fit_calibration(prepared.architecture, seen, FitOptions(tolerance=tolerance, solver=solver))
                export(prepared, fitted, place, tokenizer=folder, name=name)
            add(name, Circuit.load(place))
    for solver in solvers:
        for seed in (int(s) for s in args.seeds.split(",")):
            for which in args.presets.split(","):
                name = f"{which} {solver} seed {seed}"
                place = args.out / name.replace(" ", "-")
                if not (place / "circuit").exists():
                    console.print(f"training {name}")
                    prepared = prepare(copy.deepcopy(parent))
                    chosen = replace(preset(which, base), solver=solver, seed=seed)
                    trained = train(prepared, training, chosen, held_out=held_out, folder=place, reporter=console.reporter)
                    export(prepared, trained.calibration, place / "circuit", tokenizer=folder, name=name)
                add(name, Circuit.load(place / "circuit"))
    console.table(HEADERS, [table_row(r) for r in rows])
    console.json({"rows": [r.as_json() for r in rows], "sigma": args.sigma})
    return 0


def _pricer(params: str | None) -> Any:
    if params is None:
        return None
    from heatfhe.planning import plan
    from heatfhe.planning.params import preset as parameter_set

    chosen = parameter_set(params)
    return lambda circuit: plan(circuit, chosen).bootstraps
