# SPDX-License-Identifier: Apache-2.0
"""Eight conversations on two seats of a Ray on this machine, beside the same on one seat, in one run.

    python bench/seats.py [--clients 8] [--tokens 6] [--seconds 0.5] [--seats 2]

The served model is the tests' tiny one on the clear engine (nothing is encrypted). Each program sleeps for as long as
the plan predicts for it, scaled so that a generated token takes ``--seconds``. A seat then stands for a device of its
own even where cores are few, and what is measured is how the server feeds seats, not an engine. Keys are open: every
client has asked once before. Tokens are compared with the circuit's own.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from tests.server.serving import joined, save_model, served_circuit

from heatfhe.planning import Plan
from heatfhe.server import ModelSource

ROOT = Path(__file__).resolve().parents[1]
SLEEPER = """
import os, time
from heatfhe.engine.runner import Runner
real = Runner.run
def run(self, program, *args, **options):
    time.sleep(float(os.environ["HEATFHE_BENCH_SCALE"]) * self.plan.program(program).predicted_seconds)
    return real(self, program, *args, **options)
Runner.run = run
"""


def measure(source: ModelSource, home: Path, seats: int, args: argparse.Namespace) -> float:
    """Seconds for one conversation of every client at once, keys open."""
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "sitecustomize.py").write_text(SLEEPER)  # Python runs it when a worker starts
    environment = {
        "PYTHONPATH": os.pathsep.join([str(hooks), str(ROOT / "src")]),
        "HEATFHE_BENCH_SCALE": str(args.scale),
        "OMP_NUM_THREADS": "1",
    }
    options = {"ray": "local", "seats": (seats, seats), "worker_environment": tuple(environment.items())}
    options["resident_workers"] = args.clients
    with joined(source, home, **options) as app, ThreadPoolExecutor(args.clients) as pool:
        clients = [app.client(f"client-{i}", patience=600.0) for i in range(args.clients)]
        list(pool.map(lambda client: client.generate([1], 1), clients))
        began = time.perf_counter()
        said = list(pool.map(lambda i: list(clients[i].generate([i + 1, 2], args.tokens).tokens), range(args.clients)))
        spent = time.perf_counter() - began
    wanted = [list(served_circuit().generate([i + 1, 2], args.tokens).tokens) for i in range(args.clients)]
    if said != wanted:
        raise SystemExit("the tokens differ from the circuit's")
    return spent


def main() -> int:
    """One seat, then several, then the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a generated token")
    parser.add_argument("--seats", type=int, default=2)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])  # for seats
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        print("seats on Ray need the ray extra: pip install 'heatfhe[ray]'")
        return 0
    with tempfile.TemporaryDirectory(prefix="heatfhe-seats-") as folder:
        source = save_model(Path(folder) / "model")
        args.scale = args.seconds / Plan.load(source.plan).program("generate").predicted_seconds
        one = measure(source, Path(folder) / "one", 1, args)
        many = measure(source, Path(folder) / "many", args.seats, args)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{args.clients} conversations of {args.tokens} tokens, a token sleeps {args.seconds:g} s")
    print(f"one seat {one:.2f} s   {args.seats} seats {many:.2f} s   ratio {one / many:.2f} of {args.seats}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
