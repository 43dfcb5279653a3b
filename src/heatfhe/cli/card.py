# SPDX-License-Identifier: Apache-2.0
"""heat card: the private inference card of a circuit or of a server."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from heatfhe.circuit import Circuit
from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.cli.plan import SERVED
from heatfhe.client import check_config
from heatfhe.errors import ConfigError
from heatfhe.files import atomic_write
from heatfhe.planning import PRECISION, Plan, cost_table, default_cost, plan, preset
from heatfhe.report import Card, Material, circuit_card, gather, server_card

HELP = """Print a private inference card: what is encrypted, what leaks, parameters, noise, quality, cost.

Of a circuit, with its plan (--plan) or planned now (--params), for whoever offers it; runs given with --run fill in
quality: folders of heat train and heat evaluate --out, or the output of heat drift --json. Or of a server (--server):
what it announces, and what this installation's own security table says to that. Markdown, or JSON with --json."""
EXAMPLES = """  heat card default --params insecure-native-12-r40
  heat card out/mine/circuit --plan mine.plan --run out/mine --run out/evaluation -o CARD.md
  heat card --server https://fhe.example --token-file token.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("circuit", nargs="?", help="circuit directory, or 'default'; not with --server")
    parser.add_argument("--params", metavar="NAME", help="plan the circuit for this set; heat plan --help lists them")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="the plan it is served by, from heat plan")
    parser.add_argument("--costs", metavar="TABLE", help="prices: a name or a .json file (default: the set's own)")
    parser.add_argument(
        "--run", action="append", default=[], type=Path, metavar="RUN", help="a run that measured it (repeatable)"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write it there: .md, or .json for JSON")
    add_connection(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Gather, print, write."""
    if bool(args.circuit) == bool(args.server):
        raise ConfigError("a card is of a circuit, or of a server: give a circuit's directory, or --server URL")
    if args.out is not None and args.out.suffix not in (".md", ".json"):
        raise ConfigError(f"{args.out}: a card is written as .md or .json; give --out such a name")
    card = _of_server(args, console) if args.server else _of_circuit(args)
    if args.out is not None:
        text = card.as_markdown() if args.out.suffix == ".md" else json.dumps(card.as_json(), indent=1) + "\n"
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(args.out) as f:
            f.write(text.encode())
        console.print(f"wrote {args.out}")
    else:
        console.print(card.as_markdown().rstrip())
    console.json(card.as_json())
    return 0


def _of_circuit(args: argparse.Namespace) -> Card:
    """Refuses before it plans."""
    if bool(args.plan) == bool(args.params):
        raise ConfigError("a card is of a circuit and a parameter set: give --plan FILE, or --params NAME to plan with")
    found = gather(args.run) if args.run else Material()
    circuit = Circuit.load(circuit_folder(args.circuit))
    made = Plan.load(args.plan) if args.plan else None
    if made is not None and made.circuit != circuit.digest:
        raise ConfigError(
            f"{args.plan} is a plan of circuit {made.circuit[:12]}, not of {circuit.name} ({circuit.digest[:12]}); "
            "give its own with --plan, or --params NAME to plan it"
        )
    params = preset(args.params) if made is None else made.params
    table = cost_table(args.costs or default_cost(params))
    programs = SERVED.split(",")
    if made is None:
        made = plan(circuit, params, cost=table, programs=programs, precision=PRECISION)
    return circuit_card(circuit, made, table, found)


def _of_server(args: argparse.Namespace, console: Console) -> Card:
    """What it announces, whatever that is; what a client would say to it is on the card."""
    allowed = {"insecure": args.insecure, "simulate": args.simulate}
    args.insecure = args.simulate = True  # to read, not to ask: nothing is encrypted or sent here
    with connect(args, console) as client:
        config = client.config
    try:
        check_config(config, **allowed)
        verdict = "it would ask this server" + (
            " (as --insecure or --simulate allows)" if any(allowed.values()) else ""
        )
    except ConfigError as err:
        verdict = f"it would not ask this server: {err}"
    return server_card(config, address=args.server, verdict=verdict)
