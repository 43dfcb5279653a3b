# SPDX-License-Identifier: Apache-2.0
"""heat drift: noise at every bootstrap of a plan, and the fidelity that is left, position by position."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.cli import drift_by_value as drift_by_value_output
from heatfhe.cli.bench_engine import add_device_argument
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_precision_argument, text_circuit
from heatfhe.engine import BootstrapNoise, Noise, NoiseTable
from heatfhe.errors import ConfigError, DataError, MissingExtraError
from heatfhe.evaluation import DRIFT_SEEDS as SEEDS
from heatfhe.evaluation import Drift, chosen_values, drift, drift_by_value, refreshed_values, sample_windows
from heatfhe.files import atomic_write, write_json
from heatfhe.planning import Plan, ProgramName, Rules, plan, preset

HELP = """Noise at every bootstrap of a circuit's plan, on the clear engine: KL, top-1 and collapse by position.

--only leaves the noise out everywhere but in one family. --rounding adds the rounding of products, rotations and
plaintexts: little beside that of a refresh, but it does not shrink with a small value. --by-value makes every refreshed
value noisy alone and ranks them by the KL each causes; it also shows the relative error of attention rows after each
part of their softmax. It runs every value of every window under every seed: begin with few windows and positions, and
keep what is done with -o."""
EXAMPLES = (
    "  heat drift default default-calibrated --params insecure-native-12 --sigma 1e-6,1e-5 --figure drift.png\n"
    "  heat drift my-circuit --params insecure-openfhe-12 --noise noise.json\n"
    "  heat drift my-gpt2 --params native-16-r40 --device cuda --sigma 1e-7\n"
    "  heat drift my-gpt2 --params native-16-r40 --device cuda --rounding\n"
    "  heat drift default default-calibrated --params insecure-paper-12 --only softmax\n"
    "  heat drift default --params insecure-paper-12 --by-value --windows 4 --positions 32 -o out/drift\n"
)
WINDOWS, SMALL = 64, (2, 1)  # windows, and windows and seeds where a processor would need hours
POSITIONS = 128
INTERRUPTED = "start the same command again; with -o finished values are kept"
LARGE = 1 << 12  # slots above which it would


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("circuits", nargs="+", help="circuit directories or 'default', on the same windows")
    parser.add_argument("--params", required=True, metavar="NAME", help="parameter set the plans are made for")
    parser.add_argument(
        "--sigma", metavar="S[,S]", help="standard deviations of a bootstrap (default: the parameters')"
    )
    more = "; of the noise that --sigma and --floor say, where they do"
    add_precision_argument(parser, more, asked=False)
    parser.add_argument("--floor", type=float, default=0.0, help="relative floor of the noise (default 0)")
    parser.add_argument("--noise", type=Path, metavar="FILE", help="a table of heat measure-noise instead of --sigma")
    large = f"on a CPU with more than {LARGE} slots, where {WINDOWS} windows of a large model take hours"
    parser.add_argument(
        "--windows", type=int, help=f"windows, drawn from the first circuit (default {WINDOWS}; {SMALL[0]} {large})"
    )
    parser.add_argument("--positions", type=int, help=f"positions per window (default: context, at most {POSITIONS})")
    parser.add_argument("--tokens", type=Path, metavar="FILE", help=".npy of token ids (windows, positions + 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the windows, and the first of the noise (default 0)")
    parser.add_argument(
        "--seeds", type=int, help=f"noise seeds the windows are run with (default {len(SEEDS)}; {SMALL[1]} where large)"
    )
    parser.add_argument(
        "--only", metavar="FAMILY[,FAMILY]",
        help="noise in these alone: an operator of the plan (softmax, layernorm, linear, attention, gelu, ...) or a "
        "kind of solver (norm_goldschmidt, norm_newton, softmax_init, softmax_refine)",
    )  # fmt: skip
    parser.add_argument(
        "--rounding", action="store_true",
        help="products, rotations, drops and plaintexts err too, by the parameters' scale (default: refreshes alone)",
    )  # fmt: skip
    parser.add_argument("--by-value", action="store_true", help="every refreshed value noisy alone, ranked by its KL")
    parser.add_argument(
        "-o", "--out", type=Path, help="with --by-value: keep finished values here; the same command goes on from them"
    )
    add_device_argument(parser, "where the clear engine runs: cpu (default) or cuda")
    parser.add_argument(
        "--figure", type=Path, metavar="PNG", help="draw KL by position, or by value (needs matplotlib)"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, run, print, draw."""
    if args.out is not None and not args.by_value:
        raise ConfigError("-o keeps the finished values of --by-value; give both or neither")
    if args.rounding and args.by_value:
        raise ConfigError("--by-value makes one refreshed value noisy at a time; leave --rounding out")
    params = preset(args.params)
    circuits = [text_circuit(name) for name in args.circuits]
    noises = _noises(args, params)
    few = args.device == "cpu" and params.slots > LARGE
    count = args.windows or (SMALL[0] if few else WINDOWS)
    seeds = range(args.seed, args.seed + (args.seeds or (SMALL[1] if few else len(SEEDS))))
    positions = args.positions or min(POSITIONS, circuits[0].room)
    if args.tokens is not None:
        try:
            windows = np.load(args.tokens, allow_pickle=False).astype(np.int64)
        except (OSError, ValueError) as err:
            raise DataError(f"{args.tokens}: not a .npy file of token ids ({err})") from err
    else:
        windows = sample_windows(circuits[0], count, positions + 1, seed=args.seed)
    planned: list[tuple[float, Noise, list[Plan]]] = []
    for sigma, noise in noises:
        rules = _rules(args, noise)
        same = bool(planned) and rules is None
        planned.append((sigma, noise, planned[-1][2] if same else _plans(args, params, circuits, windows, rules)))
    _check_family(args.only, circuits, planned[0][2])
    options: dict[str, Any] = {
        "seeds": seeds, "device": args.device, "reporter": console.reporter, "only": args.only,
    }  # fmt: skip
    size = f"{len(windows)} windows of {windows.shape[1] - 1} positions under {len(seeds)} seeds"
    if args.by_value:
        console.print(f"{size}, noise in one refreshed value of {params.name} at a time")
        return _by_value(args, console, circuits, windows, planned, options)
    found = [
        drift(made, circuit, windows, noise=noise, sigma=sigma, rounding=args.rounding, **options)
        for sigma, noise, plans in planned
        for made, circuit in zip(plans, circuits)
    ]
    where = "every bootstrap" if args.only is None else f"the bootstraps of {args.only}"
    where += " and every rounding" if args.rounding else ""
    console.print(f"{size}, noise at {where} of {params.name}")
    quarters = ("KL, 1st quarter", "2nd", "3rd", "4th")
    console.table(
        ("circuit", "sigma", "bootstraps", *quarters, "top-1", "collapsed", "perplexity", "clear"),
        [_row(d) for d in found],
    )
    if args.figure is not None:
        _draw(found, args.figure)
        console.print(f"wrote {args.figure}")
    console.json([d.as_json() for d in found])
    return 0


