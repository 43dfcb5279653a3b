# SPDX-License-Identifier: Apache-2.0
"""What does a phase-two step of HEAT cost beside a plain fine-tuning step of the same model? Time and peak memory.

    python bench/heat_step.py [--batch 4] [--context 1024] [--steps 30] [--checkpoint DIR]

The peer: the same GPT-2 with its exact nonlinearities and torch's flash attention, same batch, same optimizer, compiled
the same way, in the same run. Random weights of GPT-2 small unless a checkpoint is given. Needs an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from heatfhe.halting import BackOff
from heatfhe.ranges import calibrate
from heatfhe.sites import prepare
from heatfhe.training.loop import configure, make_optimizer
from heatfhe.training.losses import losses, task_loss
from heatfhe.training.recipe import Recipe


def timed(step, steps: int) -> tuple[float, float, int]:
    """Median and spread of a step in milliseconds, and peak bytes."""
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    median = statistics.median(times)
    return median, (max(times) - min(times)) / median, torch.cuda.max_memory_allocated()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--checkpoint", type=Path)
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

    plain = copy.deepcopy(parent)
    plain.config._attn_implementation = "sdpa"
    forward = torch.compile(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)

    def plain_step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = forward(input_ids=rows[:, :-1], use_cache=False).logits
        loss = task_loss(logits, rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0, foreach=True)
        optimizer.step()

    peer, peer_spread, peer_bytes = timed(plain_step, args.steps)
    torch.cuda.empty_cache()

    recipe = Recipe(context=args.context)
    prepared = prepare(copy.deepcopy(parent))
    prepared.adopt(calibrate(prepared, [rows[:2, :-1]], 1e-4, delta_2=2, argmax=False))
    phase = recipe.heat
    configure(prepared, phase, recipe)
    prepared.switch.push = recipe.push / (args.batch * args.context)
    heat_optimizer = make_optimizer(prepared, phase, recipe)
    for group in heat_optimizer.param_groups:
        group["lr"] = 1e-5
    targets = BackOff.start(prepared.sites)
    soft = torch.compile(prepared)

    def heat_step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            terms = losses(soft, prepared, None, rows, phase, recipe, targets, 100)
        heat_optimizer.zero_grad(set_to_none=True)
        terms.total(phase, 0.6).backward()
        torch.nn.utils.clip_grad_norm_(list(prepared.weights()), 1.0, foreach=True)
        heat_optimizer.step()

    ours, spread, our_bytes = timed(heat_step, args.steps)
    shape, gib = f"B={args.batch} T={args.context}", 2**30
    print(
        f"phase-two step {shape} | ours {ours:.2f} ms | plain fine-tuning, flash {peer:.2f} ms "
        f"| ours/peer {ours / peer:.3f} "
        f"| memory {our_bytes / gib:.2f} / {peer_bytes / gib:.2f} GiB = {our_bytes / peer_bytes:.3f} "
        f"| median of {args.steps}, spread {100 * spread:.0f}% / {100 * peer_spread:.0f}% "
        f"| {torch.cuda.get_device_name()}, torch {torch.__version__}"
    )
    print(json.dumps({"ours_ms": ours, "peer_ms": peer, "ours_bytes": our_bytes, "peer_bytes": peer_bytes}))


if __name__ == "__main__":
    main()
