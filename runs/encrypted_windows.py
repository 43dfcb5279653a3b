# SPDX-License-Identifier: Apache-2.0
"""Does the clear engine with measured noise predict an encrypted run? Windows of teacher-forced steps, resumable.

    python runs/encrypted_windows.py CIRCUIT... --engine openfhe --params insecure-openfhe-12 --out out/encrypted

First the refresh noise of the engine is measured, then every circuit is decoded on the clear engine with that noise and
on the engine itself, window by window. Start the same command again to go on after a stop. The card says whether the
prediction held: KL within a factor of 3, top-1 within 5 of 128 positions, and, for two circuits, whether the ratio of
their seconds is at least 0.8 times the ratio of their bootstraps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit
from heatfhe.cli.bench_engine import open_engine
from heatfhe.cli.console import Console
from heatfhe.cli.model_source import circuit_folder
from heatfhe.client import load_keyring
from heatfhe.engine import ClearEngine, key_request
from heatfhe.engine.measure import describe_machine
from heatfhe.engine.noise import NoiseTable, measure_noise, noise_request
from heatfhe.evaluation.drift import sample_windows
from heatfhe.evaluation.encrypted import Endpoint, Evaluation, evaluate
from heatfhe.files import atomic_write
from heatfhe.planning import cost_table, plan
from heatfhe.planning.params import preset
from heatfhe.planning.plan import default_cost


def main() -> None:
    """Measure, predict, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("circuits", nargs="+", help="circuit folders, 'default' or 'default-calibrated'")
    parser.add_argument("--engine", default="openfhe")
    parser.add_argument("--params", default="insecure-openfhe-12")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--period", type=int, default=128, help="period of the refreshes whose noise is measured")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/encrypted"))
    args = parser.parse_args()
    console = Console()
    params = preset(args.params)
    costs = cost_table(default_cost(params))
    args.out.mkdir(parents=True, exist_ok=True)
    table = noise_of(args, console)
    rows: list[dict[str, Any]] = []
    for name in args.circuits:
        circuit = Circuit.load(circuit_folder(name))
        windows = sample_windows(circuit, args.windows, args.positions + 1, seed=args.seed)
        made = plan(circuit, params, programs=("logits",), context=args.positions, cost=costs)
        request = key_request(made)
        rng = np.random.default_rng(args.seed)
        noisy = ClearEngine(params, request=request, noise=table.noise(), rng=rng, strict=False)
        clear = load_keyring("clear")(request)
        options: dict[str, Any] = {"costs": costs, "reporter": console.reporter}
        told = Endpoint(noisy, clear.encrypt, clear.decrypt)
        predicted = evaluate(made, circuit, told, windows, engine="clear", **options)
        ring, engine = open_engine(args.engine, request, threads=args.threads)
        folder = args.out / Path(name).name
        real = Endpoint(engine, ring.encrypt, ring.decrypt)
        found = evaluate(made, circuit, real, windows, engine=args.engine, folder=folder, **options)
        rows.append(compared(Path(name).name, predicted, found))
        console.table(list(rows[0]), [list(r.values()) for r in rows])
    card: dict[str, Any] = {"hardware": describe_machine(args.threads), "params": params.name, "rows": rows}
    if len(rows) == 2:
        times, refreshes = (rows[0][k] / rows[1][k] for k in ("seconds", "bootstraps"))
        card["ratio"] = {"seconds": times, "bootstraps": refreshes, "holds": times >= 0.8 * refreshes}
        console.print(f"seconds {times:.2f}x, bootstraps {refreshes:.2f}x")
    with atomic_write(args.out / "card.json") as f:
        f.write(json.dumps(card, indent=1).encode() + b"\n")
    console.print(f"wrote {args.out / 'card.json'}")


def noise_of(args: argparse.Namespace, console: Console) -> NoiseTable:
    """The measured table, from an earlier start if there is one."""
    path: Path = args.out / "noise.json"
    if not path.exists():
        request = noise_request(preset(args.params), args.period)
        ring, engine = open_engine(args.engine, request, threads=args.threads)
        hardware = describe_machine(args.threads)
        measured = measure_noise(
            engine, ring.encrypt, ring.decrypt, name=args.params, hardware=hardware, period=args.period,
            reporter=console.reporter,
        )  # fmt: skip
        measured.save(path)
    return NoiseTable.load(path)


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
    main()
