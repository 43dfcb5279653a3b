# SPDX-License-Identifier: Apache-2.0
"""One file per architecture: where its sites are and how its weights map to stages. An explicit table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.models import gpt2
from heatfhe.models.places import (
    ActivationPlace,
    Architecture,
    AttentionPlace,
    EmbedPlace,
    HeadPlace,
    LinearPlace,
    NormPlace,
    Place,
    ResidualPlace,
)

__all__ = [
    "ARCHITECTURES",
    "ActivationPlace",
    "Architecture",
    "AttentionPlace",
    "EmbedPlace",
    "HeadPlace",
    "LinearPlace",
    "NormPlace",
    "Place",
    "ResidualPlace",
    "describe",
    "fingerprint",
]

# Hugging Face's config.model_type -> how to describe such a model.
ARCHITECTURES: dict[str, Callable[[Any], Architecture]] = {
    "gpt2": gpt2.describe,
}


def describe(model: Any) -> Architecture:
    """The architecture of a Hugging Face model; ConfigError names what is unknown or unsupported."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"unknown architecture {kind or type(model).__name__!r}; have: {', '.join(ARCHITECTURES)}. "
            "A new one is a file in heatfhe/models and a row in its table"
        )
    return ARCHITECTURES[kind](model)


def fingerprint(model: Any, architecture: Architecture) -> str:
    """SHA-256 over the weights a circuit of this model would hold; ties a calibration to its weights."""
    state = model.state_dict()
    sha = hashlib.sha256()
    for name in sorted(architecture.tensors):
        tensor = state[architecture.tensors[name]].detach()
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # one split over processes
        tensor = tensor.float().cpu().contiguous()
        sha.update(f"{name}:{tuple(tensor.shape)};".encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()
