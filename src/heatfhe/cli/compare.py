# SPDX-License-Identifier: Apache-2.0
"""heat compare: every preset trained or calibrated on the same text, one table."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_model, load_encoder, load_model, load_text, model_folder
from heatfhe.errors import ConfigError
from heatfhe.files import json_digest, read_json, write_json

HELP = """Train or calibrate a model in every way the paper compares, and print one table.

Rows: the parent calibrated at each tolerance, then the presets heat, squeezed, depth-only, fixed-counts and control.
Finished rows are kept in the run folder and not made again; compare.json holds the table."""
EXAMPLES = """  heat compare default -o out/compare
  heat compare default -o out/compare --presets heat,control --seeds 0,1,2 --params insecure-native-12
"""
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)
SIGMA = 1.7e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="run folder")
    parser.add_argument("--text", help="as in heat train")
    parser.add_argument("--recipe", help="as in heat train")
    parser.add_argument("--presets", default="heat,squeezed,depth-only,fixed-counts,control", help="those to train")
    parser.add_argument("--solvers", default="plain", help="plain, relaxed, or both with a comma")
    parser.add_argument("--seeds", default="0", help="one training run each (default 0)")
    parser.add_argument("--sigma", type=float, default=SIGMA, help=f"refresh noise (default {SIGMA:g}, the paper's)")
    parser.add_argument("--windows", type=int, default=32, help="held-out windows measured (default 32)")
    parser.add_argument("--share", type=float, default=1.0, help="shorten every phase to this share, for trials")
    parser.add_argument("--params", help="plan every circuit with this parameter set: noise enters at its bootstraps")


def run(args: argparse.Namespace, console: Console) -> int:
    """Make every circuit that is missing, measure all, print."""
    from heatfhe.evaluation.compare import HEADERS, measure, table_row
    from heatfhe.planning.params import preset as parameter_set

    params = None if args.params is None else parameter_set(args.params)
    work = _Work(args, console)
    rows = []
    for name, make in work.jobs():
        circuit = work.circuit(name, make)
        rows.append(measure(name, circuit, work.held_out.rows, args.sigma, params=params))
        console.print(f"{name}: {rows[-1].total} iterations, perplexity {rows[-1].perplexity:.3f}")
    console.table(HEADERS, [table_row(row) for row in rows])
    result = {"rows": [row.as_json() for row in rows], "sigma": args.sigma, "params": args.params}
    write_json(args.out / "compare.json", "heatfhe-comparison", 1, result)
    console.json(result)
    return 0


class _Work:
    """What the rows share: the parent, its text, one observation for all calibrations."""

    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        from heatfhe.training import preset, recipe

        self.out, self.console, self.folder = args.out, console, model_folder(args.model)
        base = recipe(args.recipe or ("default-model" if args.model == "default" else "gpt2-small"))
        self.base = base.scaled(args.share)
        self.solvers = args.solvers.split(",")
        try:
            seeds = [int(seed) for seed in args.seeds.split(",")]
        except ValueError:
            raise ConfigError(f"--seeds takes whole numbers separated by commas, got {args.seeds!r}") from None
        # Every recipe is made before the first run, so that a wrong name does not cost an hour.
        self.recipes = {
            f"{which} {solver} seed {seed}": replace(preset(which, self.base), solver=solver, seed=seed)
            for solver in self.solvers
            for seed in seeds
            for which in args.presets.split(",")
        }
        encode, end = load_encoder(self.folder)
        windows = load_text(args.text, args.model, encode, self.base.context, end)
        self.training, self.held_out = windows.split(args.windows)
        self.parent = load_model(self.folder)

    def jobs(self) -> list[tuple[str, Callable[[str, Path], None]]]:
        """(name, how to make it) of every row, in the table's order."""
        calibrated = [(f"calibrated {t:.0e} {solver}", t, solver) for solver in self.solvers for t in TOLERANCES]
        first: list[Any] = [(name, lambda n, p, t=t, s=s: self.calibrate(n, p, t, s)) for name, t, s in calibrated]
        return first + [(name, self.train) for name in self.recipes]

    def circuit(self, name: str, make: Callable[[str, Path], None]) -> Circuit:
        """The circuit of a row: from the run folder if it was made there from the same things, else made now."""
        place = self.out / name.replace(" ", "-")
        mark = json_digest([self.identity, self.recipes[name].as_json() if name in self.recipes else name])
        if not (place / "made.json").exists():
            self.console.print(f"making {name}")
            make(name, place)
            write_json(place / "made.json", "heatfhe-compared", 1, {"mark": mark})
        elif read_json(place / "made.json", "heatfhe-compared", (1,))["mark"] != mark:
            raise ConfigError(f"{place}: was made from another model, text or recipe; give another folder with -o")
        return Circuit.load(place / "circuit")

    @cached_property
    def identity(self) -> list[str]:
        """What every row depends on."""
        import hashlib

        from heatfhe.sites import prepare

        text = hashlib.sha256(self.training.rows.tobytes()).hexdigest()
        return [prepare(copy.deepcopy(self.parent)).fingerprint(), text, str(self.base.calibration_windows)]

    @cached_property
    def seen(self) -> Any:
        """Ranges of the parent on the calibration windows."""
        import torch

        from heatfhe.ranges import observe
        from heatfhe.sites import prepare

        windows = torch.from_numpy(self.training.rows[: self.base.calibration_windows, :-1])
        return observe(prepare(copy.deepcopy(self.parent)), windows.split(8), reporter=self.console.reporter)

    def calibrate(self, name: str, place: Path, tolerance: float, solver: str) -> None:
        """The parent's own circuit at a tolerance."""
        from heatfhe.lowering import export
        from heatfhe.ranges import FitOptions, fit_calibration
        from heatfhe.sites import prepare

        prepared = prepare(copy.deepcopy(self.parent))
        options = FitOptions(tolerance=tolerance, solver=solver)
        fitted = fit_calibration(prepared.architecture, self.seen, options, reporter=self.console.reporter)
        export(prepared, fitted, place / "circuit", tokenizer=self.folder, name=name)

    def train(self, name: str, place: Path) -> None:
        """A preset's circuit; a run that was stopped goes on."""
        from heatfhe.lowering import export
        from heatfhe.sites import prepare
        from heatfhe.training import train

        prepared = prepare(copy.deepcopy(self.parent))
        options: dict[str, Any] = {"held_out": self.held_out, "folder": place, "reporter": self.console.reporter}
        trained = train(prepared, self.training, self.recipes[name], **options)
        export(prepared, trained.calibration, place / "circuit", tokenizer=self.folder, name=name)
