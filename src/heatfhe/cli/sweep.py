# SPDX-License-Identifier: Apache-2.0
"""heat sweep: how much does a result depend on a recipe's fields, and on the seed?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from heatfhe.cli.console import Console, format_table
from heatfhe.cli.figures import canvas, drawing
from heatfhe.cli.model_source import add_model, add_spread_arguments, check_spread, model_folder
from heatfhe.files import atomic_write, write_json

HELP = """Train a model at several values of a recipe's fields, and with several seeds; one table and two figures.

All combinations of the values are trained at the first seed, and the recipe as it is at every seed (--cross: all
combinations at every seed). Points are kept in the run folder: finished ones are not made again, stopped ones go on
from their checkpoints. sweep.json holds every point with its counts by site, sweep.md the table; sensitivity.png shows
iterations and perplexity over the first field, seeds.png the course of the runs that differ in the seed alone. The
field of a phase is written with the phase: heat.lambda_iter."""
EXAMPLES = """  heat sweep default -o out/sweep --vary heat.lambda_iter=0.1,0.2,0.4 --vary prior_end=0.8,0.9,0.95
  heat sweep default -o out/seeds --seeds 0,1,2,3 --processes 4
  heat sweep default -o /mnt/shared/seeds --seeds 0,1,2,3 --ray auto
  heat sweep my-gpt2 --text corpus.txt -o out/sweep --vary gap=100,150 --vary heat.lr=5e-5,1e-4 --cross
"""
SIGMA = 1.7e-4
INTERRUPTED = "start the same command again; finished points are kept, others go on from their checkpoints"
KIND, VERSION = "heatfhe-sweep", 1
HEADERS = ("point", "it/fwd", "levels", "perplexity", "ppl noisy", "KL", "top-1 %", "diverged", "training, s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, help="run folder")
    parser.add_argument("--text", help="as in heat train")
    parser.add_argument("--recipe", help="as in heat train")
    parser.add_argument("--preset", default="heat", help="as in heat train (default heat)")
    parser.add_argument("--solver", choices=("plain", "relaxed"), default="plain", help="default plain")
    parser.add_argument(
        "--vary", action="append", default=[], metavar="FIELD=VALUE,VALUE",
        help="a field of the recipe and its values (repeatable); an unknown one lists all fields",
    )  # fmt: skip
    parser.add_argument("--seeds", default="0", help="one run each (default 0)")
    parser.add_argument("--cross", action="store_true", help="all combinations at every seed, not at the first alone")
    parser.add_argument("--windows", type=int, default=32, help="held-out windows measured (default 32)")
    parser.add_argument("--sigma", type=float, default=SIGMA, help=f"refresh noise (default {SIGMA:g}, the paper's)")
    parser.add_argument("--share", type=float, default=1.0, help="shorten every phase to this share, for trials")
    add_spread_arguments(parser, "points")


def run(args: argparse.Namespace, console: Console) -> int:
    """Make every point that is missing, measure all, print, draw."""
    from heatfhe.cli.compare import seed_numbers
    from heatfhe.cli.comparison import Comparison
    from heatfhe.cli.comparison_jobs import Job
    from heatfhe.cli.points import Result, disagreements, make_points, parse_axes
    from heatfhe.evaluation import ComparisonRow
    from heatfhe.training import ablation, read_log, recipe

    check_spread(args)
    model_folder(args.model)
    named = args.recipe or ("default-model" if args.model == "default" else "gpt2-small")
    base = ablation(args.preset, recipe(named, args.solver).scaled(args.share))
    axes = parse_axes(args.vary)
    points = make_points(base, axes, seed_numbers(args.seeds), cross=args.cross)
    jobs = [Job(name=point.name, solver=point.recipe.solver, recipe=point.recipe) for point in points]
    work = Comparison(model=args.model, out=args.out, base=base, text=args.text, windows=args.windows, sigma=args.sigma)

    def done(job: Job, rows: list[ComparisonRow]) -> None:
        console.print(f"{job.name}: {rows[0].total} iterations, perplexity {rows[0].perplexity:.3f}")

    rows = work.run(jobs, processes=args.processes, ray=args.ray, done=done, reporter=console.reporter)
    results = []
    for point, job, row in zip(points, jobs, rows):
        lines = [line for line in read_log(args.out / job.folder) if line["kind"] == "validation"]
        course = tuple((line["step"], line["iterations"], line["loss"]) for line in lines if line["loss"] is not None)
        counts = work.circuit(job.name).calibration.counts()
        results.append(Result(point=point, row=row, counts=counts, course=course))
    alike = [result for result in results if result.point.values == results[0].point.values]
    apart = disagreements(alike)
    table = format_table(HEADERS, [_row(result) for result in results])
    console.print(table)
    words = _agreement(len(alike), len(results[0].counts), apart)
    console.print(words)
    body = {"axes": axes, "points": [result.as_json() for result in results], "seeds_differ_at": apart}
    write_json(args.out / "sweep.json", KIND, VERSION, body)
    with atomic_write(args.out / "sweep.md") as f:
        f.write(f"```\n{table}\n```\n\n{words}\n".encode())
    if drawing():
        for path in _draw(results, alike, axes, args.out):
            console.print(f"wrote {path}")
    console.json(body)
    return 0


def _row(result: Any) -> tuple[Any, ...]:
    row = result.row
    return (
        *(result.point.name, row.total, row.levels, round(row.perplexity, 4), round(row.noisy_perplexity, 4), row.kl),
        *(round(100 * row.top1, 2), f"{row.collapsed}/{row.windows}", round(row.seconds)),
    )


def _agreement(runs: int, sites: int, apart: dict[str, list[int]]) -> str:
    if runs < 2:
        return "one seed: give more with --seeds to see how much it decides"
    if not apart:
        return f"{runs} seeds of the recipe end with the same count at every one of {sites} sites"
    shown = "; ".join(f"{site} {counts}" for site, counts in apart.items())
    return f"{runs} seeds of the recipe differ at {len(apart)} of {sites} sites: {shown}"


def _draw(results: list[Any], alike: list[Any], axes: dict[str, list[Any]], out: Path) -> list[Path]:
    """The paper's two sensitivity figures, as far as the points allow."""
    made = []
    numeric = [name for name, values in axes.items() if all(isinstance(v, (int, float)) for v in values)]
    if numeric:
        made.append(out / "sensitivity.png")
        _sensitivity(results, numeric[0], made[-1])
    if any(result.course for result in alike):
        made.append(out / "seeds.png")
        _seeds(alike, made[-1])
    return made


