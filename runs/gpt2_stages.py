# SPDX-License-Identifier: Apache-2.0
"""The stages of runs/encrypted_gpt2.py that make and judge a circuit, and the journal that all its stages keep."""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from heatfhe.circuit import Circuit

CONTEXT = 128
ALSO = 0.04  # share of the training windows that each further text takes at most, as in heat train
CHOICE = 64  # windows at the end of the training text that nothing learns from
CALIBRATED = 128  # windows that the parent is calibrated on
SAID_EVERY = 15.0  # seconds


class Journal:
    """One JSON line for each thing that is finished."""

    def __init__(self, path: Path) -> None:
        self.path, self.began = path, time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": round(time.perf_counter() - self.began, 2), **facts})
        print(line, flush=True)
        with self.path.open("a") as f:
            f.write(line + "\n")


class Progress:
    """A reporter that says every few seconds how far a task is, and keeps how long each took, in the order of ends."""

    def __init__(self, journal: Journal) -> None:
        self.seconds: list[tuple[str, float]] = []
        self._journal, self._done, self._said = journal, 0, 0.0
        self._began: dict[str, float] = {}

    def start(self, task: str, total: int | None = None) -> None:
        self._done = 0
        self._began[task] = self._said = time.perf_counter()

    def advance(self, task: str, **facts: Any) -> None:
        self._done += 1
        if time.perf_counter() - self._said > SAID_EVERY:
            self._said = time.perf_counter()
            self._journal.write("progress", task=task, done=self._done, **facts)

    def done(self, task: str) -> None:
        self.seconds.append((task, round(time.perf_counter() - self._began[task], 2)))
        self._journal.write("lap", task=task, units=self._done, seconds=self.seconds[-1][1])


def changed(recipe: Any, fields: list[str]) -> Any:
    """A recipe with some of its fields set anew: margin=1.2, heat.lambda_iter=0.9."""
    for field in fields:
        name, _, value = field.partition("=")
        phase, _, part = name.rpartition(".")
        owner = getattr(recipe, phase) if phase else recipe
        owner = replace(owner, **{part: type(getattr(owner, part))(float(value))})
        recipe = replace(recipe, **{phase: owner}) if phase else owner
    return recipe


def train_stage(args: argparse.Namespace) -> None:
    """The recipe gpt2-small as ``heat train`` runs it, its argmax fitted, exported as a circuit."""
    import torch
    from transformers import AutoModelForCausalLM

    from heatfhe.lowering import export
    from heatfhe.odd import beside, some_of
    from heatfhe.sites import prepare, save_prepared
    from heatfhe.training import ablation, cut, recipe, train

    torch.set_float32_matmul_precision("high")
    journal = Journal(args.out / "train.jsonl")
    chosen = ablation(args.preset, recipe("gpt2-small", args.solver).scaled(args.share))
    chosen = changed(chosen if args.odd is None else replace(chosen, odd_share=args.odd), args.set)
    journal.write("recipe", digest=chosen.digest, also=[path.stem for path in args.also], **chosen.as_json())
    parent = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32)
    prepared = prepare(parent.to("cuda" if torch.cuda.is_available() else "cpu").eval())
    # Choices are made on the end of the training text; held-out text is judged once, by stress.
    windows, held = cut(np.load(args.train).astype(np.int64), chosen.context).split(CHOICE)
    count = beside(ALSO, len(windows.rows))
    for path in args.also:
        windows = windows.mixed(some_of(cut(np.load(path).astype(np.int64), chosen.context).rows, count))
    laps = Progress(journal)
    trained = train(prepared, windows, chosen, held_out=held, tensorboard=False, reporter=laps)
    shown = ("iterations", "seed_iterations", "seconds", "validation", "deployed", "diverged", "left", "skipped")
    facts = {name: getattr(trained, name) for name in shown}
    journal.write("trained", **facts, total=sum(trained.iterations.values()), laps=laps.seconds)
    save_prepared(prepared, args.out / "model")
    name = f"gpt2-small-wiki-{args.preset}"
    circuit = export(prepared, trained.calibration, args.out / "circuit", name=name, context=CONTEXT)
    journal.write("exported", digest=circuit.digest, **drowning(circuit, args.params), sums=sums(circuit))


