# SPDX-License-Identifier: Apache-2.0
"""Does the clear engine with measured noise predict an encrypted run? Windows of teacher-forced steps, resumable.

    python runs/encrypted_windows.py default default-calibrated --processes 2 --out out/encrypted

First the refresh noise of the engine is measured, then every circuit is decoded on the clear engine with that noise and
on the engine itself: one process per window, so many at a time, each with keys of its own. Start the same command again
to go on after a stop. The card says whether the prediction held: KL within a factor of 3, top-1 within 5 of 128
positions, and, for two circuits, whether the ratio of their seconds is at least 0.8 times that of their bootstraps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.circuit import Circuit
from heatfhe.cli.bench_engine import add_clock_argument, clock_of
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.client import load_keyring, open_engine
from heatfhe.engine import ClearEngine, NoiseTable, describe_machine, key_request
from heatfhe.evaluation import sample_windows
from heatfhe.evaluation.encrypted import Endpoint, Evaluation, decode_windows, judge
from heatfhe.files import atomic_write, file_digest
from heatfhe.planning import CostTable, Plan, cost_table, default_cost, plan, preset


def main() -> int:
    """Measure, predict, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("circuits", nargs="+", help="circuit folders, 'default' or 'default-calibrated'")
    parser.add_argument("--engine", default="openfhe")
    parser.add_argument("--params", default="insecure-openfhe-12")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--costs", help="cost table that places bootstraps and prices them (default: the shipped one)")
    parser.add_argument("--noise", type=Path, help="a table of heat measure-noise (default: measured, kept in --out)")
    parser.add_argument("--processes", type=int, default=1, help="windows at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    add_clock_argument(parser)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no window after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/encrypted"))
    parser.add_argument("--window", type=int, help="decode this window of the one circuit given, and nothing else")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    costs = cost_table(args.costs or default_cost(preset(args.params)))
    if args.window is not None:
        Job.of(args, args.circuits[0], costs).decode(args)
        return 0
    console = Console()
    noise = args.noise or noise_of(args)
    jobs = [Job.of(args, name, costs) for name in args.circuits]
    missing = [(j, i) for j in jobs for i in range(args.windows) if not j.finished(args, i)]
    began = time.monotonic()

    def one(item: tuple[Job, int]) -> int | None:
        if time.monotonic() - began > args.limit:
            return None
        return child([item[0].name, *same_options(args), "--window", str(item[1])], args.threads)

    with ThreadPoolExecutor(args.processes) as pool:
        codes = list(pool.map(one, missing))
    left = sum(code != 0 for code in codes)
    if left:
        console.warn(f"{left} windows are not finished; start the same command again to go on")
        return 1
    compare(args, console, jobs, noise, costs)
    return 0


@dataclass(frozen=True, slots=True)
class Job:
    """A circuit, its plan and its windows."""

    name: str
    circuit: Circuit
    plan: Plan
    windows: NDArray[np.int64]

    @classmethod
    def of(cls, args: argparse.Namespace, name: str, costs: CostTable) -> Job:
        """Everything that follows from the options."""
        circuit = Circuit.load(circuit_folder(name))
        windows = sample_windows(circuit, args.windows, args.positions + 1, seed=args.seed)
        made = plan(circuit, preset(args.params), programs=("logits",), context=args.positions, cost=costs)
        return cls(name, circuit, made, windows)

    def folder(self, args: argparse.Namespace) -> Path:
        """Where its finished windows are."""
        return Path(args.out) / Path(self.name).name

    def finished(self, args: argparse.Namespace, window: int) -> bool:
        """Whether a window is there."""
        return (self.folder(args) / f"window-{window:03d}.npz").exists()

    def decode(self, args: argparse.Namespace) -> None:
        """One window on the engine, in this process."""
        ring, engine = open_engine(args.engine, key_request(self.plan), threads=args.threads)
        end = Endpoint(engine, ring.encrypt, ring.decrypt, clock=clock_of(args))
        options: dict[str, Any] = {"engine": args.engine, "folder": self.folder(args), "only": [args.window]}
        decode_windows(self.plan, self.circuit, end, self.windows, **options)

    def predict(self, args: argparse.Namespace, noise: Path) -> Endpoint:
        """The clear engine with the measured noise, afresh for every window."""
        request = key_request(self.plan)
        ring = load_keyring("clear")(request)
        table = NoiseTable.load(noise).noise(self.plan.params)
        engine = ClearEngine(
            self.plan.params, request=request, noise=table, rng=np.random.default_rng(args.seed), strict=False
        )
        setting = f"{file_digest(noise)} seed {args.seed}"
        begin = partial(reseed, engine, args.seed)
        return Endpoint(engine, ring.encrypt, ring.decrypt, setting=setting, begin=begin)


