# SPDX-License-Identifier: Apache-2.0
"""Is our own CKKS as fast as OpenFHE? One run, same slots, same threads: bootstrap, rotation, products, start-up.

    python bench/native_vs_openfhe.py [--ours insecure-native-12-r40] [--peer insecure-openfhe-12] [--threads 2]
                                      [--repeats 5] [--peer-python PATH]

Each engine is measured in a process of its own, through the engine protocol, after its result is checked. OpenFHE's
wheels load on few Python versions: --peer-python names an interpreter that has them. Without it: ``peer absent``.
Start-up is a fresh process from its first instruction to its first decrypted product, with one rotation key;
``first start`` is ours with no compiled code kept on disk, as a new user meets it once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _peer import in_process

ROWS = (
    "bootstrap", "bootstrap, period 16", "bootstrap of a pair", "rotation", "six rotations", "product",
    "plain product", "linear map, 30 diagonals", "start-up",
)  # fmt: skip
START = """
import numpy as np
from heatfhe.client import load_keyring
from heatfhe.engine import KeyRequest, MemoryKeys, load_engine
from heatfhe.planning.params import preset
request = KeyRequest(params=preset({params!r}), rotations=(1,), conjugation=False)
ring = load_keyring({engine!r})(request)
engine = load_engine({engine!r})(request, MemoryKeys(dict(ring.evaluation_keys())), threads={threads})
x = engine.parse(ring.encrypt(np.ones(request.params.slots), level=2))
assert abs(ring.decrypt(engine.dump(engine.multiply(x, engine.rotate(x, 1))))[0] - 1) < 1e-3
"""


def start_up(python: str, engine: str, params: str, threads: int, **environment: str) -> float:
    """Seconds of a fresh process up to its first decrypted product."""
    code = START.format(engine=engine, params=params, threads=threads)
    source = str(Path(__file__).parent.parent / "src")
    begin = time.perf_counter()
    subprocess.run(
        [python, "-c", code], check=True, env={**os.environ, "PYTHONPATH": source, **environment}, capture_output=True
    )
    return time.perf_counter() - begin


def measure(params_name: str, threads: int, repeats: int) -> dict[str, Any]:
    """Median seconds of each operation, and the bits a bootstrap keeps."""
    from heatfhe.client import load_keyring
    from heatfhe.engine import KeyRequest, LinearMap, MemoryKeys, Vector, load_engine
    from heatfhe.planning.params import preset
    from heatfhe.planning.weights import Dense

    params = preset(params_name)
    engine_name = params.engine
    rotations = (1, 2, 3, 4, 5, 6, 12, 18, 24)
    request = KeyRequest(params=params, rotations=rotations, bootstrap_periods=(16, params.slots))
    ring: Any = load_keyring(engine_name)(request)
    made = time.perf_counter()
    if hasattr(ring, "process_keys"):
        engine: Any = load_engine(engine_name)(request, ring.process_keys(), threads=threads)
    else:
        engine = load_engine(engine_name)(request, MemoryKeys(dict(ring.evaluation_keys())), threads=threads)
    opened = time.perf_counter()

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, params.slots)
    low, low16 = (engine.parse(ring.encrypt(v, level=0)) for v in (x, np.tile(x[:16], params.slots // 16)))
    top = engine.parse(ring.encrypt(x, level=params.levels))
    v = Vector("v", lambda: x)
    linear = LinearMap(weight=Dense("m"), babies=tuple(range(6)), giants=(0, 6, 12, 18, 24), make=lambda g, b: x)
    work: dict[str, Callable[[], Any]] = {
        "bootstrap": lambda: engine.bootstrap(low, period=params.slots, bound=1.0),
        "bootstrap, period 16": lambda: engine.bootstrap(low16, period=16, bound=1.0),
        "bootstrap of a pair": lambda: engine.bootstrap_pair(low, low, period=params.slots, bound=1.0),
        "rotation": lambda: engine.rotate(top, 5),
        "six rotations": lambda: engine.rotate_many(top, list(range(1, 7))),
        "product": lambda: engine.multiply(top, top),
        "plain product": lambda: engine.multiply_plain(top, v),
        "linear map, 30 diagonals": lambda: engine.linear(top, linear),
    }
    error = ring.decrypt(engine.dump(work["bootstrap"]())) - x
    out: dict[str, Any] = {
        "bits": float(-np.log2(error.real.std())),
        "worst_bits": float(-np.log2(np.abs(error).max())),
        "levels": params.levels,
        "engine": engine_name,
        "seconds": {"keys": opened - made},
        "cpu": {},
        "spread": {},
    }
    wrong = np.abs(ring.decrypt(engine.dump(work["product"]())) - x * x).max()
    if not (error.real.std() < 1e-4 and wrong < 1e-4):
        raise SystemExit(f"{engine_name}: wrong results, nothing measured")
    for name, run in work.items():
        run()
        times = []
        spent = time.process_time()
        for _ in range(repeats if "bootstrap" in name else 4 * repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        out["seconds"][name] = statistics.median(times)
        out["cpu"][name] = (time.process_time() - spent) / len(times)
        out["spread"][name] = 100 * (max(times) - min(times)) / statistics.median(times)
    return out


def with_start_up(python: str, params: str, args: argparse.Namespace) -> dict[str, Any] | None:
    """Measure one engine with one interpreter; None if it does not load there."""
    result = in_process(python, __file__, ["--measure", params, "--repeats", str(args.repeats)], args.threads)
    if result is not None:
        result["seconds"]["start-up"] = start_up(python, result["engine"], params, args.threads)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default="insecure-native-12-r40")
    parser.add_argument("--peer", default="insecure-openfhe-12")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.threads, args.repeats)))
        return 0
    ours = with_start_up(sys.executable, args.ours, args)
    if ours is None:
        return 1
    peer = with_start_up(args.peer_python, args.peer, args)
    device = f"{args.threads} threads, {platform.machine()}, load {os.getloadavg()[0]:.1f}"
    print(f"{args.ours} beside {args.peer}, median of {args.repeats} (times 4 for the quick ones), {device}")
    print(f"ours: {ours['levels']} levels left, {ours['bits']:.1f} bits (worst slot {ours['worst_bits']:.1f})")
    if peer:
        print(f"openfhe: {peer['levels']} levels left, {peer['bits']:.1f} bits (worst slot {peer['worst_bits']:.1f})")
    for row in ROWS:
        mine = ours["seconds"][row]
        line = f"{row:<26} | ours {1e3 * mine:9.2f} ms"
        if peer:
            other = peer["seconds"][row]
            line += f" | openfhe {1e3 * other:9.2f} ms | ours/peer {mine / other:.2f}"
            if row in peer["cpu"]:
                line += f" (processor time {ours['cpu'][row] / peer['cpu'][row]:.2f})"
        else:
            line += " | peer absent"
        print(f"{line} | spread {ours['spread'].get(row, 0):.0f}%")
    with tempfile.TemporaryDirectory() as empty:
        first = start_up(sys.executable, "native", args.ours, args.threads, NUMBA_CACHE_DIR=empty)
    print(f"{'first start, compiling':<26} | ours {1e3 * first:9.2f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
