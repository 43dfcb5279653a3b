# SPDX-License-Identifier: Apache-2.0
"""heat inspect: a Circuit's depth map, levels and domains. Needs no torch."""

from __future__ import annotations

import argparse
from typing import Any

from heatfhe.circuit import Circuit, show
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.records import FAMILIES
from heatfhe.stages import sites as sites_of

HELP = """Show what a Circuit computes: the count of every site in depth order (as a table and as a plot), the levels
each family spends, and the domains its constants were fitted on."""
EXAMPLES = """  heat inspect default
  heat inspect circuit --stages
  heat inspect circuit --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument("circuit", help="circuit directory, or 'default'")
    parser.add_argument("--stages", action="store_true", help="also list every stage")


def run(args: argparse.Namespace, console: Console) -> int:
    """Load and print."""
    circuit = Circuit.load(circuit_folder(args.circuit))
    facts = describe(circuit)
    c, s = circuit.calibration, circuit.shape
    console.print(
        f"circuit {circuit.name}: {s.layers} layers, width {s.width}, {s.heads} heads, hidden {s.hidden}, "
        f"vocabulary {s.vocabulary}, context {s.context}"
    )
    console.print(f"calibrated at {c.tolerance:g}, rule {c.rule}, {c.solver} solver, on {c.sequences} sequences")
    console.print(f"digest {circuit.digest}")
    if held := circuit.notes.get("stress"):
        shown = ", ".join(f"{s['diverged']} of {s['windows']} {kind}" for kind, s in held.items())
        console.print(f"odd windows that diverged when it was made: {shown}")
    console.print()
    console.heading("counts per site, in depth order")
    console.table(
        ("site", "count", "passes", "domain", "kappa"),
        [(r["site"], r["count"], r["passes"], _interval(r["lo"], r["hi"]), r["hi"] / r["lo"]) for r in facts["sites"]],
    )
    console.print()
    console.print(depth_map(circuit))
    console.heading("families")
    console.table(
        ("family", "sites", "iterations", "levels per iteration", "levels"),
        [(f["family"], f["sites"], f["iterations"], f["levels_per_iteration"], f["levels"]) for f in facts["families"]],
    )
    console.print(f"all: {facts['iterations']} iterations, {facts['levels']} levels of iterations")
    console.print()
    console.heading("softmaxes and activations")
    console.table(
        ("attention", "scores", "delta_1", "delta_2", "levels"),
        [(r["name"], _interval(r["lo"], r["hi"]), r["delta_1"], r["delta_2"], r["levels"]) for r in facts["softmaxes"]],
    )
    console.print()
    console.table(
        ("activation", "function", "bound", "kind", "levels", "error"),
        [(a["name"], a["function"], a["bound"], a["kind"], a["levels"], a["error"]) for a in facts["activations"]],
    )
    if facts["argmax"] is not None:
        a = facts["argmax"]
        settled = f", {len(a['settle'])} settling rounds of power {a['settle'][0]}" if a["settle"] else ""
        console.print(
            f"\nargmax: powers {a['powers']}{settled}, {a['levels']} levels, near ties in {a['near_ties']:.1%} of "
            f"rows, for sampling up to temperature {a['temperature']:g}"
        )
    if args.stages:
        console.print()
        console.print(show(circuit))
    console.json(facts)
    return 0


def describe(circuit: Circuit) -> dict[str, Any]:
    """Everything inspect shows, as plain data."""
    c = circuit.calibration
    sites: list[dict[str, Any]] = []
    levels = dict.fromkeys(FAMILIES, 0)
    for site in sites_of(circuit.stages):
        owner, passes = site.name.rpartition("/")[0], 1
        if owner in c.norms:
            lo, hi = c.norms[owner].fit.lo, c.norms[owner].fit.hi
        else:
            fit = c.softmaxes[owner].fit
            solver = fit.init if site.family == "softmax_init" or fit.refine is None else fit.refine
            lo, hi = solver.lo, solver.hi
            passes = fit.passes if site.family == "softmax_refine" else 1
        count = c.counts()[site.name]
        levels[site.family] += passes * count * FAMILIES[site.family].levels
        row = {"site": site.name, "family": site.family, "layer": site.layer}
        sites.append({**row, "count": count, "passes": passes, "lo": lo, "hi": hi})
    iterations = c.iterations()
    return {
        "name": circuit.name,
        "digest": circuit.digest,
        "sites": sites,
        "families": [
            {
                "family": name,
                "sites": sum(r["family"] == name for r in sites),
                "iterations": iterations[name],
                "levels_per_iteration": family.levels,
                "levels": levels[name],
            }
            for name, family in FAMILIES.items()
        ],
        "iterations": sum(iterations.values()),
        "levels": sum(levels.values()),
        "softmaxes": [
            {
                "name": r.name,
                "lo": r.fit.lo,
                "hi": r.fit.hi,
                "delta_1": r.fit.delta_1,
                "delta_2": r.fit.delta_2,
                "levels": r.fit.levels(r.init_count, r.refine_count),
            }
            for r in c.softmaxes.values()
        ],
        "activations": [
            {
                "name": a.name,
                "function": a.fit.function,
                "bound": a.fit.bound,
                "kind": a.fit.kind,
                "levels": a.fit.levels,
                "error": a.fit.error,
            }
            for a in c.activations.values()
        ],
        "argmax": None
        if c.argmax is None
        else {
            "powers": [r.power for r in c.argmax.schedule.rounds],
            "settle": [s.power for s in c.argmax.schedule.settle],
            "levels": c.argmax.schedule.levels,
            "temperature": c.argmax.temperature,
            "near_ties": c.argmax.near_ties,
            "smallest_leader": c.argmax.smallest_leader,
        },
    }


def depth_map(circuit: Circuit) -> str:
    """One bar per site, in depth order, a panel per family: the paper's depth map in text."""
    lines: list[str] = []
    facts = describe(circuit)["sites"]
    for name in FAMILIES:
        own = [r for r in facts if r["family"] == name]
        top = max((r["count"] for r in own), default=0)
        lines.append(f"{name} (each column a site, first to last; height is its count)")
        for height in range(top, 0, -1):
            bars = "".join("##" if r["count"] >= height else "  " for r in own)
            lines.append(f"{height:>4} |{bars}".rstrip())
        lines.append("     +" + "--" * len(own))
        lines.append("")
    return "\n".join(lines)


def _interval(lo: float, hi: float) -> str:
    return f"[{lo:.4g}, {hi:.4g}]"
