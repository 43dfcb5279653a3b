# SPDX-License-Identifier: Apache-2.0
"""How fast is our own CKKS on this GPU? Refreshes by period and kind, products, rotations, beside the bars we set.

    python bench/native_cuda.py [--params native-16-r40] [--repeats 21] [--periods 32768,2048,1024,16,1] [--json FILE]

Everything goes through the engine protocol, with throwaway keys, and every result is decrypted and checked before it is
timed. Times are medians of single operations, each followed by a synchronisation, after warm-up. ``queued`` is the
time of one operation among many that follow each other without a synchronisation, as a plan runs them. A plain product
that is not rescaled is what a second one adds to a rescaled sum, queued. No other CKKS
library for GPUs is installed with ours: ``quoted`` are times of Cheddar that this project measured on an H200.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.client import NativeKeyring
from heatfhe.engine import KeyRequest, LinearMap, MemoryKeys, NativeEngine, Vector
from heatfhe.planning import preset
from heatfhe.planning.weights import Dense

BARS = {
    "refresh": 10e-3, "pair": 13e-3, "refresh, period 2048": 9e-3, "refresh, period 1024": 8.5e-3,
    "refresh, period 16": 7e-3, "refresh, period 1": 6.5e-3, "product": 190e-6, "rotation": 165e-6,
    "eight hoisted": 600e-6, "plain product": 18e-6, "rescale": 60e-6,
}  # fmt: skip
SUMMED = (1, 2, 3, 4, 5, 6, 7)
QUOTED = {"refresh": 21.2e-3, "product": 185e-6, "rotation": 184e-6}


def shapes(slots: int, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, int]]:
    """Values that a refresh must hold, with their periods."""
    hot = np.zeros(slots)
    hot[slots // 3] = 1.0
    out = {
        "uniform": (rng.uniform(-1, 1, slots), slots),
        "ones": (np.ones(slots), slots),
        "one-hot": (hot, slots),
        "ramp": (np.linspace(-1, 1, slots), slots),
    }
    for period in (1, 16, 1024):
        out[f"period {period}"] = (np.tile(rng.uniform(-1, 1, period), slots // period), period)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", default="native-16-r40")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--periods", default="32768,4096,2048,1024,64,16,1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    params = preset(args.params)
    periods = sorted({min(int(p), params.slots) for p in args.periods.split(",")} | {params.slots, 1024, 16, 1})
    rotations = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24)
    request = KeyRequest(params=params, rotations=rotations, bootstrap_periods=tuple(periods))
    facts: dict[str, Any] = {"params": params.name, "log2_qp": params.log_qp, "repeats": args.repeats}

    began = time.perf_counter()
    ring = NativeKeyring(request, device=args.device)
    blobs = dict(ring.evaluation_keys())
    facts["keys"] = {"count": len(blobs), "bytes": sum(map(len, blobs.values())), "make_s": time.perf_counter() - began}
    began = time.perf_counter()
    engine: Any = NativeEngine(request, MemoryKeys(blobs), device=args.device)
    engine.synchronize()
    facts["keys"]["load_s"] = time.perf_counter() - began
    print(json.dumps(facts["keys"]), flush=True)

    rng = np.random.default_rng(0)

    def put(values: np.ndarray, level: int) -> Any:
        return engine.parse(ring.encrypt(values, level=level))

    def get(value: Any) -> np.ndarray:
        return ring.decrypt(engine.dump(value))

    facts["errors"] = {}
    for name, (values, period) in shapes(params.slots, rng).items():
        result = engine.bootstrap(put(values, 0), period=period, bound=1.0)
        error = get(result).real - values
        facts["errors"][name] = {"std": float(error.std()), "largest": float(np.abs(error).max())}
        facts["levels_left"] = engine.level(result)
        worst = np.log2(np.abs(error).max())
        print(f"error of a refresh, {name:12s} std {error.std():.2e} largest 2^{worst:.1f}", flush=True)
    x, y = rng.uniform(-1, 1, params.slots), rng.uniform(-1, 1, params.slots)
    low, other, top, top2 = put(x, 0), put(y, 0), put(x, params.levels), put(y, params.levels)
    pair = engine.bootstrap_pair(low, other, period=params.slots, bound=1.0)
    facts["errors"]["pair"] = {"largest": max(float(np.abs(get(p).real - v).max()) for p, v in zip(pair, (x, y)))}
    vector = Vector("v", lambda: x)
    linear = LinearMap(weight=Dense("m"), babies=tuple(range(8)), giants=(0, 8, 16, 24), make=lambda g, b: x)
    image = sum(np.roll(x * np.roll(x, -b), -g) for g in (0, 8, 16, 24) for b in range(8))
    wanted = {
        "product": (engine.multiply(top, top2), x * y),
        "rotation": (engine.rotate(top, 5), np.roll(x, -5)),
        "plain product": (engine.multiply_plain(top, vector), x * x),
        "rotations added": (engine.add_rotations(top, SUMMED), sum(np.roll(x, -k) for k in (0, *SUMMED))),
        "linear": (engine.linear(top, linear), image),
    }
    for name, (value, right) in wanted.items():
        error = float(np.abs(get(value).real - right).max())
        facts["errors"][name] = {"largest": error}
        assert error < 1e-4, f"{name} is wrong by {error:.2e}"

    work: dict[str, Callable[[], Any]] = {
        "refresh": lambda: engine.bootstrap(low, period=params.slots, bound=1.0),
        "pair": lambda: engine.bootstrap_pair(low, other, period=params.slots, bound=1.0),
    }
    for period in periods[::-1]:
        if period < params.slots:
            value = put(np.tile(x[:period], params.slots // period), 0)
            work[f"refresh, period {period}"] = lambda v=value, p=period: engine.bootstrap(v, period=p, bound=1.0)
            work[f"pair, period {period}"] = lambda v=value, p=period: engine.bootstrap_pair(v, v, period=p, bound=1.0)
    work |= {
        "product": lambda: engine.multiply(top, top2),
        "rotation": lambda: engine.rotate(top, 5),
        "eight hoisted": lambda: engine.rotate_many(top, list(range(1, 9))),
        "linear, 32 diagonals": lambda: engine.linear(top, linear),
        "plain product, rescaled": lambda: engine.multiply_plain(top, vector),
        "two plain products, rescaled": lambda: engine.multiply_plain_sum([(top, vector), (top2, vector)]),
        "rescale": lambda: engine.drop(top, params.levels - 1),
        "add": lambda: engine.add(top, top2),
    }
    for level in (10, 5, 2):
        if level < params.levels:
            a = put(x, level)
            work[f"product, level {level}"] = lambda a=a: engine.multiply(a, a)
            work[f"rotation, level {level}"] = lambda a=a: engine.rotate(a, 5)
            work[f"one doubling, level {level}"] = lambda a=a: engine.add(a, engine.rotate(a, 1))
            for many in (1, 3, 7):
                work[f"{many} rotations added, level {level}"] = lambda a=a, k=many: engine.add_rotations(a, SUMMED[:k])
    facts["seconds"] = {}
    for name, step in work.items():
        for _ in range(3):
            step()
        engine.synchronize()
        times = []
        for _ in range(args.repeats):
            begin = time.perf_counter()
            step()
            engine.synchronize()
            times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for _ in range(args.repeats):
            step()
        engine.synchronize()
        queued = (time.perf_counter() - begin) / args.repeats
        median = statistics.median(times)
        spread = (max(times) - min(times)) / median
        facts["seconds"][name] = {"median": median, "queued": queued, "spread": spread}
        bar, quoted = BARS.get(name), QUOTED.get(name)
        row = f"{name:32s} {1e3 * median:9.3f} ms  queued {1e3 * queued:9.3f} ms  spread {100 * spread:4.0f} %"
        row += f"  bar {1e3 * bar:.3f} ms {'holds' if median <= bar else 'MISSED'}" if bar else ""
        row += f"  Cheddar (quoted) {1e3 * quoted:.3f} ms, ours/it {median / quoted:.2f}" if quoted else ""
        print(row, flush=True)
    one, two = (facts["seconds"][f"{n} rescaled"]["queued"] for n in ("plain product,", "two plain products,"))
    facts["seconds"]["plain product"] = {"queued": two - one}
    verdict = "holds" if two - one <= BARS["plain product"] else "MISSED"
    print(f"plain product, what a second one adds {1e3 * (two - one):.3f} ms  bar 0.018 ms {verdict}")
    facts["memory"] = engine.memory
    facts["device"] = getattr(engine, "device_name", args.device)
    print(json.dumps({k: facts[k] for k in ("memory", "device", "levels_left")}))
    if args.json:
        args.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
