# SPDX-License-Identifier: Apache-2.0
"""Weights split over processes (PyTorch's FSDP2): each holds a share of every matrix, its gradient and its moments.

The halting logits are a few hundred numbers and stay whole on every process. A run trains a sharded copy; the model it
was given receives the whole weights at the end.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from heatfhe.errors import ConfigError
from heatfhe.sites import Prepared, prepare
from heatfhe.training.recompute import blocks


def sharded(prepared: Prepared) -> Prepared:
    """A copy of a prepared model with every block's weights split over all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError("weights are split over several processes; start them with torchrun --nproc-per-node N")
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as err:
        raise ConfigError(f"splitting weights needs PyTorch 2.6 or newer, this is {torch.__version__}") from err

    parent: Any = prepared.model
    device = next(parent.parameters()).device
    made = prepare(type(parent)(copy.deepcopy(parent.config)).to(device).eval(), prepared.config)
    give(prepared, made)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in blocks(made.model):
        fully_shard(block, mesh=mesh)
    # Split again after every forward, the outermost weights too: an optimizer must be made over the shares alone.
    fully_shard(made.model, mesh=mesh, reshard_after_forward=True)
    return made


def whole(value: Tensor) -> Tensor:
    """The whole of a tensor, gathered from all processes where it is split: every one of them must ask."""
    gather: Any = getattr(value, "full_tensor", None)
    return value if gather is None else gather()


def like(value: Tensor, parameter: Any) -> Tensor:
    """A whole tensor placed as a parameter is: split in the same way, or a copy on its device."""
    value = value.to(parameter.device)
    if not hasattr(parameter, "device_mesh"):
        return value.clone()
    from torch.distributed.tensor import distribute_tensor

    split: Tensor = distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return split


def average_logits(prepared: Prepared) -> None:
    """The mean over processes of the halting logits' gradient, which no shard takes care of."""
    for parameter in prepared.halting_logits():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@torch.no_grad()
def give(source: Prepared, target: Prepared) -> None:
    """Give a model the weights, constants, counts and distributions of another, whole ones of a sharded one."""
    target.model.load_state_dict({name: whole(value) for name, value in source.model.state_dict().items()})
    if source.calibration is not None:
        target.adopt(source.calibration, max_counts={site.name: site.max_count for site in source.sites})
        target.halting.load(source.halting.dump())
        target.set_counts(source.counts())
