# SPDX-License-Identifier: Apache-2.0
"""Sites: prepare a model in place, run it exactly, in training or as deployed, and restore it. torch."""

from heatfhe.sites.activation import ActivationSite
from heatfhe.sites.attention import AttentionSite
from heatfhe.sites.gguf import load_gguf
from heatfhe.sites.guards import RangeBounds, excess, guard
from heatfhe.sites.norm import NormSite
from heatfhe.sites.prepare import prepare, restore
from heatfhe.sites.prepared import PrepareConfig, Prepared
from heatfhe.sites.sidefile import load_prepared, save_prepared
from heatfhe.sites.source import load_checkpoint
from heatfhe.sites.switch import Mode, Switch, Tap

__all__ = [
    "ActivationSite",
    "AttentionSite",
    "Mode",
    "NormSite",
    "PrepareConfig",
    "Prepared",
    "RangeBounds",
    "Switch",
    "Tap",
    "excess",
    "guard",
    "load_checkpoint",
    "load_gguf",
    "load_prepared",
    "prepare",
    "restore",
    "save_prepared",
]
