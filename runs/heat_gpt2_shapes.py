# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of medium and large shape, random weights: a HEAT step beside our control's, both with activations recomputed.

    python runs/heat_gpt2_shapes.py --shape medium --text tokens.npy.xz --plain-seconds 300 --json medium.json
    python runs/heat_gpt2_shapes.py --shape large --text tokens.npy.xz --updates 20 --json large.json
    python runs/heat_gpt2_shapes.py --shape tiny --context 32 --batch 2 --updates 3          # any machine
    python runs/heat_gpt2_shapes.py --shape medium --text tokens.npy.xz --plain-seconds 300 --squeeze 0.8 --save m.pt
    python runs/heat_gpt2_shapes.py --shape medium --text tokens.npy.xz --load m.pt --json medium.json
    python runs/heat_gpt2_shapes.py --shape medium --text tokens.npy.xz --plain-seconds 300 --checkpoint DIR
    python runs/encrypted_gpt2.py train --checkpoint DIR --train tokens.npy --share 0.1 --out OUT  # HEAT's own counts

One run measures both: step time (median, middle 80 %) and peak memory of the control's step and of HEAT's, on the same
rows, one after the other in one process, each from the same weights and with the same recomputation. The bars are a
time of at most 1.35 and a peak of at most 1.15 times the control's. With --plain-seconds the model is first trained
plainly on the text (its bytes as tokens, or .npy of token ids, either as .xz too) for that long, and its calibrated
counts are printed; --squeeze SHARE then runs that share of the recipe's first phase, without which scores of so young
a model are too wide for one refinement pass, and so for the fused attention; --save ends there, and --load goes on from
it; --checkpoint writes it as a plain checkpoint, which any training of ours takes, and goes on. The estimate that heat
train refuses by stands beside the peak. On a CPU steps are eager and no peak is taken. A JSON line is printed for each
thing that is finished.
"""

from __future__ import annotations

import argparse
import copy
import gc
import io
import json
import lzma
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.errors import SiteError
from heatfhe.halting import BackOff, gpu_kernels
from heatfhe.ranges import calibrate
from heatfhe.records import Calibration
from heatfhe.sites import Prepared, prepare
from heatfhe.training import Windows, ablation, recipe, train, training_memory
from heatfhe.training.captured import CapturedBatch
from heatfhe.training.loop import configure, make_optimizer
from heatfhe.training.losses import losses, prior
from heatfhe.training.recipe import Recipe
from heatfhe.training.recompute import recomputed

SHAPES = {
    "tiny": {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 300},
    "small": {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "large": {"n_layer": 36, "n_embd": 1280, "n_head": 20},
}
BARS = {"time": 1.35, "memory": 1.15}
WARM_UP = 3
CALIBRATED = 32  # windows
SQUEEZED = 8  # windows of a micro-batch of the squeeze
SAID_EVERY = 20.0  # seconds
Step = Callable[[], dict[str, float]]


def rows_of(args: argparse.Namespace, vocabulary: int) -> torch.Tensor:
    """All windows (N, context + 1): of the text, or random ones."""
    if args.text is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, vocabulary, (max(64, 4 * args.batch), args.context + 1), generator=generator)
    data, name = args.text.read_bytes(), args.text.name.removesuffix(".xz")
    data = lzma.decompress(data) if name != args.text.name else data
    raw = np.load(io.BytesIO(data)) if name.endswith(".npy") else np.frombuffer(data, dtype=np.uint8)
    length = args.context + 1
    windows = raw[: len(raw) // length * length].reshape(-1, length).astype(np.int64)
    return torch.from_numpy(np.random.default_rng(0).permutation(windows))


def step_of(prepared: Prepared, chosen: Recipe, rows: torch.Tensor, device: str) -> Step:
    """One update as training runs it in phase two: captured on a GPU, eager elsewhere. Must run inside recomputed."""
    phase, state = chosen.heat, {"update": 0}
    size = len(rows)
    configure(prepared, phase, chosen)
    prepared.switch.push = chosen.push / (size * chosen.context)
    optimizer = make_optimizer(prepared, phase, chosen)
    targets = BackOff.start(prepared.sites) if phase.halting == "soft" else None

    def begin() -> float:
        for group in optimizer.param_groups:
            group["lr"] = phase.logit_lr if group["name"] == "logits" else phase.rate(state["update"])
        state["update"] += 1
        return chosen.lambda_iter(state["update"]) if targets is not None else 0.0

    if device == "cuda":
        captured = CapturedBatch(prepared, None, phase, rows, share=1.0, narrow=True)

        def replay() -> dict[str, float]:
            weight = begin()
            if targets is not None:
                captured.pull(prior(prepared, chosen, targets, state["update"]), weight)
            mean, finite, _ = captured.update([rows], optimizer, chosen.clip)
            return mean | {"finite": float(finite)}

        return replay

    def eager() -> dict[str, float]:
        weight = begin()
        optimizer.zero_grad(set_to_none=True)
        terms = losses(prepared, prepared, None, rows, phase, chosen, targets, state["update"])
        terms.total(phase, weight).backward()
        norm = torch.nn.utils.clip_grad_norm_([p for p in prepared.parameters() if p.grad is not None], chosen.clip)
        optimizer.step()
        return {"task": float(terms.task.detach()), "gradient": float(norm), "finite": float(torch.isfinite(norm))}

    return eager


def timed(make: Callable[[], Step], updates: int, device: str) -> dict[str, Any]:
    """Median seconds of an update, its spread, the peak in bytes from before the step was made, and the last losses."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = make()
    for _ in range(WARM_UP):
        step()
    times, last, finite = [], {}, 0.0
    for _ in range(updates):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        last = step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        finite += last["finite"]
    tenths = statistics.quantiles(times, n=10) if len(times) > 1 else [times[0]]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    spread = (tenths[-1] - tenths[0]) / statistics.median(times)
    return {
        "seconds": statistics.median(times), "spread": spread, "peak_bytes": peak, "updates": updates,
        "finite_updates": int(finite), "loss": last["task"], "gradient": last["gradient"],
    }  # fmt: skip