def sums(circuit: Circuit) -> dict[str, dict[str, Any]]:
    """Of each softmax: iterations, and logarithms of where its first domain ends and of the sums that were seen."""
    found = {}
    for name, c in circuit.calibration.softmaxes.items():
        seen = [round(math.log(end), 1) for end in (c.observed_init.lo, c.observed_init.hi)]
        counts = [c.init_count, c.refine_count]
        found[name] = {"counts": counts, "end": round(math.log(c.fit.init.hi), 1), "seen": seen, "width": c.fit.width}
    return found


def drowning(circuit: Circuit, params: str) -> dict[str, Any]:
    """The sums that a refresh's noise can drown, if there are any."""
    from heatfhe.planning import faint_sums, preset

    noise = preset(params).noise
    return {"noise": noise, "sums_that_drown": faint_sums(circuit, noise)}


def stress_stage(args: argparse.Namespace) -> None:
    """The trained model as deployed, in torch: all held-out windows, odd windows of each kind, and texts given."""
    import torch
    from transformers import AutoModelForCausalLM

    from heatfhe.evaluation import hard_of_prepared, stress_prepared, stress_rows, text_rows
    from heatfhe.odd import HARD, KINDS
    from heatfhe.sites import load_prepared
    from heatfhe.training import cut, window_losses

    torch.set_float32_matmul_precision("high")
    journal = Journal(args.out / "stress.jsonl")
    folder = args.model or args.out / "model"
    prepared = load_prepared(folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    prepared.to(device)
    shape = prepared.architecture.shape
    for path in (args.heldout, *args.texts):
        parts = cut(np.load(path).astype(np.int64), shape.context).rows
        loss = window_losses(prepared, torch.from_numpy(parts).to(device), args.batch)
        fine = loss[loss.isfinite()]
        facts = {"windows": len(loss), "diverged": len(loss) - len(fine), "perplexity": math.exp(fine.mean())}
        journal.write("text", text=path.stem, **facts)
    held = text_rows(str(args.heldout), np.load(args.heldout), shape.context, 10**6)
    hard = hard_of_prepared(prepared)
    kinds = (*KINDS, HARD)
    rows = stress_rows(held, shape.vocabulary, shape.context, args.windows, seed=args.seed, kinds=kinds, hard=hard)
    texts = {path.stem: text_rows(str(path), np.load(path), shape.context, args.windows) for path in args.texts}
    journal.write("hard tokens", count=len(hard.tokens), worst=hard.tokens[np.argsort(-hard.weights)[:16]].tolist())
    for kind, part in {args.heldout.stem: held, **rows, **texts}.items():
        began = time.perf_counter()
        found = stress_prepared(prepared, {kind: part}, batch=args.batch)[0]
        facts = found.as_json() | {"sites": found.as_json()["sites"][:8]}
        journal.write("stress", **facts, seconds=time.perf_counter() - began)


def calibrate_stage(args: argparse.Namespace) -> None:
    """The same model as it is, calibrated and exported: what training is compared with."""
    import torch
    from transformers import AutoModelForCausalLM

    from heatfhe.lowering import export
    from heatfhe.ranges import calibrate
    from heatfhe.sites import prepare
    from heatfhe.training import cut

    journal = Journal(args.out / "calibrate.jsonl")
    parent = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32)
    prepared = prepare(parent.to("cuda" if torch.cuda.is_available() else "cpu").eval())
    rows = cut(np.load(args.train).astype(np.int64), prepared.architecture.shape.context).rows[:CALIBRATED, :-1]
    calibration = calibrate(prepared, rows)
    journal.write("calibrated", iterations=calibration.iterations(), windows=len(rows))
    name = "gpt2-small-wiki-calibrated"
    circuit = export(prepared, calibration, args.out / "circuit", name=name, context=CONTEXT)
    journal.write("exported", digest=circuit.digest)
