# SPDX-License-Identifier: Apache-2.0
"""heat compare: every preset trained or calibrated on the same text, one table."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from heatfhe.cli.bench_engine import add_device_argument
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_model, add_spread_arguments, check_spread, text_folder
from heatfhe.errors import ConfigError
from heatfhe.files import atomic_write, write_json

HELP = """Train or calibrate a model in every way the paper compares, and print one table.

Rows: the parent in plaintext; calibrated at each tolerance, per site and jointly, on the text and the odd windows that
the trained rows are calibrated on (--odd 0 for the text alone); then the presets, each over every seed. fixed-counts
is cut to the iterations of the heat row of its seed and solver, where there is one; transplant puts that row's counts
into the squeezed and into the calibrated circuit; plan-aware learns what iterations cost in plans for the first of
--params, and stairs hands iterations over between softmaxes where that saves a bootstrap of such a plan; atlas and
atlas-noisy, which are not among the defaults, search the counts of the calibrated circuit (hours on a CPU, minutes
with --device cuda). Columns: iterations per forward, in all and by family; levels they spend; bootstraps and predicted
seconds up to the logits (bts, s) and of a generated token (bts/tok, s/tok); collapsed windows, positions lost (no
number in the clear, diverged under noise), top-1 and perplexity under noise, perplexity in the clear; odd windows that
go astray in the clear. Finished rows are kept in the run folder and not made again; compare.json holds every row,
compare.md the mean over seeds; heat report shows both."""
EXAMPLES = """  heat compare default -o out/compare
  heat compare default -o out/compare --presets heat,heat:relaxed,control --seeds 0,1,2 --params insecure-native-12
  heat compare default -o out/compare --presets heat,squeezed,transplant
  heat compare default -o out/compare --seeds 0,1,2 --processes 16
  heat compare default -o /mnt/shared/compare --seeds 0,1,2 --ray auto
  heat compare default -o out/compare --presets heat,control,atlas --device cuda
"""
SIGMA = 1.7e-4
PRESETS = "heat,heat:relaxed,plan-aware,squeezed,depth-only,fixed-counts,transplant,control,control-distilled"
INTERRUPTED = "start the same command again; finished rows are kept"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="run folder")
    parser.add_argument("--text", help="as in heat train")
    parser.add_argument("--recipe", help="as in heat train")
    parser.add_argument(
        "--presets",
        default=PRESETS,
        help=f"those to train (default {PRESETS}); also stairs, noisy (heat under refresh noise), atlas and "
        "atlas-noisy (searches); NAME:relaxed for the relaxed solver",
    )
    parser.add_argument(
        "--rules", default="per-site,joint", help="how calibrations share a tolerance (default per-site,joint)"
    )
    parser.add_argument("--stress", type=int, default=8, help="odd windows of each kind (default 8; 0 for none)")
    parser.add_argument("--seeds", default="0", help="one training run each (default 0)")
    parser.add_argument(
        "--fixed-total", type=int, default=0, help="cut fixed-counts to this many iterations, not to HEAT's own"
    )
    parser.add_argument("--sigma", type=float, default=SIGMA, help=f"refresh noise (default {SIGMA:g}, the paper's)")
    parser.add_argument("--windows", type=int, default=32, help="held-out windows measured (default 32)")
    parser.add_argument("--share", type=float, default=1.0, help="shorten every phase to this share, for trials")
    parser.add_argument("--odd", type=float, metavar="SHARE", help="of odd windows, 0 to 0.5 (default: the recipe's)")
    parser.add_argument(
        "--params",
        help="parameter sets, with commas: noise enters at the bootstraps of each one's plan (default: at every site)",
    )
    add_spread_arguments(parser, "rows")
    add_device_argument(parser, "where searches run: cpu (default) or cuda; with --processes all else is on the CPU")


def run(args: argparse.Namespace, console: Console) -> int:
    """Make every circuit that is missing, measure all, print."""
    from heatfhe.cli.comparison import GENERATIONS, Comparison
    from heatfhe.cli.comparison_jobs import Job, make_jobs
    from heatfhe.evaluation import (
        COMPARISON_HEADERS,
        ComparisonRow,
        comparison_markdown,
        comparison_row,
        comparison_summary,
    )
    from heatfhe.planning import preset as parameter_set
    from heatfhe.training import Recipe, recipe

    params = tuple(args.params.split(",")) if args.params else (None,)
    for name in params:
        if name is not None:
            parameter_set(name)
    check_spread(args)
    text_folder(args.model)
    named = args.recipe or ("default-model" if args.model == "default" else "gpt2-small")

    def base(solver: str) -> Recipe:
        chosen = replace(recipe(named, solver).scaled(args.share), fixed_total=args.fixed_total)
        return chosen if args.odd is None else replace(chosen, odd_share=args.odd)

    if args.stress < 0:
        raise ConfigError(f"--stress takes a number of windows, got {args.stress}")
    jobs = make_jobs(base, args.presets.split(","), seed_numbers(args.seeds), args.rules.split(","))
    work = Comparison(
        model=args.model,
        out=args.out,
        base=base("plain"),
        text=args.text,
        windows=args.windows,
        sigma=args.sigma,
        params=params,
        stressed=args.stress,
        device=args.device,
        generations=(scaled(GENERATIONS[0], args.share), scaled(GENERATIONS[1], args.share)),
    )

    def done(job: Job, rows: list[ComparisonRow]) -> None:
        first = rows[0]
        facts = f"{first.total} iterations, perplexity {first.perplexity:.3f}, {first.noisy_perplexity:.3f} under noise"
        console.print(f"{job.name}: {facts}, {first.seconds:.0f} s of training")

    rows = work.run(jobs, processes=args.processes, ray=args.ray, done=done, reporter=console.reporter)
    for name in params:
        console.print(f"noise {args.sigma:g} at {'every site' if name is None else f'every bootstrap of {name}'}")
        console.table(COMPARISON_HEADERS, [comparison_row(row) for row in rows if row.params == name])
    tables = {}
    for name in params:
        headers, body = comparison_summary([row for row in rows if row.params == name])
        tables[name or "sites"] = {"headers": headers, "rows": body}
    result = {"rows": [row.as_json() for row in rows], "sigma": args.sigma, "params": args.params, "tables": tables}
    write_json(args.out / "compare.json", "heatfhe-comparison", 2, result)
    with atomic_write(args.out / "compare.md") as f:
        f.write("\n".join(comparison_markdown([row for row in rows if row.params == name]) for name in params).encode())
    console.json(result)
    return 0


def scaled(generations: int, share: float) -> int:
    """A share of the generations of a search, at least one."""
    return max(1, round(share * generations))


def seed_numbers(text: str) -> list[int]:
    """The seeds of an option --seeds."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds takes whole numbers separated by commas, got {text!r}") from None
