# SPDX-License-Identifier: Apache-2.0
"""What the kernels of all sites ask of a switch: a distribution over counts on the device, and the dtype to write."""

from __future__ import annotations

import torch
from torch import Tensor

from heatfhe.halting import HaltingTable
from heatfhe.halting.fused import on_device
from heatfhe.sites.switch import Switch


def distribution(switch: Switch, table: HaltingTable, site: str) -> Tensor:
    """A site's distribution over 0..top: learned when halting is soft, one-hot at a hard count, trivial when exact."""
    device = table.logits.device
    if switch.mode == "exact":
        return on_device((1.0,), device)
    learned = switch.distribution(table, site, table.logits)
    return on_device((0.0,) * switch.count(site) + (1.0,), device) if learned is None else learned.contiguous()


def narrow(x: Tensor) -> torch.dtype:
    """The dtype a matrix product would round x to: autocast's where that is on."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
