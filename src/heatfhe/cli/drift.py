# SPDX-License-Identifier: Apache-2.0
"""heat drift: noise at every bootstrap of a plan, and the fidelity that is left, position by position."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.engine import BootstrapNoise
from heatfhe.errors import DataError, MissingExtraError
from heatfhe.evaluation.drift import Drift, drift, sample_windows, slope
from heatfhe.files import atomic_write
from heatfhe.planning import plan
from heatfhe.planning.params import preset

HELP = "Noise at every bootstrap of a circuit's plan, on the clear engine: KL, top-1 and collapse by position."
EXAMPLES = (
    "  heat drift my-circuit --params paper-16 --sigma 1.7e-4\n"
    "  heat drift calibrated trained --params insecure-openfhe-12 --windows 64 --figure drift.png\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("circuits", nargs="+", help="circuit directories or 'default', on the same windows")
    parser.add_argument("--params", required=True, metavar="NAME", help="parameter set the plans are made for")
    parser.add_argument("--sigma", type=float, help="standard deviation of a bootstrap (default: the parameters' own)")
    parser.add_argument("--floor", type=float, default=0.0, help="relative floor of the noise (default 0)")
    parser.add_argument("--windows", type=int, default=16, help="windows, drawn from the first circuit (default 16)")
    parser.add_argument("--positions", type=int, help="positions per window (default: the circuit's context)")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help=".npy of token ids (windows, positions + 1)")
    parser.add_argument("--seed", type=int, default=0, help="of windows and noise (default 0)")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw KL by position (needs matplotlib)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, run, print, draw."""
    params = preset(args.params)
    circuits = [Circuit.load(circuit_folder(name)) for name in args.circuits]
    noise = BootstrapNoise(sigma=params.noise if args.sigma is None else args.sigma, floor=args.floor)
    positions = args.positions or circuits[0].shape.context
    if args.tokens is not None:
        try:
            windows = np.load(args.tokens, allow_pickle=False).astype(np.int64)
        except (OSError, ValueError) as err:
            raise DataError(f"{args.tokens}: not a .npy file of token ids ({err})") from err
    else:
        windows = sample_windows(circuits[0], args.windows, positions + 1, seed=args.seed)
    found = []
    for circuit in circuits:
        made = plan(circuit, params, programs=("logits",), context=windows.shape[1] - 1)
        found.append(drift(made, circuit, windows, noise=noise, seed=args.seed, reporter=console.reporter))
    console.print(f"noise {noise.sigma:g} per bootstrap, {len(windows)} windows of {windows.shape[1] - 1} positions")
    console.table(
        ("circuit", "bootstraps", "KL", "KL first", "KL last", "decades/position", "top-1", "collapsed"),
        [_row(d) for d in found],
    )
    if args.figure is not None:
        _draw(found, args.figure)
        console.print(f"wrote {args.figure}")
    console.json([d.as_json() for d in found])
    return 0


def _row(d: Drift) -> tuple[Any, ...]:
    curve = d.fidelity.kl_by_position
    collapsed = f"{d.fidelity.collapsed}/{d.fidelity.windows}"
    return (d.name, d.bootstraps, d.fidelity.kl, curve[0], curve[-1], slope(curve), d.fidelity.top1, collapsed)


def _draw(found: list[Drift], path: Path) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError as err:
        raise MissingExtraError("report", needed_by="heat drift --figure") from err
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    for d in found:
        upper.semilogy(d.fidelity.kl_by_position, label=f"{d.name} ({d.bootstraps} bootstraps)")
        lower.plot(d.fidelity.top1_by_position, label=d.name)
    upper.set_ylabel("KL to the clear run (nats)")
    lower.set_ylabel("top-1 agreement")
    lower.set_xlabel("position")
    upper.legend()
    with atomic_write(path) as f:
        figure.savefig(f, format="png", dpi=150)
    pyplot.close(figure)
