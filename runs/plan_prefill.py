# SPDX-License-Identifier: Apache-2.0
"""A prompt at once beside single tokens: bootstraps and predicted seconds per token, default model and GPT-2 small.

    python runs/plan_prefill.py [--tokens 32,64,128]
    python runs/plan_prefill.py --circuit out/smollm2-runs/two --fewer 2.8 --tokens 30,62,126   # from runs/smollm2.py
    python runs/plan_prefill.py --circuit out/smollm2-runs/two --check 504,2240,282,7042,314,260,3575,282,4649,28,284

The default HEAT circuit on ``insecure-native-12-r40`` (10 levels), and a GPT-2 small at HEAT's counts on
``native-16-r40-lean`` (13 levels, context 128) by the prices measured on an H200; with --circuit that circuit alone,
on the same set, and with so many times fewer iterations. Seconds are for plaintexts that are encoded already; the last
columns say how many bytes of them one run uses, how many of keys, and how many diagonals a run encodes on the way where
none stays: a map that steps in a row need is encoded once. With --check IDS the circuit runs that prompt on
the clear engine, at once and token by token, and the largest difference of the two caches is printed.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from gpt2_small_fixture import gpt2_small

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.planning import Plan, cost_table, default_cost, key_bytes, plan, preset, weight_bytes

HEADS = (
    "model", "tokens at once", "ciphertexts", "bootstraps", "per token", "of a prompt token", "s per token",
    "of a prompt token", "ratio", "encoded weights, GiB", "of a prompt token", "keys, GiB", "diagonals encoded",
)  # fmt: skip


def encoded_on_the_way(made: Plan, program: str) -> int:
    """Diagonals that one run encodes if no map is kept, as engine/native.py does it."""
    maps = [(step.product, step.level) for step in made.program(program).steps if step.product is not None]
    return sum(made.products[now[0]].plaintexts for before, now in pairwise([None, *maps]) if now != before)


def row(name: str, circuit: Circuit, params: str, device: str, context: int | None, tokens: int) -> str:
    """One line of the table."""
    chosen = preset(params)
    table = cost_table(default_cost(chosen, device))
    made = plan(circuit, chosen, cost=table, context=context, prefill=tokens)
    packed, single = made.program("prefill"), made.program("prompt")
    counts = [len(program.bootstraps()) for program in (packed, single)]
    seconds = packed.predicted_seconds / made.prefill, single.predicted_seconds
    gib = [size / 2**30 for size in (weight_bytes(made, "prefill"), weight_bytes(made, "prompt"), key_bytes(made))]
    cells = [
        name, str(made.prefill), str(len(packed.inputs["x"].values)), str(counts[0]), f"{counts[0] / made.prefill:.2f}",
        str(counts[1]), *(f"{s:.4f}" for s in seconds), f"{seconds[1] / seconds[0]:.1f}", *(f"{g:.2f}" for g in gib),
        f"{encoded_on_the_way(made, 'prefill'):,}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def checked(circuit: Circuit, prompt: list[int]) -> str:
    """A prompt on the clear engine in both ways."""
    params = preset("native-16-r40-lean")
    table = cost_table(default_cost(params, "cuda"))
    made = plan(circuit, params, programs=("prompt",), cost=table, prefill=len(prompt))
    engine, rows = ClearEngine(params, request=key_request(made)), circuit.folded.token[prompt]
    runner, took = Runner(made, engine, made.source(circuit)), [time.monotonic()]
    single, packed = Conversation(runner), Conversation(runner)
    places = np.arange(len(made.program("prefill").inputs["x"].values) * made.packing.t) - made.prefix
    blocks = made.packing.tokens.pack_tokens(rows[np.clip(places, 0, len(prompt) - 1)])
    packed.prefill([engine.value(block) for block in blocks], len(prompt))
    took.append(time.monotonic())
    for row in rows:
        single.prompt([engine.value(made.packing.pack_residual(row))])
    took.append(time.monotonic())
    pairs = [(a.slots, b.slots) for name in single.cache for a, b in zip(single.cache[name], packed.cache[name])]
    far, largest = max(np.abs(a - b).max() for a, b in pairs), max(np.abs(a).max() for a, _ in pairs)
    return (
        f"{circuit.name}: caches of {len(prompt)} tokens differ by {far:.1e}, the largest value is {largest:.1f}; "
        f"at once {took[1] - took[0]:.0f} s on the clear engine, one by one {took[2] - took[1]:.0f} s"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="32,64,128")
    parser.add_argument("--circuit", type=Path, help="this one alone")
    parser.add_argument("--check", metavar="IDS", help="token ids of a prompt that --circuit is run on, with commas")
    parser.add_argument("--fewer", type=float, default=1.0, help="times fewer iterations, site by site (default 1)")
    args = parser.parse_args()
    tokens = [int(count) for count in args.tokens.split(",")]
    if args.check:
        if args.circuit is None:
            parser.error("--check runs the circuit that --circuit names")
        print(checked(Circuit.load(args.circuit), [int(token) for token in args.check.split(",")]))
        return
    print("| " + " | ".join(HEADS) + " |")
    print("|---" * len(HEADS) + "|")
    if args.circuit is not None:
        circuit = Circuit.load(args.circuit)
        counts, floors = circuit.calibration.counts(), circuit.calibration.floors()
        circuit = circuit.with_counts({k: max(floors[k], round(v / args.fewer)) for k, v in counts.items()})
        name = f"{circuit.name}, {sum(circuit.calibration.iterations().values())} iterations"
        for count in tokens:
            print(row(name, circuit, "native-16-r40-lean", "cuda", None, count), flush=True)
        return
    small, large = Circuit.load(default_circuit("heat")), gpt2_small("heat")
    for count in tokens:
        print(row("default, HEAT", small, "insecure-native-12-r40", "cpu", 128, count), flush=True)
    for count in tokens:
        print(row("GPT-2 small, HEAT", large, "native-16-r40-lean", "cuda", 128, count), flush=True)


if __name__ == "__main__":
    main()
