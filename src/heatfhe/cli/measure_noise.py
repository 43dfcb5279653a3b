# SPDX-License-Identifier: Apache-2.0
"""heat measure-noise: the error of an engine's refresh by magnitude, as a table the clear engine injects."""

from __future__ import annotations

import argparse

from heatfhe.cli.bench_engine import DEFAULT_PARAMS, add_engine_arguments, hardware_of
from heatfhe.cli.console import Console
from heatfhe.client import open_engine
from heatfhe.engine import NOISE_MAGNITUDES, NOISE_PERIODS, measure_noise, noise_request
from heatfhe.errors import ConfigError
from heatfhe.planning import preset

HELP = "Measure an engine's refresh error by magnitude, with throwaway keys; clear runs with it predict encrypted ones."
EXAMPLES = (
    "  heat measure-noise openfhe --params insecure-openfhe-12 --out noise.json\n"
    "  heat measure-noise native --magnitudes 0.1,1,16 --repeats 4\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_engine_arguments(parser)
    parser.add_argument(
        "--magnitudes", default=",".join(f"{m:g}" for m in NOISE_MAGNITUDES), help="sizes of refreshed values"
    )
    shown = ",".join(map(str, NOISE_PERIODS))
    parser.add_argument("--periods", default=shown, help=f"periods besides the full one (default {shown})")
    parser.add_argument("--repeats", type=int, default=2, help="refreshes per size and kind of input (default 2)")


def run(args: argparse.Namespace, console: Console) -> int:
    """Open the engine, measure, print and write."""
    params = preset(args.params or DEFAULT_PARAMS[args.engine])
    try:
        magnitudes = [float(part) for part in args.magnitudes.split(",") if part.strip()]
        periods = [int(part) for part in args.periods.split(",") if part.strip() and int(part) < params.slots]
    except ValueError:
        raise ConfigError(
            f"--magnitudes takes numbers and --periods whole numbers separated by commas, got {args.magnitudes!r} and "
            f"{args.periods!r}"
        ) from None
    request = noise_request(params, periods)
    ring, engine = open_engine(args.engine, request, threads=args.threads, device=args.device)
    table = measure_noise(
        engine,
        ring.encrypt,
        ring.decrypt,
        name=f"{args.engine}-{params.name}",
        hardware=hardware_of(engine, args),
        magnitudes=magnitudes,
        periods=periods,
        repeats=args.repeats,
        reporter=console.reporter,
    )
    console.heading(f"{params.name}: error of a refresh, {table.samples} slots per size")
    console.table(
        ("magnitude", "sigma", "on a constant", "largest", "bits of the bound"),
        [(m, table.sigma[m], table.constant[m], table.largest[m], table.bits(m)) for m in sorted(table.sigma)],
    )
    console.table(
        ("period", "random", "bias at the bound"),
        [(p, table.periods[p].spread, table.periods[p].bias) for p in sorted(table.periods)],
    )
    if args.out:
        table.save(args.out)
        console.print(f"wrote {args.out}")
    console.json(table.as_json())
    return 0
