# SPDX-License-Identifier: Apache-2.0
"""Seconds per encrypted token of the default model: our own CKKS beside OpenFHE, one run, real clients and servers.

    python bench/tokens_native_vs_openfhe.py [--tokens 4] [--threads 2] [--peer-python PATH]

Each engine runs with an interpreter of its own (OpenFHE's wheels load on few Python versions: --peer-python names one
that has them): keys are made and uploaded, a server process on loopback runs the plan, the client decrypts. The answer
must equal the clear engine's, run on the same plan, before any time is printed. Seconds per token are the median time
between tokens, the first one (prompt, plaintexts encoded) apart. Without OpenFHE: ``peer absent``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from _peer import in_process

PROMPT = "Once upon a time"
SETS = {"native": "insecure-native-12-r40", "openfhe": "insecure-openfhe-12"}


def measure(engine: str, params: str, tokens: int, threads: int) -> dict[str, Any]:
    """One conversation: seconds of keys, of the first token, between the others, and whether the answer is right."""
    from heatfhe.assets import default_circuit
    from heatfhe.circuit import Circuit
    from heatfhe.client import Client
    from heatfhe.client.local import local_server
    from heatfhe.engine import ClearEngine, Conversation, Runner
    from heatfhe.planning import Plan

    circuit = Circuit.load(default_circuit())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ["default", "--params", params, "--folder", str(folder / "server"), "--insecure"]
        arguments += ["--option", f"threads={threads}"]
        with (
            local_server(arguments, seconds=600) as server,
            Client(server.url, token=server.token, folder=folder / "client", insecure=True) as client,
        ):
            begin = time.perf_counter()
            client.keygen()
            client.upload_keys()
            ready = time.perf_counter()
            ids = client.bundle.encode(PROMPT)
            made, times = [], []
            for token in client.stream(ids, tokens):
                made.append(token)
                times.append(time.perf_counter())
        plan = Plan.load(next((folder / "server" / "plans").glob("*.json")))
    clear = ClearEngine(plan.params)
    decode = Conversation(Runner(plan, clear, plan.source(circuit)))
    rows = [[clear.value(plan.packing.pack_residual(circuit.folded.token[t]))] for t in ids]
    for row in rows[:-1]:
        decode.prompt(row)
    wanted = [decode.generate(rows[-1]), *(decode.generate() for _ in range(tokens - 1))]
    words = [int(plan.packing.unpack_vocabulary([v.slots for v in row]).argmax()) for row in wanted]
    return {
        "tokens": made,
        "right": made == words,
        "keys": ready - begin,
        "first": times[0] - ready,
        "gaps": [b - a for a, b in pairwise(times)],
        "bootstraps": sum(s.kind.startswith("bootstrap") for s in plan.program("generate").steps),
        "levels": plan.params.levels,
    }


def in_its_process(python: str, engine: str, args: argparse.Namespace) -> dict[str, Any] | None:
    params = args.params if engine == "native" else SETS[engine]
    return in_process(
        python, __file__, ["--engine", engine, "--tokens", str(args.tokens), "--params", params], args.threads
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--params", default=SETS["native"], help="our set")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        print(json.dumps(measure(args.engine, args.params, args.tokens, args.threads)))
        return 0
    ours, peer = in_its_process(sys.executable, "native", args), in_its_process(args.peer_python, "openfhe", args)
    if ours is None:
        return 1
    device = f"{args.threads} threads, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    print(f"default model, {args.tokens} free-running tokens after {PROMPT!r}, {device}")
    for name, found in (("ours", ours), ("openfhe 1.6.1", peer)):
        if found is None:
            print(f"{name}: peer absent")
            continue
        right = "equal to the clear engine's" if found["right"] else "DIFFER from the clear engine's"
        print(
            f"{name}: {found['bootstraps']} bootstraps at {found['levels']} levels, tokens {right}: {found['tokens']}"
        )
    wrong = [found for found in (ours, peer) if found is not None and not found["right"]]
    for row, pick in (
        ("keys made and uploaded", lambda f: f["keys"]),
        ("prompt and first token", lambda f: f["first"]),
        ("each further token", lambda f: statistics.median(f["gaps"])),
    ):
        line = f"{row:<24} | ours {pick(ours):8.2f} s"
        line += (
            f" | openfhe {pick(peer):8.2f} s | ours/peer {pick(ours) / pick(peer):.2f}" if peer else " | peer absent"
        )
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
