# SPDX-License-Identifier: Apache-2.0
"""Does an encrypted argmax over a whole vocabulary decide near ties by the logits, or by its own noise?

    python runs/encrypted_argmax.py [--gap 0.03] [--rows 64] [--device cpu]
    python runs/encrypted_argmax.py --circuit OUT/circuit --logits LOGITS.npy

The argmax of a circuit alone (without one: GPT-2 small's schedule and made-up logits; of --rows rows the one whose
leader lies fewest deviations from its mean, its runner-up moved to --gap below), planned as in a plan with a precision:
once with the copies of a variance added up, once without. For each the logarithm of leader over runner-up in the clear,
and really encrypted with a key of this process; a logit is worth about 84 of it. Prints a JSON line each. On two CPU
cores at 128 bits each takes about three minutes and 7 GiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from gpt2_small_fixture import gpt2_small, synthetic_logits

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.client import NativeKeyring
from heatfhe.engine import ClearEngine, MemoryKeys, NativeEngine, Runner, key_request
from heatfhe.planning import Packing, Plan, cost_table, default_cost, place, preset
from heatfhe.planning.assemble import assemble
from heatfhe.planning.programs import vocabulary
from heatfhe.planning.programs.builder import Builder
from heatfhe.planning.recording import finish
from heatfhe.planning.source import PlaintextSource


def near_tie(rows: int, gap: float) -> np.ndarray:
    """The flattest of made-up rows of logits, its two best words this far apart."""
    made = synthetic_logits(rows, seed=5)
    row = made[((made.max(-1) - made.mean(-1)) / made.std(-1)).argmin()]
    first, second = np.argsort(-row)[:2]
    row[second] = row[first] - gap
    return np.asarray(row)


def planned(circuit: Circuit, params: Params, device: str) -> tuple[Builder, Plan]:
    """The argmax alone, as it is at the end of a tight plan."""
    b = Builder(circuit, Packing(circuit.shape, params.slots, 128), params.reach, True, True, "A", True)
    parts, bound = b.p.vocabulary_parts, 2 * b.bound("logits") * b.scales.logits
    logits = b.r.input("logits", period=b.p.V, bound=bound, parts=parts)
    b.r.output("token", vocabulary.argmax(b, logits, centred=True))
    recording = finish(b.r)
    graph = recording.graph(levels=params.levels, fixed={}, required={})
    placed = place(graph, params, cost_table(default_cost(params, device)))
    program = assemble(recording, placed, params, name="generate", inputs={}, outputs={})
    made = Plan(
        circuit=circuit.digest, name="argmax", params=params, shape=circuit.shape, context=128,
        programs={"generate": program}, products={}, placement="exact", cost="measured",
    )  # fmt: skip
    return b, made


def measured(circuit: Circuit, row: np.ndarray, params: Params, device: str, spread: float) -> dict[str, Any]:
    """Leader over runner-up, in the clear and encrypted, where copies are added up from this spread of a domain on."""
    vocabulary.SPREAD = spread
    b, made = planned(circuit, params, device)
    source = PlaintextSource(circuit, b.p, {}, params.reach, tight=True)
    parts = b.p.pack_vocabulary((row - row.mean()) * b.scales.logits)
    first, second = np.argsort(-row)[:2]

    def lead(engine: Any, inputs: list[Any], read: Callable[[Any], np.ndarray]) -> float:
        found = Runner(made, engine, source).run("generate", {"logits": inputs}, 0)["token"]
        hot = b.p.unpack_vocabulary([read(v) for v in found])
        return float(np.log(hot[first] / hot[second]))

    clear = ClearEngine(params, strict=False)
    exact = lead(clear, [clear.value(v) for v in parts], clear.read)
    began, request = time.perf_counter(), key_request(made)
    ring = NativeKeyring(request, device=device)
    engine = NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())), device=device, cache_bytes=1 << 30)
    encrypted = [engine.parse(ring.encrypt(v, level=params.levels)) for v in parts]
    got = lead(engine, encrypted, lambda v: ring.decrypt(engine.dump(v)).real)
    facts = {"copies": "added up" if np.isfinite(spread) else "apart", "gap": float(row[first] - row[second])}
    facts |= {"refreshes": len(made.program("generate").bootstraps()), "exact": exact, "encrypted": got}
    return facts | {"seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--circuit", type=Path, help="circuit whose schedule is used")
    parser.add_argument("--logits", type=Path, help=".npy of one row of its logits")
    parser.add_argument("--gap", type=float, default=0.03, help="between the two best of made-up logits (default 0.03)")
    parser.add_argument("--rows", type=int, default=64, help="made-up rows that the flattest is taken of (default 64)")
    parser.add_argument("--params", default="native-16-r40-lean")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if (args.circuit is None) != (args.logits is None):
        parser.error("--circuit and --logits go together: a schedule serves logits like those it was fitted on")
    circuit = Circuit.load(args.circuit) if args.circuit else gpt2_small("heat")
    row = np.load(args.logits).astype(np.float64) if args.logits else near_tie(args.rows, args.gap)
    for spread in (vocabulary.SPREAD, np.inf):
        print(json.dumps(measured(circuit, row, preset(args.params), args.device, spread)), flush=True)


if __name__ == "__main__":
    main()
