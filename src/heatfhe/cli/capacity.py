# SPDX-License-Identifier: Apache-2.0
"""heat capacity: how many seats, how much memory, storage and traffic so many clients need."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from heatfhe.cli.console import Console
from heatfhe.errors import ConfigError
from heatfhe.planning import Load, Plan, capacity, cost_table, cost_tables

HELP = """Say what it takes to serve a plan to many clients, from the plan's own prices or another machine's.

Every client is taken to be alike. What is printed follows from the plan by multiplication: docs/scaling.md shows how,
and what it leaves out."""
EXAMPLES = (
    "  heat capacity my.plan --clients 1000 --tokens-per-day 200\n"
    "  heat capacity my.plan --clients 50 --tokens-per-day 5000 --prompt 96 --answer 32 --costs costs.json --json\n"
)
_GIB = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    defaults = {field.name: field.default for field in fields(Load)}
    parser.add_argument("plan", type=Path, help="a plan, from heat plan -o, with the programs generate and prompt")
    parser.add_argument("--clients", type=int, required=True, metavar="N", help="clients with keys on the server")
    parser.add_argument("--tokens-per-day", type=float, required=True, metavar="N", help="generated, per client")
    for name, kind, text in (
        ("prompt", int, "tokens of a prompt"),
        ("answer", int, "tokens of an answer"),
        ("peak", float, "the busiest hour, as a multiple of the average"),
        ("busy", float, "fraction of the busiest hour that a seat may work"),
        ("openings-per-day", float, "times a client's keys are opened"),
        ("opening-seconds", float, "seconds to open a client's keys; the server's log has them: worker started"),
        ("resident", int, "key sets open on a seat; as heat serve --workers"),
        ("sessions", int, "sessions kept per client"),
        ("store-rate", float, "MiB a second that the store takes from a seat"),
        ("snapshot-seconds", float, "seconds of computing between snapshots, at least; as heat serve has it"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=defaults[name.replace("-", "_")], metavar="N", help=text)
    parser.add_argument(
        "--costs", metavar="TABLE", help=f"prices of other hardware: {', '.join(cost_tables())}, or a .json file"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Compute and print."""
    if not args.plan.is_file():
        raise ConfigError(f"{args.plan}: no such plan; make one with: heat plan CIRCUIT --params NAME -o {args.plan}")
    made = Plan.load(args.plan)
    load = Load(**{field.name: getattr(args, field.name) for field in fields(Load)})
    table = cost_table(args.costs) if args.costs else None
    found = capacity(made, load, table)
    prices = args.costs or made.cost
    console.print(f"{made.name} on {made.params.name}, {made.context} positions, prices of {prices}")
    console.print(f"{load.clients} clients, {load.tokens_per_day:g} tokens a day each, busiest hour x{load.peak:g}\n")
    snapshots = f"{_size(found.session_bytes)} up to {found.snapshots_per_request} times per request"
    rows = [
        ("seats (GPUs, or groups of cores)", f"{found.seats}", f"busy {load.busy:.0%} of the busiest hour"),
        ("one prompt and its answer", f"{found.seconds_per_request:.3g} s", f"{load.prompt} and {load.answer} tokens"),
        ("work per day", f"{found.seat_seconds_per_day / 3600:.3g} h", f"{found.requests_per_day:g} requests"),
        ("memory of a seat", _size(found.seat_bytes), f"{load.resident} open key sets of {_size(found.worker_bytes)}"),
        ("storage", _size(found.storage_bytes), f"{_size(found.key_bytes_per_client)} of keys per client"),
        ("keys, uploaded once", _size(found.key_upload_bytes), "by all clients together"),
        ("uploads per day", _size(found.upload_bytes_per_day), "prompts"),
        ("downloads per day", _size(found.download_bytes_per_day), "answers"),
        ("journal per day", _size(found.journal_bytes_per_day), snapshots),
    ]
    console.table(("", "needs", "of which"), rows)
    console.print(f"\nnext: heat serve CIRCUIT --plan {args.plan} --ray auto --seats {found.seats} (docs/scaling.md)")
    console.json({"plan": made.digest, "prices": prices, **found.as_json()})
    return 0


def _size(count: float) -> str:
    """Bytes for people."""
    for unit, size in (("TiB", _GIB << 10), ("GiB", _GIB), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1024:.3g} KiB"
