# SPDX-License-Identifier: Apache-2.0
"""heat report: one self-contained HTML page, and figures, from any runs."""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path

import heatfhe
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.errors import ConfigError
from heatfhe.files import atomic_write

HELP = """Make one HTML page (no network, no script) from any runs, and compare them on it.

A run is a folder of heat train, heat export, heat evaluate --out, heat compare or make demo, a plan, or the output of
heat drift --json; 'default' and 'default-calibrated' are the embedded circuits."""
EXAMPLES = """  heat report default-calibrated default -o report.html
  heat report out/heat out/evaluation drift.json --params insecure-native-12 --figures out/figures -o report.html
"""
PACKAGES = ("numpy", "safetensors", "tokenizers", "numba", "openfhe", "torch", "transformers", "fastapi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders or files; the first circuit is the baseline")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="HTML", help="page to write")
    parser.add_argument("--params", default="insecure-native-12", help="plan every circuit for this set, or 'none'")
    parser.add_argument("--costs", help="cost table of the predictions: a name or a .json file")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also write figures as PNG (needs matplotlib)")
    parser.add_argument("--title", default="heatfhe report", help="heading of the page")


def run(args: argparse.Namespace, console: Console) -> int:
    """Gather, render, write."""
    from heatfhe.planning import cost_table, preset
    from heatfhe.report import draw_figures, gather, render

    if args.out.is_dir():
        raise ConfigError(f"{args.out}: is a folder; give the page a file name, such as {args.out / 'report.html'}")
    params = None if args.params == "none" else preset(args.params)
    costs = cost_table(args.costs) if args.costs else None
    found = gather([circuit_folder(name) for name in args.runs], params=params, costs=costs)
    command = "heat report " + " ".join(shlex.quote(a) for a in _arguments(args))
    page = render(found, title=args.title, versions=_versions(), commands=[command])
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(args.out) as f:
        f.write(page.encode())
    console.print(f"wrote {args.out} ({len(page) / 1024:.0f} KiB, opens without a network)")
    drawn = draw_figures(found, args.figures) if args.figures else []
    for path in drawn:
        console.print(f"wrote {path}")
    console.json({"out": str(args.out), "bytes": len(page.encode()), "figures": [str(p) for p in drawn]})
    return 0


def _arguments(args: argparse.Namespace) -> list[str]:
    given = [*args.runs, "--params", args.params]
    given += ["--costs", args.costs] if args.costs else []
    return [*given, "-o", str(args.out)]


def _versions() -> list[tuple[str, str]]:
    out = [("heatfhe", heatfhe.__version__), ("Python", platform.python_version()), ("system", platform.platform())]
    for name in PACKAGES:
        try:
            out.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return [*out, ("processor", f"{platform.machine()}, {_cores()}")]


def _cores() -> str:
    import os

    return f"{os.cpu_count()} cores" if sys.platform else ""
