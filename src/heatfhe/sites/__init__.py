# SPDX-License-Identifier: Apache-2.0
"""Sites: prepare a model in place, run it exactly, in training or as deployed, and restore it. torch."""

from heatfhe.sites.gguf import load_gguf
from heatfhe.sites.guards import RangeBounds, excess, guard
from heatfhe.sites.prepare import prepare, restore
from heatfhe.sites.prepared import PrepareConfig, Prepared
from heatfhe.sites.sidefile import load_prepared, save_prepared
from heatfhe.sites.source import described, load_checkpoint
from heatfhe.sites.switch import Mode, Tap

__all__ = [
    "Mode",
    "PrepareConfig",
    "Prepared",
    "RangeBounds",
    "Tap",
    "described",
    "excess",
    "guard",
    "load_checkpoint",
    "load_gguf",
    "load_prepared",
    "prepare",
    "restore",
    "save_prepared",
]