def _sensitivity(results: list[Any], field: str, path: Path) -> None:
    """Iterations and perplexity over one field, a line for each combination of the others, at the first seed."""
    lines: dict[str, list[tuple[float, int, float]]] = {}
    for result in results:
        if result.point.seed != results[0].point.seed:
            continue
        others = ", ".join(f"{name} {value}" for name, value in result.point.values.items() if name != field)
        point = (float(result.point.values[field]), result.row.total, result.row.perplexity)
        lines.setdefault(others or "recipe", []).append(point)
    with canvas(path, columns=2) as (left, right):
        for number, (label, points) in enumerate(sorted(lines.items())):
            x, iterations, perplexity = zip(*sorted(points))
            left.plot(x, iterations, marker="o", color=f"C{number}", label=label)
            right.plot(x, perplexity, marker="o", color=f"C{number}")
        for axis, words in ((left, "iterations per forward"), (right, "perplexity")):
            axis.set_xlabel(field)
            axis.set_ylabel(words)
        left.legend(fontsize="small")


def _seeds(alike: list[Any], path: Path) -> None:
    """Iterations and held-out loss over updates: mean over the seeds and its 95 % interval."""
    from heatfhe.cli.points import interval

    steps = sorted(set.intersection(*({entry[0] for entry in result.course} for result in alike)))
    by_step = [[next(e for e in result.course if e[0] == step) for result in alike] for step in steps]
    with canvas(path, columns=2) as both:
        for axis, part, words in zip(both, (1, 2), ("iterations per forward", "validation loss")):
            ranges = [interval([float(entry[part]) for entry in entries]) for entries in by_step]
            means = [mean for mean, _ in ranges]
            axis.plot(steps, means, color="C0")
            low, high = [m - h for m, h in ranges], [m + h for m, h in ranges]
            axis.fill_between(steps, low, high, color="C0", alpha=0.3, label=f"95 % over {len(alike)} seeds")
            axis.set_xlabel("update")
            axis.set_ylabel(words)
        both[0].legend(fontsize="small")
