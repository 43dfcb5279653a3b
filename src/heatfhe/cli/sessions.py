# SPDX-License-Identifier: Apache-2.0
"""heat sessions: list and delete what a server keeps for this client."""

from __future__ import annotations

import argparse
import time
from typing import Any

from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console

HELP = "List and delete sessions and key sets that a server keeps for this client."
EXAMPLES = """  heat sessions --server https://fhe.example --token-file token.txt
  heat sessions --server https://fhe.example --token-file token.txt --delete 0123abcd...
  heat sessions --server https://fhe.example --token-file token.txt --delete-all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add_connection(parser)
    parser.add_argument("--delete", action="append", default=[], metavar="ID", help="delete a session or a key set")
    parser.add_argument("--delete-all", action="store_true", help="delete every session, then every key set")


def run(args: argparse.Namespace, console: Console) -> int:
    """Show, or delete and show."""
    with connect(args, console) as client:
        sessions, keys = client.sessions(), client.key_sets()
        for row in sessions:
            if args.delete_all or row["session"] in args.delete:
                client.delete_session(row["session"])
        for row in keys:
            if args.delete_all or row["key_set"] in args.delete:
                client.delete_key_set(row["key_set"])
        if args.delete or args.delete_all:
            sessions, keys = client.sessions(), client.key_sets()
        console.table(
            ["session", "model", "positions", "MB", "used"],
            [[r["session"], r["model"], r["position"], r["size"] / 1e6, _when(r)] for r in sessions],
        )
        console.print()
        console.table(
            ["key set", "keys", "MB", "used"],
            [[r["key_set"], "complete" if r["complete"] else "incomplete", r["size"] / 1e6, _when(r)] for r in keys],
        )
        console.json({"sessions": sessions, "key_sets": keys})
    return 0


def _when(row: dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used"]))
