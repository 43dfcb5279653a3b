# SPDX-License-Identifier: Apache-2.0
"""heat calibrate: fix every site's domain, constants and count on real text."""

from __future__ import annotations

import argparse
from pathlib import Path

from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_model, add_prefix, load_text, text_folder
from heatfhe.errors import ConfigError
from heatfhe.models import encoder

HELP = """Watch a model on real text and give every site its domain, its constants and the smallest count that meets a
tolerance. The result is one JSON file; heat export turns it and the model into a Circuit."""
EXAMPLES = """  heat calibrate default -o out/calibration.json
  heat calibrate my-gpt2 --text corpus.txt --tolerance 1e-3 --rule joint --solver relaxed -o calibration.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="calibration file to write")
    parser.add_argument(
        "--text", help="text file, .jsonl, .npy of token ids, or hf:NAME; default: the embedded stories"
    )
    parser.add_argument("--context", type=int, metavar="T", help="tokens of a window (default: the model's context)")
    add_prefix(parser)
    parser.add_argument("--windows", type=int, default=128, help="windows of the context length to watch (default 128)")
    parser.add_argument("--batch", type=int, default=1, help="windows per forward pass")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest relative error of a solver")
    parser.add_argument(
        "--rule",
        choices=("per-site", "joint"),
        default="per-site",
        help="how counts are found: each site alone, or all together",
    )
    parser.add_argument(
        "--solver", choices=("plain", "relaxed"), default="plain", help="the paper's, or ours with fewer iterations"
    )
    parser.add_argument(
        "--margin", type=float, default=1.2, help="widen each domain beyond the observed range by this factor"
    )
    parser.add_argument(
        "--activation-tolerance",
        type=float,
        default=1e-3,
        help="largest error of an activation's polynomial; relu needs about 1e-2",
    )
    parser.add_argument(
        "--delta-2", type=int, help="fix every softmax's refinement factor (default: cheapest per block)"
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="highest that the argmax shall sample at (default 1)"
    )
    parser.add_argument(
        "--settle",
        type=int,
        default=0,
        metavar="N",
        help="rounds that follow the argmax's division, each of which doubles its sharpening for four levels: fewer "
        "mixtures of two words are fed back (default 0; the default model has 6)",
    )
    parser.add_argument(
        "--form", choices=("quotient", "partial"), default="quotient", help="of the norms' rational seed"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Observe, fit, write, print the counts by family."""
    import torch

    from heatfhe.ranges import FitOptions, fit_calibration, observe
    from heatfhe.sites import PrepareConfig, prepare

    if args.windows < 1 or args.batch < 1:
        raise ConfigError(f"--windows and --batch must be at least 1, got {args.windows} and {args.batch}")
    options = FitOptions(
        tolerance=args.tolerance,
        rule=args.rule,
        solver=args.solver,
        margin=args.margin,
        delta_2=args.delta_2,
        form=args.form,
        activation_tolerance=args.activation_tolerance,
        settle=args.settle,
    )
    folder = text_folder(args.model)
    encode, end = encoder(folder)
    prepared = prepare(folder, PrepareConfig(prefix=tuple(encode(args.prefix))))
    longest = prepared.architecture.shape.context - len(prepared.config.prefix)
    if args.context is not None and not 2 <= args.context <= longest:
        raise ConfigError(f"--context lies between 2 and the model's own {longest}, got {args.context}")
    windows = load_text(args.text, args.model, encode, args.context or longest, end)
    rows = torch.from_numpy(windows.rows[: args.windows, :-1])
    batches = rows.split(args.batch)
    seen = observe(prepared, batches, temperature=args.temperature, reporter=console.reporter, total=len(batches))
    calibration = fit_calibration(prepared.architecture, seen, options, reporter=console.reporter)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(args.out)
    iterations = calibration.iterations()
    console.print(
        f"{len(rows)} windows of {rows.shape[1]} tokens, tolerance {args.tolerance:g}, {args.rule}, {args.solver}"
    )
    console.table(("family", "iterations per forward"), [*iterations.items(), ("all", sum(iterations.values()))])
    console.print(f"written: {args.out}    next: heat export {args.model} --calibration {args.out} -o circuit")
    console.json(
        {
            "out": str(args.out),
            "iterations": iterations,
            "counts": calibration.counts(),
            "windows": len(rows),
            "tolerance": args.tolerance,
            "rule": args.rule,
            "solver": args.solver,
        }
    )
    return 0