def trained_plainly(model: Any, rows: torch.Tensor, args: argparse.Namespace, device: str) -> dict[str, float]:
    """Plain fine-tuning of all weights on the rows, for a time; AdamW at 3e-4 after a short rise."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device == "cuda")
    kernels = gpu_kernels("heatfhe.training.fused") if device == "cuda" else None
    size, vocabulary = args.plain_batch, model.config.vocab_size
    began = said = time.monotonic()
    update, loss = 0, torch.zeros(())
    while time.monotonic() - began < args.plain_seconds:
        at = update * size % (len(rows) - size + 1)
        part = rows[at : at + size].to(device, non_blocking=True)
        for group in optimizer.param_groups:
            group["lr"] = 3e-4 * min(1.0, (update + 1) / 50)
        narrow: AbstractContextManager[Any] = torch.autocast("cuda", torch.bfloat16) if kernels else nullcontext()
        with narrow, kernels.aligned_heads(model) if kernels else nullcontext():
            logits = model(input_ids=part[:, :-1], use_cache=False).logits
        if kernels:
            loss = kernels.cross_entropy(logits, part[:, 1:], vocabulary)
        else:
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update += 1
        if time.monotonic() - said > SAID_EVERY or update in (1, 10):
            said, seconds = time.monotonic(), time.monotonic() - began
            say("plain update", update=update, loss=float(loss.detach()), seconds=seconds)
    if device == "cuda":
        torch.cuda.synchronize()
    tokens = update * size * (rows.shape[1] - 1)
    return {
        "updates": update, "tokens": tokens, "seconds": time.monotonic() - began, "loss": float(loss.detach())
    }  # fmt: skip


def say(what: str, **facts: Any) -> None:
    """One JSON line, at once."""
    print(json.dumps({"what": what, **facts}), flush=True)


def calibrated(prepared: Prepared, watched: list[torch.Tensor], tolerance: float, delta_2: int | None) -> Calibration:
    """At the recipe's second softmax factor, as phase two would have it; where scores are too wide for that, since no
    squeeze has narrowed them, at the cheapest of each site."""
    try:
        return calibrate(prepared, watched, tolerance, delta_2=delta_2, argmax=False)
    except SiteError as err:
        say("wide scores", why=str(err))
        return calibrate(prepared, watched, tolerance, argmax=False)


def squeezed(parent: Any, rows: torch.Tensor, args: argparse.Namespace, device: str) -> dict[str, Any]:
    """The recipe's first phase on the parent itself, at a share of its updates, and the counts before and after."""
    base = recipe("gpt2-small") if args.context == 1024 else recipe("gpt2-small").adjusted(context=args.context)
    base = replace(base.scaled(args.squeeze), micro_tokens=SQUEEZED * args.context, odd_share=0.0)
    prepared = prepare(copy.deepcopy(parent).to(device))
    watched = [part.to(device) for part in rows[-CALIBRATED:, :-1].split(1)]
    before = calibrate(prepared, watched, args.tolerance, argmax=False)
    say("calibrated", **counted(before))
    found = train(prepared, Windows(rows.numpy()), ablation("squeezed", base), tensorboard=False, argmax=False)
    weights = prepared.model.state_dict()
    parent.load_state_dict({name: weights[name] for name in parent.state_dict()})
    facts = {"updates": found.updates, "seconds": found.seconds, "before": counted(before)}
    return facts | counted(found.calibration)


