# SPDX-License-Identifier: Apache-2.0
"""Serve a Circuit in one process and ask it privately from another: python examples/04_serve_and_ask.py out/circuit"""

from __future__ import annotations

import argparse
from pathlib import Path

import heatfhe
from heatfhe.circuit import Circuit
from heatfhe.client import local_server


def main() -> None:
    """Start a server process, make keys, ask, and check the answer against the plaintext circuit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("circuit", type=Path)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=2)
    toy = "insecure-native-12-r40"
    parser.add_argument("--params", default=toy, help="insecure-... sets are toys: they protect nothing")
    parser.add_argument("--folder", type=Path, default=Path("out/example"), help="server's and client's own folders")
    parser.add_argument("--simulate", action="store_true", help="clear engine: quick, and nothing is encrypted")
    args = parser.parse_args()

    command = [str(args.circuit), "--params", args.params, "--insecure", "--context", "16"]
    command += ["--folder", str(args.folder / "server"), *(["--simulate"] if args.simulate else [])]
    with (
        local_server(command) as server,
        heatfhe.Client(
            server.url,
            token=server.token,
            folder=args.folder / "client",
            insecure=True,
            simulate=args.simulate,
        ) as client,
    ):
        print(f"server process {server.pid} at {server.url}; parameters {client.config.params.security_claim}")
        answer = client.generate(args.prompt, tokens=args.tokens)
        print(f"{args.prompt!r} -> {answer.text!r} in {answer.seconds:.1f} s")
        prompt = client.bundle.encode(args.prompt)

    clear = Circuit.load(args.circuit).generate(prompt, args.tokens).tokens
    print("equal to the plaintext circuit:", list(answer.tokens) == clear)


if __name__ == "__main__":
    main()
