# SPDX-License-Identifier: Apache-2.0
"""Runs of every kind a report reads, small and written by hand, so that tests need neither torch nor hours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.files import write_json
from tests.tiny import tiny_circuit

SITES = ("h.0.ln_1/goldschmidt", "h.0.ln_1/newton", "h.0.attn/init", "h.0.attn/refine")


def save_circuits(folder: Path) -> list[Path]:
    """A circuit with its calibrated counts, and the same with fewer."""
    full = replace(tiny_circuit(), name="calibrated")
    fewer = {name: max(1, count // 2) for name, count in full.calibration.counts().items()}
    full.save(folder / "calibrated")
    replace(full.with_counts(fewer), name="heat").save(folder / "heat")
    return [folder / "calibrated", folder / "heat"]


def save_training(folder: Path, seed: int = 0) -> Path:
    """A log of 40 updates whose modes fall, with a half-written last line, and what it was made from."""
    folder.mkdir(parents=True)
    lines: list[dict[str, Any]] = []
    for step in range(1, 41):
        phase = "squeeze" if step <= 10 else "heat"
        lines.append(
            {"kind": "update", "step": step, "phase": phase, "iterations": 0 if step <= 10 else 100 - 2 * step}
        )
        if step % 10 == 0:
            lines.append(
                {"kind": "validation", "step": step, "phase": phase, "loss": 2.0 - 0.01 * step, "iterations": 9}
            )
            mode = 5 - step // 10
            p = [0.0] * 8
            p[mode] = 1.0
            lines.append(
                {
                    "kind": "distributions",
                    "step": step,
                    "p": dict.fromkeys(SITES, p),
                    "modes": dict.fromkeys(SITES, mode),
                }
            )
    lines.insert(0, {"kind": "parent", "step": 1, "loss": 1.5})
    lines.append({"kind": "deployed", "step": 41, "loss": 1.6, "counts": {}})
    lines.insert(11, {"kind": "calibrated", "step": 10, "iterations": {"norm_newton": 3}, "counts": {SITES[1]: 3}})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "upd')
    corpus = {"texts": ["corpus.txt"], "windows": 90, "held_out": 10, "context": 16, "sha256": "ab" * 32}
    phase = {"updates": 10, "lr": 2e-4}
    body = {"command": "heat train m -o run", "commit": "c0" * 20, "heatfhe": "0", "model": "m", "parent": "f"}
    body |= {"recipe": {"name": "tiny", "seed": seed, "squeeze": phase, "odd_kinds": ["random"]}, "corpus": corpus}
    write_json(folder / "run.json", "heatfhe-run", 1, body)
    return folder


def save_comparison(folder: Path) -> Path:
    """What heat compare leaves: two seeds of HEAT and a control, the parent beside them."""
    folder.mkdir(parents=True)
    names = ("calibrated 1e-01 plain", "calibrated 1e-04 plain", "heat plain seed 0", "heat plain seed 1")
    rows = [
        {"name": n, "perplexity": 10.0 + i, "noisy_perplexity": 20.0 + i, "windows": 32} for i, n in enumerate(names)
    ]
    rows.append({"name": "control plain seed 0", "perplexity": 9.5, "noisy_perplexity": None, "windows": 32})
    rows.insert(0, {"name": "plaintext", "perplexity": 9.0, "noisy_perplexity": None, "windows": 32})
    body = {"rows": rows, "sigma": 1.7e-4, "params": "insecure-native-11"}
    write_json(folder / "compare.json", "heatfhe-comparison", 2, body)
    return folder


def save_stress(path: Path, circuit: Path) -> Path:
    """The output of heat stress --json."""
    row = {"kind": "repeated", "windows": 30, "positions": 16, "outside": 5, "diverged": 2, "faint": 1}
    found = Circuit.load(circuit)
    path.write_text(json.dumps({"circuit": found.name, "digest": found.digest, "stress": [row]}))
    return path


def fidelity(kl: list[float | None]) -> dict[str, Any]:
    """A Fidelity in JSON form."""
    known = [v for v in kl if v is not None]
    body = {
        "kl": sum(known) / len(known),
        "top1": 0.9,
        "collapsed": 0,
        "windows": 1,
        "perplexity": 3.0,
        "clear_perplexity": 3.0,
    }
    return {**body, "kl_by_position": kl, "top1_by_position": [1.0] * len(kl)}


def save_evaluation(folder: Path) -> Path:
    """One evaluation with a position that diverged."""
    folder.mkdir(parents=True)
    row = {"name": "heat", "engine": "native", "params": "insecure-native-11", "positions": 3, "bootstraps": 46.0}
    row |= {
        "seconds": 12.0,
        "by_operator": {"softmax": 7.0, "linear": 5.0},
        "predicted": {"softmax": 4.0, "linear": 4.0, "head": 1.0},
        "largest_error": None,
        "fidelity": fidelity([1e-6, None, 1e-5]),
    }
    body = {"evaluations": [row], "free_running": {"heat": [[[1, 2], [1, 3]]]}}
    write_json(folder / "evaluation.json", "heatfhe-evaluation", 1, body)
    return folder


def save_drift(path: Path) -> Path:
    """The output of heat drift --json."""
    row = {"name": "heat", "bootstraps": 46, "sigma": 1e-4, "seeds": [0], "collapsed_by_position": [0.0, 0.0]}
    path.write_text(json.dumps([{**row, "fidelity": fidelity([1e-4, 2e-4])}]))
    return path


def save_demo(folder: Path) -> Path:
    """What make demo leaves; its words must be escaped."""
    folder.mkdir(parents=True)
    server = {"facts": [["input", "4 ciphertexts"]], "hex": "00 ff"}
    client = {"facts": [["prompt", "<script>alert(1)</script>"]]}
    stages = [["set-up", 1.25], ["train", 300.0], ["keys", 13.0], ["generate", 60.0]]
    body = {"params": "insecure-native-12", "stages": stages, "rows": [], "server": server, "client": client}
    body |= {"timing": {"prompt": 4, "tokens": 3, "server": 50.0, "client": 52.5}}
    write_json(folder / "demo.json", "heatfhe-demo", 1, body)
    return folder


def save_everything(folder: Path) -> list[Path]:
    """All of the above."""
    circuits = save_circuits(folder)
    return [
        *circuits,
        save_comparison(folder / "comparison"),
        save_stress(folder / "stress.json", circuits[1]),
        save_training(folder / "training"),
        save_evaluation(folder / "evaluation"),
        save_drift(folder / "drift.json"),
        save_demo(folder / "demo"),
    ]
