# SPDX-License-Identifier: Apache-2.0
"""heat plan: bind a circuit to parameters and show what a token costs."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.cli.bench_engine import add_device_argument
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import add_precision_argument, circuit_folder
from heatfhe.errors import EngineError, MissingExtraError
from heatfhe.planning import (
    ALGORITHMS,
    CostTable,
    OperatorTally,
    Plan,
    ProgramName,
    blurred_ties,
    cost_table,
    cost_tables,
    default_cost,
    faint_sums,
    key_bytes,
    level_digits,
    level_path,
    plan,
    preset,
    presets,
    tally,
    tally_bars,
    weight_bytes,
)

HELP = "Pack a circuit, place its bootstraps, and print or write the plan."
EXAMPLES = (
    "  heat plan default --params insecure-openfhe-12 -o my.plan\n"
    "  heat plan my-circuit --params native-16-r40 --costs cheddar-h200 --compare\n"
    "  heat plan my-circuit --params native-16-r40-lean --device cuda --precision 10 --context 128 -o my.plan\n"
)
SHOWN, SERVED = "generate,prompt", "generate,prompt,logits,sample"
"""What a token costs; and with a file, which is for a server, also what its clients may ask for with a temperature."""
BLURRED = 1e-3  # of a variance: some 200 times that is what noise adds to the logarithm of leader over runner-up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("circuit", help="circuit directory, from heat export, or 'default'")
    parser.add_argument("--params", required=True, metavar="NAME", help=f"one of {', '.join(sorted(presets()))}")
    parser.add_argument("--placement", choices=sorted(ALGORITHMS), default="exact", help="algorithm (default exact)")
    parser.add_argument("--costs", metavar="TABLE", help=f"cost table: {', '.join(cost_tables())}, or a .json file")
    parser.add_argument("--context", type=int, metavar="T", help="positions the cache holds (default: the circuit's)")
    parser.add_argument(
        "--programs",
        help=f"comma-separated, of {', '.join(ProgramName)} (default: all that a server offers with -o, else {SHOWN}; "
        "classify of images)",
    )
    parser.add_argument(
        "--prefill", type=int, metavar="TOKENS", help="a program for so many prompt tokens at once, too"
    )
    parser.add_argument("--cut-polynomials", action="store_true", help="allow bootstraps inside polynomials")
    parser.add_argument("--mlp", choices=("auto", "A", "B"), default="auto", help="variant of the MLP (default auto)")
    add_precision_argument(parser)
    add_device_argument(parser, "whose prices to plan with, where no --costs are given: cpu (default) or cuda")
    parser.add_argument("--compare", action="store_true", help="run every placement and show them side by side")
    parser.add_argument("--rotations", action="store_true", help="list the rotations that need keys")
    parser.add_argument("-o", "--out", type=Path, metavar="PLAN", help="write the plan to this file")


def run(args: argparse.Namespace, console: Console) -> int:
    """Plan, print, write."""
    circuit, params = Circuit.load(circuit_folder(args.circuit)), preset(args.params)
    table = cost_table(args.costs or default_cost(params, args.device))
    asked = args.programs or (None if circuit.grid is not None else SERVED if args.out is not None else SHOWN)
    names = tuple(n.strip() for n in asked.split(",") if n.strip()) if asked else None
    options: dict[str, Any] = {"cost": table, "context": args.context, "programs": names, "mlp": args.mlp}
    options |= {"contract": not args.cut_polynomials, "precision": args.precision, "prefill": args.prefill}
    if args.compare:
        return _compare(args, console, circuit, options)
    made = plan(circuit, params, placement=args.placement, **options)
    if args.out is not None:
        made.save(args.out)
    found = {name: tally(made, name, table) for name in made.programs}
    console.print(
        f"{circuit.name} on {params.name}: {params.levels} levels, {params.slots} slots, {made.context} positions"
    )
    console.print(f"security: {params.security_claim}")
    if params.engine == "openfhe":
        console.print(f"OpenFHE's own: {_openfhe_answer(params)}")
    console.print(f"prices: {table.name} ({table.hardware}; {table.provenance})")
    if not args.costs and table.slots != params.slots:
        console.warn(
            f"{table.name} prices a ring of {table.slots} slots and {params.name} has {params.slots}: these are "
            f"another ring's seconds; heat bench-engine {params.engine} --params {params.name} --out costs.json "
            "measures this machine, --costs costs.json plans with it"
        )
    faint = faint_sums(circuit, params.noise)
    for site, share in sorted(faint.items(), key=lambda item: item[1])[:3]:
        console.warn(
            f"{site}: sums of its rows may be {share:.1e} of the end of their domain, and a refresh of {params.name} "
            f"errs by {params.noise:.1e}: such rows are lost under encryption; train again with a smaller --margin"
        )
    if args.precision is not None:
        for name, worst in made.notes["fewest_bits"].items():
            what = (
                f"{worst[0]} keeps fewest bits, {worst[1]:g} at its smallest" if worst else "none is known to be small"
            )
            console.print(f"{name}, refreshed values: {what}")
    for name, rows in found.items():
        if not args.programs and name in SERVED.split(",") and name not in SHOWN.split(","):
            continue  # nearly the same; one line at the end will do
        console.heading(f"\n{name}: {len(made.program(name).steps)} steps")
        console.table(_HEADERS, [_row(t) for t in [*rows.values(), _total(rows)]])
        console.print("seconds by operator, bootstraps hatched:")
        for line in tally_bars(rows, table.unit):
            console.print("  " + line)
        console.print("levels along the longest path: " + level_digits(level_path(made.program(name))))
    keys = f"{len(made.rotations)} rotations, {len(made.bootstrap_periods)} bootstrap periods"
    console.print(f"\nkeys: {keys}, about {key_bytes(made) / 2**20:.0f} MiB")
    first, *_, last = (*made.programs, *made.programs)
    for name in dict.fromkeys((first, last if made.prefill else first)):
        console.print(f"encoded weights of one {name} step: {weight_bytes(made, name) / 2**20:.0f} MiB")
    if args.rotations:
        console.print("rotations: " + " ".join(str(k) for k in made.rotations))
    console.print(f"\n{LEGEND}")
    _summary(console, args, circuit, made, found, table)
    console.json(
        _json(made, found) | {"prices": {"table": table.name, "hardware": table.hardware}, "faint_sums": faint}
    )
    return 0


def _summary(
    console: Console,
    args: argparse.Namespace,
    circuit: Circuit,
    made: Plan,
    found: dict[str, dict[str, OperatorTally]],
    table: CostTable,
) -> None:
    """What a token costs and what to do next, at the end, where it is read."""
    for name, rows in found.items():
        total = _total(rows)
        console.print(
            f"one {name} step: {total.seconds:.3g} {table.unit}, {total.bootstraps} bootstraps, {total.levels} levels, "
            f"by the prices of {table.name}"
        )
    blur = blurred_ties(circuit, made.params.noise)
    if args.precision is None and blur > BLURRED:
        console.print(
            f"near ties: a refresh may err by {blur:.1e} of a variance in the argmax, for each word apart, so that "
            "noise may choose between words that are nearly tied; --precision 5 avoids it for a few rotations"
        )
    if args.out is not None:
        console.print(f"wrote {args.out}")
        toy = "" if made.params.security_bits else " --insecure"
        follow = f"heat serve {args.circuit} --plan {args.out} --folder served{toy}"
    else:
        follow = f"heat plan {args.circuit} --params {args.params} -o my.plan"
    console.print(f"next: {follow}")


def _openfhe_answer(params: Params) -> str:
    """What OpenFHE says of its own set, where it is installed."""
    from heatfhe.engine.openfhe import ring_dimension_asked

    try:
        asked = ring_dimension_asked(params)
    except (MissingExtraError, EngineError) as err:
        return f"not asked ({err})"
    enough = "meets it" if asked <= params.ring_dimension else "is below it"
    return f"128 bits want ring dimension {asked} for this chain; {params.ring_dimension} {enough}"


LEGEND = """full, sparse, paired: bootstraps of all slots, of few, and of two values at once   levels: spent in all
pt, masks, ct*ct: products with weights, with 0 and 1, of two ciphertexts   hoisted, rot: rotations, sharing or not
key switches: what products of ciphertexts and rotations cost most   seconds: predicted, in the unit of the prices"""
_HEADERS = (
    "operator", "full", "sparse", "paired", "levels", "pt", "masks", "ct*ct", "hoisted", "rot", "key switches",
    "seconds",
)  # fmt: skip


def _row(t: OperatorTally) -> tuple[Any, ...]:
    counts = (t.full, t.sparse, t.paired, t.levels, t.plain_products, t.masks, t.products, t.hoisted, t.rotations)
    return (t.operator, *counts, t.key_switches, t.seconds)


def _total(rows: dict[str, OperatorTally]) -> OperatorTally:
    names = [n for n in OperatorTally.__slots__ if n != "operator"]
    sums: dict[str, Any] = {n: sum(getattr(t, n) for t in rows.values()) for n in names}
    return OperatorTally(operator="total", **sums)


def _compare(args: argparse.Namespace, console: Console, circuit: Circuit, options: dict[str, Any]) -> int:
    rows, body = [], []
    params = preset(args.params)
    for name in ALGORITHMS:
        began = time.perf_counter()
        made = plan(circuit, params, placement=name, **options)
        spent = time.perf_counter() - began
        for program in made.programs:
            total = _total(tally(made, program, options["cost"]))
            counts = (total.bootstraps, total.paired, total.sparse)
            rows.append((name, program, *counts, total.bootstrap_seconds, total.seconds, spent))
            body.append({"placement": name, "program": program, **total.as_json(), "planning_seconds": spent})
    unit = options["cost"].unit
    headers = ("placement", "program", "bootstraps", "paired", "sparse")
    console.table((*headers, f"bootstraps ({unit})", f"all ({unit})", "planned in (s)"), rows)
    console.json(body)
    return 0


def _json(made: Plan, found: dict[str, dict[str, OperatorTally]]) -> dict[str, Any]:
    return {
        "circuit": made.circuit,
        "plan": made.digest,
        "params": made.params.as_json(),
        "security": made.params.security_claim,
        "rotations": list(made.rotations),
        "bootstrap_periods": list(made.bootstrap_periods),
        "key_bytes": key_bytes(made),
        "weight_bytes": {name: weight_bytes(made, name) for name in made.programs},
        "programs": {name: [t.as_json() for t in rows.values()] for name, rows in found.items()},
        "levels": {name: level_path(made.program(name)) for name in made.programs},
    }
