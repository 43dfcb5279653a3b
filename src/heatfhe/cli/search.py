# SPDX-License-Identifier: Apache-2.0
"""heat search: counts searched on frozen weights (ATLAS), from a calibrated circuit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heatfhe.assets import sampled_stories
from heatfhe.circuit import Circuit
from heatfhe.cli.bench_engine import add_device_argument
from heatfhe.cli.console import Console
from heatfhe.cli.figures import drawing
from heatfhe.cli.model_source import circuit_folder, circuit_tokens
from heatfhe.errors import ConfigError, DataError

if TYPE_CHECKING:
    from heatfhe.search import Found

HELP = """Search the counts of a calibrated circuit with NSGA-II, as ATLAS does: the weights stay as they are.

Two objectives: the levels that solvers spend, and the mean absolute error of the last block's hidden states against the
model itself. The first stage looks for one configuration of all layers, the second, seeded with its front, for each
layer's own. All ends are judged by perplexity on other text; the cheapest within --within of the calibrated one becomes
OUT/circuit. front.json holds all of them, front.png the picture. With the defaults 24,144 candidates are tried: hours
on a CPU, minutes on a GPU. Stopped at any moment, the same command goes on."""
EXAMPLES = """  heat search default-calibrated -o out/atlas
  heat search out/calibrated --text corpus.txt -o out/atlas --device cuda --seed 1
  heat search default-calibrated -o out/trial --population 12,16 --generations 6,12 --tokens 512 --judge-tokens 1024
  heat search default-calibrated -o out/atlas-noise --under-noise 1.7e-4
  heat search default-calibrated -o out/atlas-seconds --objective seconds --params insecure-native-12
