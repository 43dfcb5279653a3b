# SPDX-License-Identifier: Apache-2.0
"""A short run for torchrun: python -m torch.distributed.run --nproc-per-node 2 -m tests.training.distributed FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from heatfhe.training import Stopped
from tests.training.short import fresh, go, short


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    prepared = fresh()
    asked = iter([False] * 4 + [True])  # stopped in phase two, then started again
    try:
        go(prepared, short(), folder, stop=lambda: next(asked))
    except Stopped:
        prepared = fresh()
        go(prepared, short(), folder)
    if torch.distributed.get_rank() == 0:
        torch.save(prepared.model.state_dict(), folder / "weights.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
