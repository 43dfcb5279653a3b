# SPDX-License-Identifier: Apache-2.0
"""What does a phase-two step of HEAT cost beside a plain fine-tuning step of the same model? Time and peak memory.

    python bench/heat_step.py [--batch 4] [--context 1024] [--steps 50] [--checkpoint DIR] [--peers eager,compiled]

The peers: the same GPT-2 with its exact nonlinearities and torch's flash attention, same batch, same optimizer and
clipping, in the same run, as a plain loop (eager) and through torch.compile, loss included (compiled). Ours is the step
that training runs. Random weights of GPT-2 small unless a checkpoint is given. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.halting import BackOff
from heatfhe.ranges import calibrate
from heatfhe.sites import prepare
from heatfhe.training.captured import CapturedBatch
from heatfhe.training.loop import configure, make_optimizer
from heatfhe.training.losses import prior
from heatfhe.training.recipe import Recipe

Step = Callable[[], None]


def timed(step: Step, steps: int) -> tuple[float, float, int]:
    """Median of a step in milliseconds, its spread (middle 80 %), and peak bytes since the step was made."""
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(steps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    tenth = statistics.quantiles(times, n=10)
    median = statistics.median(times)
    return median, (tenth[-1] - tenth[0]) / median, torch.cuda.max_memory_allocated()


def plain(parent: torch.nn.Module, rows: torch.Tensor, compiled: bool) -> Step:
    """A plain fine-tuning step."""
    model = copy.deepcopy(parent)
    model.config._attn_implementation = "sdpa"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        return cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    forward = torch.compile(loss_of) if compiled else loss_of
    torch.cuda.reset_peak_memory_stats()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    return step


def heat(parent: torch.nn.Module, rows: torch.Tensor, solver: str) -> Step:
    """A phase-two step as training runs it."""
    recipe = Recipe(context=rows.shape[1] - 1)
    prepared = prepare(copy.deepcopy(parent))
    prepared.adopt(calibrate(prepared, [rows[:2, :-1]], 1e-4, delta_2=2, argmax=False, solver=solver))
    configure(prepared, recipe.heat, recipe)
    prepared.switch.push = recipe.push / (rows.shape[0] * recipe.context)
    optimizer = make_optimizer(prepared, recipe.heat, recipe)
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    targets = BackOff.start(prepared.sites)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()  # before the capture: its warm-up steps allocate what the replays use
    captured = CapturedBatch(prepared, None, recipe.heat, rows, share=1.0, narrow=True)

    def step() -> None:
        captured.pull(prior(prepared, recipe, targets, 100), 0.6)
        captured.update([rows], optimizer, recipe.clip)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--peers", default="eager,compiled")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("peer absent: no NVIDIA GPU on this machine")
        return
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    if args.checkpoint:
        parent = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=torch.float32)
    else:
        parent = GPT2LMHeadModel(GPT2Config())
    parent = parent.cuda().eval()
    rows = torch.randint(0, parent.config.vocab_size, (args.batch, args.context + 1), device="cuda")
    steps: dict[str, Callable[[], Step]] = {
        **{peer: lambda peer=peer: plain(parent, rows, peer == "compiled") for peer in args.peers.split(",")},
        "plain": lambda: heat(parent, rows, "plain"),
        "relaxed": lambda: heat(parent, rows, "relaxed"),
    }
    found = {}
    for name, make in steps.items():
        torch.cuda.empty_cache()
        found[name] = timed(make(), args.steps)
    gib, card = 2**30, f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    for solver in ("plain", "relaxed"):
        for peer in args.peers.split(","):
            (ours, spread, own), (theirs, their_spread, their_bytes) = found[solver], found[peer]
            print(
                f"phase-two step ({solver}) B={args.batch} T={args.context} | ours {ours:.2f} ms "
                f"| plain fine-tuning, flash, {peer} {theirs:.2f} ms | ours/peer {ours / theirs:.3f} "
                f"| memory {own / gib:.2f} / {their_bytes / gib:.2f} GiB = {own / their_bytes:.3f} "
                f"| median of {args.steps}, spread {100 * spread:.0f}% / {100 * their_spread:.0f}% | {card}"
            )
    print(json.dumps({name: {"ms": ms, "bytes": size} for name, (ms, _, size) in found.items()}))


if __name__ == "__main__":
    main()