"""
INTERRUPTED = "start the same command again to go on where it was"
POSITIONS, JUDGED = 512, 1024  # tokens of a window, or as many as the circuit's context has room for
SIGMA = 1.7e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("circuit", help="calibrated circuit: a directory, or 'default-calibrated'")
    parser.add_argument("-o", "--out", type=Path, required=True, help="run folder")
    parser.add_argument(
        "--text", type=Path, help="text file or .npy of token ids; default: the embedded stories of the default model"
    )
    parser.add_argument("--population", default="48,96", help="candidates of both stages (default 48,96)")
    parser.add_argument("--generations", default="50,225", help="of both stages (default 50,225)")
    parser.add_argument("--tokens", type=int, default=2048, help="that candidates are run on (default 2048)")
    parser.add_argument("--judge-tokens", type=int, default=8192, help="that ends are judged on (default 8192)")
    parser.add_argument(
        "--bound", type=float,
        help="largest error of a feasible candidate (default: measured, the least that admits whatever is within "
        "--within; the paper's for GPT-2 is 1.0)",
    )  # fmt: skip
    parser.add_argument(
        "--within", type=float, default=0.02, help="of the calibrated perplexity, for what is chosen (default 0.02)"
    )
    parser.add_argument(
        "--under-noise", type=float, nargs="?", const=SIGMA, default=0.0, metavar="SIGMA",
        help=f"noise at every site while candidates are run and judged ({SIGMA:g} if no number is given)",
    )  # fmt: skip
    parser.add_argument(
        "--objective", choices=("levels", "seconds"), default="levels",
        help="what to save: solver levels (default), or the seconds that a plan predicts for a token",
    )  # fmt: skip
    parser.add_argument("--params", default="insecure-native-12", help="parameter set of --objective seconds")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    add_device_argument(parser, "where candidates run: cpu (default) or cuda")
    parser.add_argument(
        "--dtype", choices=("float32", "float64", "tf32"), default="float32",
        help="what candidates run in: float32 (default), float64, or tf32, which is float32 with coarser and faster "
        "products on a GPU; what the search ends with is judged in float32 then",
    )  # fmt: skip


def run(args: argparse.Namespace, console: Console) -> int:
    """Search, print, export, draw."""
    from heatfhe.search import SearchSettings, search

    circuit = Circuit.load(circuit_folder(args.circuit))
    objective = args.objective if args.objective == "levels" else f"seconds of {args.params}"
    settings = SearchSettings(
        population=_pair("--population", args.population), generations=_pair("--generations", args.generations),
        seed=args.seed, bound=args.bound, within=args.within, sigma=args.under_noise, objective=objective,
        device=args.device, dtype=args.dtype,
    )  # fmt: skip
    tokens, judged = _windows(args, circuit)
    price = None if args.objective == "levels" else _seconds(circuit, args.params, judged.shape[1] - 1)
    console.print(
        f"{circuit.name}: {settings.candidates} candidates on {tokens.size} tokens, ends judged on "
        f"{judged[:, 1:].size}; {settings.device}"
    )
    found = search(circuit, tokens, judged, settings, folder=args.out, price=price, reporter=console.reporter)
    _print(found, console)
    if drawing():
        _draw(found, args.out / "front.png")
        console.print(f"wrote {args.out / 'front.png'}")
    console.json(found.as_json())
    found.applied(circuit).save(args.out / "circuit")
    console.print(f"wrote {args.out / 'circuit'}")
    return 0


def _pair(option: str, text: str) -> tuple[int, int]:
    try:
        first, second = (int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} takes two whole numbers, one a stage, such as 48,96; got {text!r}") from None
    return first, second


def _windows(args: argparse.Namespace, circuit: Circuit) -> tuple[Any, Any]:
    """Windows that candidates run on (B, T), and behind them those that judge (W, P + 1)."""
    if args.text is not None:
        stream, name = circuit_tokens(args.text, circuit), str(args.text)
    elif args.circuit.startswith("default"):
        stream, name = np.asarray(circuit.encode("\n".join(sampled_stories()))), "the stories"
    else:
        raise DataError("no text: give --text FILE (text, or .npy of token ids)")
    if args.tokens < 2 or args.judge_tokens < 2:
        raise ConfigError(f"--tokens and --judge-tokens are at least 2, got {args.tokens} and {args.judge_tokens}")
    length, longer = (min(n, circuit.room) for n in (POSITIONS, JUDGED))
    rows, more = max(1, args.tokens // length), max(1, args.judge_tokens // longer)
    if len(stream) < (needed := rows * length + more * longer + 1):
        raise DataError(
            f"{name}: {len(stream)} tokens, the search needs {needed}; give more text, or fewer --tokens and "
            "--judge-tokens"
        )
    stream = np.asarray(stream[:needed], dtype=np.int64)
    behind = np.lib.stride_tricks.sliding_window_view(stream[rows * length :], longer + 1)[::longer]
    return stream[: rows * length].reshape(rows, length), np.ascontiguousarray(behind)


def _seconds(circuit: Circuit, params: str, context: int) -> Any:
    from heatfhe.planning import preset
    from heatfhe.search import PlanSeconds

    return PlanSeconds(circuit, preset(params), context=context)


def _print(found: Found, console: Console) -> None:
    priced = found.settings.objective != "levels"
    shown = [("calibrated", found.calibrated)]
    shown += [("chosen" if e is found.chosen else "", e) for e in found.ends if e.front or e is found.chosen]
    rows = [(name, e.iterations, e.levels, *([e.price] if priced else []), e.error, e.perplexity) for name, e in shown]
    priced_by = [found.settings.objective] if priced else []
    console.table(("", "it/fwd", "levels", *priced_by, "error", "perplexity"), rows)
    console.print(
        f"{found.candidates} candidates in {found.seconds:.0f} s, feasible up to an error of {found.bound:.4g}; "
        f"{len(found.ends)} ends judged"
    )


def _draw(found: Found, path: Path) -> None:
    """Both objectives of all ends, the front as a line."""
    from heatfhe.cli.figures import canvas

    with canvas(path) as axes:
        line = [(end.price, end.error) for end in found.ends if end.front]
        other = [(end.price, end.error) for end in found.ends if not end.front and end.error <= found.bound]
        for points, style in ((other, {"marker": ".", "linestyle": "none"}), (line, {"marker": "o", "markersize": 4})):
            if points:
                axes.plot(*zip(*points), color="C0", alpha=0.5 if points is other else 1.0, **style)
        axes.axhline(found.bound, color="gray", linestyle=":", label=f"bound {found.bound:.3g}")
        for end, mark, name in ((found.calibrated, "s", "calibrated"), (found.chosen, "*", "chosen")):
            if end is not None:
                words = f"{name}: {end.iterations} iterations, perplexity {end.perplexity:.4g}"
                axes.plot([end.price], [end.error], mark, color="C1", markersize=10, linestyle="none", label=words)
        axes.set_yscale("log")
        axes.set_xlabel(found.settings.objective)
        axes.set_ylabel("mean absolute error of the last hidden states")
        axes.legend(fontsize="small")