def reseed(engine: ClearEngine, seed: int, window: int) -> None:
    """Noise that does not depend on the windows before."""
    engine.rng = np.random.default_rng([seed, window])


def same_options(args: argparse.Namespace) -> list[str]:
    """The options every process needs, as they were given."""
    names = ("engine", "params", "windows", "positions", "threads", "seed", "out")
    costs = ["--costs", str(args.costs)] if args.costs else []
    clock = ["--processor-time"] if args.processor_time else []
    return [word for n in names for word in (f"--{n}", str(getattr(args, n)))] + costs + clock


def child(arguments: list[str], threads: int) -> int:
    """This script in a process of its own: OpenFHE's keys are global to a process."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, __file__, *arguments], env=env, check=False).returncode


def noise_of(args: argparse.Namespace) -> Path:
    """The measured table, from an earlier start if there is one."""
    path = Path(args.out) / "noise.json"
    if not path.exists():
        words = ["measure-noise", args.engine, "--params", args.params, "--threads", str(args.threads)]
        env = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        subprocess.run([sys.executable, "-m", "heatfhe.cli", *words, "--out", str(path)], env=env, check=True)
    return path


def compare(args: argparse.Namespace, console: Console, jobs: list[Job], noise: Path, costs: CostTable) -> None:
    """The card: what was predicted beside what was found."""
    rows, found = [], []
    for job in jobs:
        options: dict[str, Any] = {"engine": "clear", "folder": Path(args.out) / f"predicted-{Path(job.name).name}"}
        told = decode_windows(job.plan, job.circuit, job.predict(args, noise), job.windows, **options)
        real = decode_windows(job.plan, job.circuit, None, job.windows, engine=args.engine, folder=job.folder(args))
        predicted = judge(job.plan, job.circuit, told, job.windows, engine="clear", costs=costs)
        found.append(judge(job.plan, job.circuit, real, job.windows, engine=args.engine, costs=costs))
        rows.append(compared(Path(job.name).name, predicted, found[-1]))
    console.table(("", *(r["circuit"] for r in rows)), [(k, *(r[k] for r in rows)) for k in rows[0] if k != "circuit"])
    card: dict[str, Any] = {
        "hardware": describe_machine(args.threads) + (", processor time" if args.processor_time else ""),
        "processes": args.processes,
        "params": args.params,
        "rows": rows,
        "evaluations": [e.as_json() for e in found],
    }
    if len(rows) == 2:
        fewer, more = sorted(rows, key=lambda r: float(r["bootstraps"]))
        times, refreshes = (more[k] / fewer[k] for k in ("seconds", "bootstraps"))
        card["ratio"] = {"seconds": times, "bootstraps": refreshes, "holds": times >= 0.8 * refreshes}
        console.print(f"seconds {times:.2f}x, bootstraps {refreshes:.2f}x")
    with atomic_write(args.out / "card.json") as f:
        f.write(json.dumps(card, indent=1).encode() + b"\n")
    console.print(f"wrote {args.out / 'card.json'}")


def compared(name: str, predicted: Evaluation, found: Evaluation) -> dict[str, Any]:
    """One row of the card. Below 1e-14 a KL is rounding of float64 and its ratio says nothing."""
    kl, told = found.fidelity.kl, predicted.fidelity.kl
    positions = found.positions * found.fidelity.windows
    away = abs(found.fidelity.top1 - predicted.fidelity.top1) * positions
    small = max(kl, told) < 1e-14
    return {
        "circuit": name,
        "kl": kl,
        "kl predicted": told,
        "top-1": found.fidelity.top1,
        "top-1 predicted": predicted.fidelity.top1,
        "largest error": found.largest_error,
        "error predicted": predicted.largest_error,
        "bootstraps": found.bootstraps,
        "seconds": found.seconds,
        "seconds predicted": sum(found.predicted.values()),
        "holds": bool((small or 1 / 3 <= kl / told <= 3) and away <= 5 * positions / 128),
    }


if __name__ == "__main__":
    sys.exit(main())
