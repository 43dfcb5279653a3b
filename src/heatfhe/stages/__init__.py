# SPDX-License-Identifier: Apache-2.0
"""Stages: the one description of a model that every room dispatches on. No torch."""

from heatfhe.stages.graph import centred, layers, of, readers, sites, solved, writers
from heatfhe.stages.types import (
    Activation,
    Argmax,
    Attention,
    Embed,
    Gate,
    Head,
    Linear,
    Needs,
    Norm,
    Patches,
    Residual,
    Shape,
    Stage,
    stage_from_json,
    stage_to_json,
    turns,
)

__all__ = [
    "Activation",
    "Argmax",
    "Attention",
    "Embed",
    "Gate",
    "Head",
    "Linear",
    "Needs",
    "Norm",
    "Patches",
    "Residual",
    "Shape",
    "Stage",
    "centred",
    "layers",
    "of",
    "readers",
    "sites",
    "solved",
    "stage_from_json",
    "stage_to_json",
    "turns",
    "writers",
]
