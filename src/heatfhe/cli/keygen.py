# SPDX-License-Identifier: Apache-2.0
"""heat keygen: make the keys a server's model needs, and optionally upload the public ones."""

from __future__ import annotations

import argparse
from typing import Any

from heatfhe.cli.connect import add_connection, connect
from heatfhe.cli.console import Console

HELP = "Make keys for a server's model. The secret stays on this machine, in files of mode 0600."
EXAMPLES = """  heat keygen --server https://fhe.example --token-file token.txt
  heat keygen --server https://fhe.example --token-file token.txt --upload
  heat keygen --server https://fhe.example --token-file token.txt --price
"""
INTERRUPTED = "start the same command again; what was uploaded stays"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add_connection(parser)
    parser.add_argument("--upload", action="store_true", help="send the evaluation keys; goes on where it stopped")
    parser.add_argument("--price", action="store_true", help="only show what keys and tokens cost; make nothing")


def run(args: argparse.Namespace, console: Console) -> int:
    """Check the server's parameters, then make keys."""
    with connect(args, console) as client:
        config = client.config
        price = config.price
        console.print(f"{config.model}: {config.params.name}, {config.params.security_claim}")
        console.print(
            f"keys about {price.key_bytes / 1e6:.1f} MB; about {price.seconds_per_token:.1f} s and "
            f"{price.bootstraps_per_token} bootstraps per token"
        )
        facts: dict[str, Any] = {"model": config.model, "config_id": config.config_id, "price": price.as_json()}
        if not args.price:
            client.keygen(console.reporter)
            manifest = client.keys.manifest()
            console.print(
                f"{len(manifest.keys)} evaluation keys, {manifest.size / 1e6:.1f} MB, in {client.keys.folder}"
            )
            facts |= {"keys": len(manifest.keys), "bytes": manifest.size, "folder": str(client.keys.folder)}
            if args.upload:
                facts["key_set"] = client.upload_keys(console.reporter)
                console.print(f"uploaded as {facts['key_set'][:16]}...")
        console.json(facts)
    return 0
