# SPDX-License-Identifier: Apache-2.0
"""One file per architecture: its stages, and which module and tensor of the model each of them is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.models import gpt2, llama, vit
from heatfhe.models.architecture import Architecture
from heatfhe.models.gpt2 import stages as gpt2_stages
from heatfhe.models.hub import hub_library, upload_folder
from heatfhe.models.source import model_folder
from heatfhe.models.tokenizer import encoder, own_tokenizer, tokenizer_files

__all__ = [
    "ARCHITECTURES", "Architecture", "describe", "encoder", "fingerprint", "gpt2_stages", "hub_library",
    "model_folder", "own_tokenizer", "register", "tokenizer_files", "upload_folder",
]  # fmt: skip

# Hugging Face's config.model_type -> how to describe such a model.
ARCHITECTURES: dict[str, Callable[[Any], Architecture]] = {
    "gpt2": gpt2.describe,
    "llama": llama.describe,
    "vit": vit.describe,
}


def register(kind: str, describe: Callable[[Any], Architecture]) -> None:
    """Teach this process an architecture: ``describe`` is called with a model whose ``config.model_type`` is ``kind``.

    >>> register("mine", lambda model: Architecture(...))         # doctest: +SKIP
    """
    if ARCHITECTURES.setdefault(kind, describe) is not describe:
        raise ConfigError(f"architecture {kind!r} is already described; use another model_type")


def describe(model: Any) -> Architecture:
    """The architecture of a Hugging Face model; ConfigError names what is unknown or unsupported."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"unknown architecture {kind or type(model).__name__!r}; have: {', '.join(ARCHITECTURES)}. "
            "A new one is a file in heatfhe/models and a row in its table, or a call of heatfhe.models.register"
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
