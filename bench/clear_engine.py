# SPDX-License-Identifier: Apache-2.0
"""What does a token on the clear engine cost? Beside the same engine with all slots of every value, and Circuit.run.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python bench/clear_engine.py [--windows 32] [--positions 8] [--repeats 3]
    python bench/clear_engine.py --circuit DIR --params paper-16 --windows 192 --device cuda

Logits of the embedded HEAT circuit on random windows, all of them as one batch, without noise; seconds are those of a
position. Peers, in the same run: the same engine where no value is kept as one cycle and, on a GPU, every diagonal of a
linear map is a kernel of its own, which is how this engine worked before; and ``Circuit.run`` (numpy, on the CPU),
which needs no packing. All agree to 1e-8 of the largest logit, or the script fails.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, run
from heatfhe.engine.arrays import Arrays, arrays_on
from heatfhe.engine.cycles import stretched
from heatfhe.planning import Plan, plan, preset


class Whole(ClearEngine):
    """The clear engine with all slots of every value."""

    def _value(self, cycle: Any, level: int) -> Any:
        return super()._value(stretched(cycle, self.slots), level)


def by_diagonal(device: str) -> Arrays:
    """The arrays of a device, with a linear map as sums of products."""
    found = arrays_on(device)
    kind = type("ByDiagonal", (type(found),), {"linear": Arrays.linear})
    return kind()  # type: ignore[no-any-return]


def logits(made: Plan, circuit: Circuit, engine: ClearEngine, tokens: np.ndarray) -> np.ndarray:
    """Logits (W, P, V) of all windows as one batch."""
    inputs = ([engine.value(made.packing.pack_residual(circuit.folded.token[column]))] for column in tokens.T)
    rows = run(made, circuit, engine, inputs, program="logits")
    return np.stack([made.packing.unpack_vocabulary([engine.read(v) for v in parts]) for parts in rows], axis=1)


def seconds(work: Callable[[], np.ndarray], repeats: int, positions: int) -> tuple[np.ndarray, list[float]]:
    """What it gives, after which plaintexts are made, and how long a position of each later call took."""
    found, times = work(), []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) / positions)
    return found, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circuit", type=Path, help="folder of a circuit (default: the embedded one)")
    parser.add_argument("--params", default="insecure-paper-12")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--positions", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    circuit = Circuit.load(args.circuit or default_circuit("heat"))
    made = plan(circuit, preset(args.params), programs=("logits",), context=args.positions)
    size = (args.windows, args.positions)
    tokens = np.random.default_rng(0).integers(0, circuit.shape.vocabulary, size=size)
    ours = ClearEngine(made.params, lenient=True, device=args.device)
    peers: dict[str, Callable[[], np.ndarray]] = {"Circuit.run": lambda: circuit.run(tokens)}
    whole = Whole(made.params, lenient=True, device=by_diagonal(args.device))
    peers["whole slots"] = lambda: logits(made, circuit, whole, tokens)
    found, times = seconds(lambda: logits(made, circuit, ours, tokens), args.repeats, args.positions)
    best, spread = statistics.median(times), 100 * (max(times) - min(times)) / statistics.median(times)
    for name, work in peers.items():
        wanted, theirs = seconds(work, args.repeats, args.positions)
        assert np.abs(found - wanted).max() < 1e-8 * np.abs(wanted).max(), name
        peer = statistics.median(theirs)
        print(
            f"position of {args.windows} windows {best:.4f} s | {name} {peer:.4f} s | ours/peer {best / peer:.3f} | "
            f"median of {args.repeats}, spread {spread:.0f}% | {args.device}, {platform.machine()}, {made.params.name}"
        )


if __name__ == "__main__":
    main()
