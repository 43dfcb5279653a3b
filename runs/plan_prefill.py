# SPDX-License-Identifier: Apache-2.0
"""A prompt at once beside single tokens: bootstraps and predicted seconds per token, default model and GPT-2 small.

    python runs/plan_prefill.py [--tokens 32,64,128]

The default HEAT circuit on ``insecure-native-12-r40`` (10 levels), and a GPT-2 small at HEAT's counts on
``native-16-r40-lean`` (13 levels, context 128) by the prices measured on an H200. Seconds are for plaintexts that are
encoded already; the last columns say how many bytes of them one run uses, and how many of keys.
"""

from __future__ import annotations

import argparse

from gpt2_small_fixture import gpt2_small

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.planning import cost_table, default_cost, key_bytes, plan, preset, weight_bytes

HEADS = (
    "model", "tokens at once", "ciphertexts", "bootstraps", "per token", "of a prompt token", "s per token",
    "of a prompt token", "ratio", "encoded weights, GiB", "of a prompt token", "keys, GiB",
)  # fmt: skip


def row(name: str, circuit: Circuit, params: str, device: str, context: int, tokens: int) -> str:
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
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", default="32,64,128")
    tokens = [int(count) for count in parser.parse_args().tokens.split(",")]
    print("| " + " | ".join(HEADS) + " |")
    print("|---" * len(HEADS) + "|")
    small, large = Circuit.load(default_circuit("heat")), gpt2_small("heat")
    for count in tokens:
        print(row("default, HEAT", small, "insecure-native-12-r40", "cpu", 128, count), flush=True)
    for count in tokens:
        print(row("GPT-2 small, HEAT", large, "native-16-r40-lean", "cuda", 128, count), flush=True)


if __name__ == "__main__":
    main()
