# SPDX-License-Identifier: Apache-2.0
"""How much memory an update needs, from shapes alone: what does not fit is refused before anything is loaded.

Shapes: d width, f hidden width, h heads, T context. Bytes that a block keeps per token were counted on GPT-2 through
torch's hooks on saved tensors (``tests/training/test_memory.py`` counts again); a GPU's fused kernels keep no scores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from heatfhe.errors import ConfigError
from heatfhe.models import Architecture
from heatfhe.stages import Norm
from heatfhe.training.recipe import Recipe

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one process, by what they are for."""

    weights: int
    gradients: int
    moments: int
    teacher: int
    activations: int
    logits: int

    @property
    def parts(self) -> Mapping[str, int]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(self.parts.values())


def training_memory(
    architecture: Architecture, parameters: int, recipe: Recipe, *, gpu: bool, processes: int = 1, shard: bool = False
) -> Memory:
    """What one process of a run holds at the largest moment of an update, about.

    On a GPU with bfloat16 our kernels, which are for layer norms, keep little; elsewhere everything is float32 and a
    block keeps its scores.
    """
    shape, fused = architecture.shape, gpu and recipe.precision == "bf16"
    fused = fused and all(norm.centred for norm in architecture.of(Norm))
    share = processes if shard and processes > 1 else 1
    taught = any(p.updates and (p.distil or recipe.odd_share) for p in recipe.phases.values())
    tokens, context = recipe.micro_tokens, recipe.context
    if fused:  # inputs of products in bfloat16, those of norms in float32
        block = tokens * 4 * (7 * shape.width + shape.hidden)
    else:
        block = tokens * 4 * (18 * shape.width + 4 * shape.hidden + 9 * shape.heads * context)
    kept = tokens * 4 * shape.width
    ends = 4 * kept  # the embedded rows and the last norm
    narrow = 2 * parameters if fused else 0  # the copies that autocast multiplies with
    return Memory(
        weights=4 * parameters // share + narrow,
        gradients=4 * parameters // share,
        moments=8 * parameters // share,
        teacher=(4 * parameters + narrow) if taught else 0,
        activations=ends + (shape.layers * kept + block if recipe.recompute else shape.layers * block),
        logits=tokens * shape.vocabulary * ((4 if fused else 12) + (taught and (2 if fused else 12))),
    )


def free_memory() -> tuple[int, str]:
    """Bytes there are to use, and where: the GPU's free ones, or all of this machine's."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0]), f"free on {torch.cuda.get_device_name()}"
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "in this machine"


def check_memory(need: Memory, recipe: Recipe, name: str, room: tuple[int, str] | None = None) -> None:
    """Refuse a run that cannot fit, with the bytes it needs and what would make it smaller."""
    bytes_there, where = free_memory() if room is None else room
    if need.total <= bytes_there:
        return
    parts = ", ".join(f"{part} {size / GIB:.2f}" for part, size in need.parts.items() if size)
    ways = [] if recipe.recompute else ["--recompute (a block's activations are computed again, not kept)"]
    ways += [f"--micro-tokens {recipe.context}"] if recipe.micro_tokens > recipe.context else ["a shorter --context"]
    raise ConfigError(
        f"{name}: an update needs about {need.total / GIB:.2f} GiB ({parts}), {bytes_there / GIB:.2f} GiB are {where}; "
        f"use {', '.join(ways)}, or torchrun with --shard (the weights are split over processes)"
    )
