# SPDX-License-Identifier: Apache-2.0
"""Noise at every bootstrap of a GPT-2's plan, then in one refreshed value at a time, by the clear engine on a GPU.

    python runs/drift_gpt2.py heat=OUT/circuit calibrated=CHECKPOINT:calibration.json --heldout TOKENS.npy --out OUT \\
        [--windows 64 --positions 128 --seeds 3] [--by-value 2,32] [--params paper-16] [--precision none,5]
        [--device cuda] [--seconds 560]

A circuit is a folder (or ``default``), or a Hugging Face checkpoint and a calibration of it. Every circuit first gets
its rows of the table, one for each --precision of its plan: all windows under every seed's noise, KL, top-1, collapsed
windows, perplexity. Then, with --by-value WINDOWS,POSITIONS, every refreshed value of the first of these plans is made
noisy alone and the one that amplifies most is named. One JSON line is printed, and kept in OUT/drift.jsonl, for
everything that ends; it is not done again. When the seconds given are used up, it stops: the same command goes on
there, by-value runs where they were. OUT/drift.json is written when nothing is left to do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).parent))

from pieces import Clock, Used, pair

from heatfhe.circuit import Circuit
from heatfhe.cli.model_source import text_circuit
from heatfhe.engine import BootstrapNoise
from heatfhe.evaluation import clear_logits, drift, drift_by_value
from heatfhe.planning import Plan, ProgramName, plan, preset

SHOWN = 12  # values of a by-value line; the folder keeps all


def load(source: str) -> Circuit:
    """A circuit's folder or name, or CHECKPOINT:CALIBRATION."""
    checkpoint, sign, calibration = source.partition(":")
    if not sign:
        return text_circuit(source)
    import torch
    from transformers import AutoModelForCausalLM

    from heatfhe.lowering import export
    from heatfhe.records import Calibration
    from heatfhe.sites import prepare

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    found = Calibration.load(calibration)
    return export(prepare(model), found, tokenizer={}, name=Path(calibration).stem, context=found.context)


def main_row(made: Plan, circuit: Circuit, windows: np.ndarray, options: dict[str, Any]) -> dict[str, Any]:
    """What the table of circuits shows."""
    found = drift(made, circuit, windows, noise=BootstrapNoise(sigma=made.params.noise), **options)
    f = found.fidelity
    return {
        "bootstraps": found.bootstraps, "iterations": circuit.calibration.iterations(), "sigma": found.sigma,
        "predicted_seconds": made.program(ProgramName.LOGITS).predicted_seconds, "kl": f.kl, "top1": f.top1,
        "perplexity": f.perplexity, "clear_perplexity": f.clear_perplexity,
        "collapsed": f"{f.collapsed}/{f.windows}", "kl_by_quarter": found.quarters(),
    }  # fmt: skip


def value_row(
    made: Plan, circuit: Circuit, windows: np.ndarray, options: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """Which value amplifies most, and what attention rows lose on their way through a softmax."""
    sigma = made.params.noise
    noise = BootstrapNoise(sigma=sigma)
    found = drift_by_value(made, circuit, windows, noise=noise, sigma=sigma, folder=folder, **options)
    first = [(v.value.number, v.value.name, v.value.operator, v.fidelity.kl) for v in found.values[:SHOWN]]
    worst = max(found.rows, key=lambda row: row.last).stage
    return {
        "values": len(found.values), "amplifies_most": first[0][1], "share": first[0][3] / found.summed,
        "summed_kl": found.summed, "together_kl": found.together.kl, "by_operator": found.by_operator(),
        "first": first, "worst_rows": {f"{r.stage} {r.part}": r.last for r in found.rows if r.stage == worst},
    }  # fmt: skip


def precisions(text: str) -> tuple[float | None, ...]:
    """Bits of an option, none for no precision."""
    return tuple(None if part == "none" else float(part) for part in text.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("circuits", nargs="+", metavar="NAME=CIRCUIT")
    parser.add_argument("--heldout", type=Path, required=True, help="token ids, one-dimensional")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--params", default="paper-16")
    parser.add_argument(
        "--precision", type=precisions, default=(None,), metavar="BITS",
        help="bits a refresh should keep, as in heat plan, or several with commas (default none)",
    )  # fmt: skip
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--by-value", type=pair, metavar="WINDOWS,POSITIONS")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=560.0)
    args = parser.parse_args()
    clock = Clock(time.time() + args.seconds)
    args.out.mkdir(parents=True, exist_ok=True)
    journal = args.out / "drift.jsonl"
    ended = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    stream = np.load(args.heldout)
    sizes = [("all", (args.windows, args.positions), bits) for bits in args.precision]
    sizes += [("by value", args.by_value, args.precision[0])] if args.by_value else []
    todo = [(*size, name) for name in args.circuits for size in sizes]
    loaded: dict[str, Circuit] = {}
    known: dict[str, Any] = {}  # clear logits of all windows
    for kind, (count, positions), bits, given in todo:
        name, _, source = given.partition("=")
        mark = {"circuit": name, "noise": kind, "windows": count, "positions": positions, "seeds": args.seeds}
        mark |= {} if bits is None else {"precision": bits}
        if any(line.items() >= mark.items() and line.get("precision") == bits for line in ended):
            continue
        began = time.time()
        if name not in loaded:
            loaded, known = {name: load(source)}, {}
        circuit = loaded[name]
        used = np.asarray(stream[: count * (positions + 1)], dtype=np.int64)
        windows = used.reshape(count, positions + 1)
        made = plan(
            circuit, preset(args.params), programs=(ProgramName.LOGITS,), context=positions, precision=bits
        )
        options = {"seeds": range(args.seeds), "device": args.device, "reporter": clock}
        try:
            if kind == "all":
                if name not in known:
                    known = {name: clear_logits(made, circuit, windows, clock)}
                options["known"] = known[name]
                facts = main_row(made, circuit, windows, options)
            else:
                facts = value_row(made, circuit, windows, options, args.out / name)
        except Used:
            print(json.dumps({**mark, "stopped": "start the same command again to go on"}), flush=True)
            return 0
        line = json.dumps({**mark, "params": args.params, **facts, "seconds": round(time.time() - began, 1)})
        print(line, flush=True)
        with journal.open("a") as f:
            f.write(line + "\n")
    (args.out / "drift.json").write_text(f"[{','.join(journal.read_text().splitlines())}]\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