def _rules(args: argparse.Namespace, noise: Noise) -> Rules | None:
    """A plan that is asked for bits counts them beside the noise it will meet, where that is not its parameters'."""
    asked = args.precision is not None and (args.sigma is not None or args.floor)
    return Rules(noise=noise.deviation) if asked and isinstance(noise, BootstrapNoise) else None


def _plans(
    args: argparse.Namespace, params: Params, circuits: list[Circuit], windows: Any, rules: Rules | None
) -> list[Plan]:
    """A plan of each circuit for these windows."""
    options: dict[str, Any] = {"programs": (ProgramName.LOGITS,), "precision": args.precision, "rules": rules}
    return [plan(c, params, context=windows.shape[1] - 1, **options) for c in circuits]


def _check_family(only: str | None, circuits: list[Circuit], plans: list[Plan]) -> None:
    """Refuse a family that does not exist, or that none of the plans refreshes anything of, before any work."""
    if only is None:
        return
    values = [refreshed_values(made, circuit.calibration) for made, circuit in zip(plans, circuits)]
    if not any(chosen_values(v, only) for v in values):
        have = sorted({word for part in values for v in part for word in (v.operator, v.family) if word})
        raise ConfigError(f"--only {only}: these plans refresh nothing of it; they refresh {', '.join(have)}")


def _by_value(
    args: argparse.Namespace,
    console: Console,
    circuits: list[Circuit],
    windows: Any,
    planned: list[tuple[float, Noise, list[Plan]]],
    options: dict[str, Any],
) -> int:
    found = []
    for sigma, noise, plans in planned:
        for made, circuit in zip(plans, circuits):
            one = drift_by_value(made, circuit, windows, noise=noise, sigma=sigma, folder=args.out, **options)
            drift_by_value_output.show(one, console)
            found.append(one)
    if args.figure is not None:
        drift_by_value_output.draw(found, args.figure)
        console.print(f"wrote {args.figure}")
    result = [one.as_json() for one in found]
    if args.out is not None:
        write_json(args.out / "by-value.json", "heatfhe-drift-by-value", 1, {"circuits": result})
        console.print(f"wrote {args.out / 'by-value.json'}")
    console.json(result)
    return 0


def _noises(args: argparse.Namespace, params: Params) -> list[tuple[float, Noise]]:
    """Every noise asked for, with the standard deviation to show."""
    if args.noise is not None:
        if args.sigma is not None:
            raise ConfigError("--noise FILE and --sigma say the same thing twice; give one")
        table = NoiseTable.load(args.noise)
        return [(table.at(1.0, params.slots).spread, table.noise(params))]
    try:
        sigmas = [float(s) for s in args.sigma.split(",")] if args.sigma is not None else [params.noise]
    except ValueError:
        raise ConfigError(f"--sigma takes numbers separated by commas, got {args.sigma!r}") from None
    return [(s, BootstrapNoise(sigma=s, floor=args.floor)) for s in sigmas]


def _row(d: Drift) -> tuple[Any, ...]:
    f = d.fidelity
    collapsed = f"{f.collapsed}/{f.windows}"
    return (d.name, d.sigma, d.bootstraps, *d.quarters(), f.top1, collapsed, f.perplexity, f.clear_perplexity)


def _draw(found: list[Drift], path: Path) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError as err:
        raise MissingExtraError("report", needed_by="heat drift --figure") from err
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(d.name for d in found))
    sigmas = list(dict.fromkeys(d.sigma for d in found))
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6))
    for d in found:
        style = {"color": f"C{names.index(d.name)}", "linestyle": ("-", "--", ":", "-.")[sigmas.index(d.sigma) % 4]}
        positions = range(1, len(d.fidelity.kl_by_position) + 1)
        upper.semilogy(positions, d.fidelity.kl_by_position, label=f"{d.name}, noise {d.sigma:g}", **style)
        lower.plot(positions, d.fidelity.top1_by_position, **style)
    upper.set_ylabel("median KL to the clear run (nats)")
    lower.set_ylabel("top-1 agreement")
    lower.set_xlabel("position")
    upper.legend(fontsize="small")
    with atomic_write(path) as f:
        figure.savefig(f, format="png", dpi=150)
    pyplot.close(figure)
