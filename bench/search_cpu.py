# SPDX-License-Identifier: Apache-2.0
"""What does a candidate of a search cost on one CPU core? Beside its circuit run by itself, and beside whole tensors.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python bench/search_cpu.py [--candidates 48] [--windows 16] [--repeats 3]

The embedded calibrated circuit on 16 windows of 127 tokens, 48 candidates drawn at random, as in a search's first
generation. Peers, in the same run: ``Circuit.run`` in float64, a candidate after the other (numpy, which defines what a
circuit means; timed on two of them), and the same batch whose exponentials and activations go through whole tensors
instead of pieces. Errors of both batches are equal bit for bit, or the script fails.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.search import Batched, Space, batched


def seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """How long each call took, after one that is not counted."""
    work()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    circuit = Circuit.load(default_circuit("calibrated"))
    space, rng = Space.of(circuit), np.random.default_rng(0)
    counts = rng.integers(space.lower, np.array(space.upper) + 1, size=(args.candidates, len(space.names)))
    tokens = rng.integers(0, circuit.shape.vocabulary, size=(args.windows, circuit.shape.context - 1))
    work = Batched(circuit, tokens, space.names)
    reference, kept = work.reference(), batched.piecewise
    some = [circuit.with_counts(dict(zip(space.names, map(int, row)))) for row in counts[:2]]

    def whole() -> np.ndarray:
        batched.piecewise = lambda function: function
        try:
            return work.errors(counts, reference)
        finally:
            batched.piecewise = kept

    assert np.array_equal(whole(), work.errors(counts, reference))
    ours = [t / len(counts) for t in seconds(lambda: work.errors(counts, reference), args.repeats)]
    peers = {
        "whole tensors": [t / len(counts) for t in seconds(whole, args.repeats)],
        "Circuit.run": [t / 2 for t in seconds(lambda: [one.run(tokens) for one in some], args.repeats)],
    }
    best = statistics.median(ours)
    for name, times in peers.items():
        peer = statistics.median(times)
        spread = 100 * (max(ours) - min(ours)) / best
        print(
            f"candidate {best:.4f} s | {name} {peer:.4f} s | ours/peer {best / peer:.3f} | median of {args.repeats}, "
            f"spread {spread:.0f}% | one core of {platform.machine()}, torch {torch.__version__}"
        )


if __name__ == "__main__":
    main()