def counted(found: Calibration) -> dict[str, Any]:
    """Iterations of a calibration, in all and by family, and the widest scores that a softmax of it is fitted to."""
    counts, fits = found.iterations(), [c.fit for c in found.softmaxes.values()]
    return {
        "iterations": counts, "total": sum(counts.values()), "delta_2": sorted({fit.delta_2 for fit in fits}),
        "score_width": max(fit.width for fit in fits),
    }  # fmt: skip


def compared(parent: Any, rows: torch.Tensor, args: argparse.Namespace, device: str) -> dict[str, Any]:
    """The control's step and HEAT's, each on a fresh copy of the parent, which is not on the GPU meanwhile."""
    parameters, out = sum(p.numel() for p in parent.parameters()), {}
    base = recipe("gpt2-small") if args.context == 1024 else recipe("gpt2-small").adjusted(context=args.context)
    base = replace(base, micro_tokens=args.batch * args.context, recompute=not args.keep, odd_share=0.0)
    batch = rows[: args.batch].to(device)
    around = nullcontext if args.keep else recomputed
    parent.cpu()
    for name in ("control", "heat"):
        chosen = ablation(name, base)
        prepared = prepare(copy.deepcopy(parent).to(device))
        if name == "heat":
            began = time.monotonic()
            watched = [part.to(device) for part in rows[-CALIBRATED:, :-1].split(1)]
            seed = calibrated(prepared, watched, args.tolerance, chosen.delta_2)
            prepared.adopt(seed)
            out["calibrated"] = counted(seed) | {"windows": len(watched), "seconds": time.monotonic() - began}
            say("calibrated", **out["calibrated"])
        asked = replace(chosen, squeeze=replace(chosen.squeeze, updates=0))  # no teacher in these steps
        need = training_memory(prepared.architecture, parameters, asked, gpu=device == "cuda")
        with around(prepared):
            out[name] = timed(lambda p=prepared, c=chosen: step_of(p, c, batch, device), args.updates, device)
        out[name]["estimated_bytes"] = need.total
        say(name, **out[name])
        prepared = None
        gc.collect()
    heat, control = out["heat"], out["control"]
    out["time_ratio"] = heat["seconds"] / control["seconds"]
    out["memory_ratio"] = heat["peak_bytes"] / control["peak_bytes"] if device == "cuda" else None
    met = {"time": out["time_ratio"] <= BARS["time"]}
    met["memory"] = None if out["memory_ratio"] is None else out["memory_ratio"] <= BARS["memory"]
    say("ratios", time=out["time_ratio"], memory=out["memory_ratio"], met=met)
    return out | {"met": met}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="medium")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--batch", type=int, default=4, help="windows of an update (default 4, the recipe's 4096 tokens)"
    )
    parser.add_argument("--updates", type=int, default=20, help="timed updates of each (default 20)")
    parser.add_argument("--text", type=Path, help="bytes of a file as tokens, or .npy of token ids (default random)")
    parser.add_argument(
        "--plain-seconds", type=float, default=0.0, help="plain training before anything (default none)"
    )
    parser.add_argument("--plain-batch", type=int, default=16, help="windows of a plain update (default 16)")
    parser.add_argument(
        "--squeeze", type=float, default=0.0, metavar="SHARE", help="then the squeeze at a share of its updates"
    )
    parser.add_argument("--save", type=Path, help="write the plainly trained weights here, and stop")
    parser.add_argument("--checkpoint", type=Path, help="write the plainly trained model to this folder, and go on")
    parser.add_argument("--load", type=Path, help="start from weights written so")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of the calibration (default 1e-4)")
    parser.add_argument("--keep", action="store_true", help="keep activations instead, in both")
    parser.add_argument("--json", type=Path, help="write the result here too")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    config = GPT2Config(**SHAPES[args.shape], n_positions=args.context, bos_token_id=0, eos_token_id=0)
    began = time.monotonic()
    with torch.device(device):  # or a large one takes longer to make than to measure
        parent = GPT2LMHeadModel(config).eval()
    parameters = sum(p.numel() for p in parent.parameters())
    rows = rows_of(args, config.vocab_size)
    out: dict[str, Any] = {
        "shape": args.shape, "parameters": parameters, "context": args.context, "batch": args.batch,
        "recompute": not args.keep, "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
    }  # fmt: skip
    say("model", seconds=time.monotonic() - began, **out)
    if args.load is not None:
        parent.load_state_dict(torch.load(args.load, map_location=device))
    if args.plain_seconds:
        out["plain"] = trained_plainly(parent, rows, args, device)
        say("plain", **out["plain"])
    if args.squeeze:
        out["squeezed"] = squeezed(parent, rows, args, device)
        say("squeezed", **out["squeezed"])
    if args.save is not None:
        torch.save(parent.state_dict(), args.save)
        return
    if args.checkpoint is not None:
        parent.save_pretrained(args.checkpoint)
    out |= compared(parent, rows, args, device)
    if args.json is not None:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
