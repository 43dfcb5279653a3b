# SPDX-License-Identifier: Apache-2.0
"""A short run for torchrun: python -m torch.distributed.run --nproc-per-node 2 -m tests.training.distributed FOLDER.

With a further word, ``shard``, the weights are split over the processes; with ``again``, activations are recomputed.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from heatfhe.files import write_json
from heatfhe.training import Recipe, Stopped, checkpoint
from tests.training.short import fresh, go, short


def chosen(*, shard: bool, again: bool = False) -> Recipe:
    """Sharded without distillation: a student equal to its teacher has a gradient of rounding alone, which AdamW
    scales to full steps, and weights in other places of memory round otherwise."""
    made = short(recompute=again, centre=True, narrow=True)
    return replace(made, squeeze=replace(made.squeeze, distil=False)) if shard else made


def slow_disk(seconds: float) -> None:
    """From now on a checkpoint takes long to write, as on a busy machine: nobody may go on before it is there."""

    def write(*given: Any) -> None:
        time.sleep(seconds)
        write_json(*given)

    checkpoint.write_json = write


def main(folder: Path, *, shard: bool, again: bool) -> None:
    torch.set_num_threads(1)
    recipe = chosen(shard=shard, again=again)
    prepared = fresh()
    updates = count(1)

    def stop() -> bool:
        """After the fifth update, in phase two; the checkpoint of that stop comes late."""
        if next(updates) < 5:
            return False
        slow_disk(2.0)
        return True

    try:
        go(prepared, recipe, folder, stop=stop, shard=shard)
    except Stopped:
        checkpoint.write_json = write_json
        prepared = fresh()
        go(prepared, recipe, folder, shard=shard)
    if torch.distributed.get_rank() == 0:
        torch.save(prepared.model.state_dict(), folder / "weights.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), shard="shard" in sys.argv[2:], again="again" in sys.argv[2:])
