# SPDX-License-Identifier: Apache-2.0
"""A short run for torchrun: python -m torch.distributed.run --nproc-per-node 2 -m tests.training.distributed FOLDER.

With a further word, ``shard``, the weights are split over the processes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from heatfhe.training import Recipe, Stopped
from tests.training.short import fresh, go, short


def chosen(*, shard: bool) -> Recipe:
    """Sharded without distillation: a student equal to its teacher has a gradient of rounding alone, which AdamW
    scales to full steps, and weights in other places of memory round otherwise."""
    made = short()
    return replace(made, squeeze=replace(made.squeeze, distil=False)) if shard else made


def main(folder: Path, *, shard: bool) -> None:
    torch.set_num_threads(1)
    recipe = chosen(shard=shard)
    prepared = fresh()
    asked = iter([False] * 4 + [True])  # stopped in phase two, then started again
    try:
        go(prepared, recipe, folder, stop=lambda: next(asked), shard=shard)
    except Stopped:
        prepared = fresh()
        go(prepared, recipe, folder, shard=shard)
    if torch.distributed.get_rank() == 0:
        torch.save(prepared.model.state_dict(), folder / "weights.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), shard="shard" in sys.argv[2:])
