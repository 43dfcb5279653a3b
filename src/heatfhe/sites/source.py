# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as a model: loaded from local files alone, once they are here."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import torch
from torch import nn

from heatfhe.errors import ConfigError
from heatfhe.models import Architecture, describe, model_folder


def described(name: str | Path) -> tuple[Architecture, int]:
    """The architecture of a checkpoint and the number of its parameters, from its configuration: no weight is read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = model_folder(name)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError) as err:
        raise ConfigError(f"{folder}: its configuration is that of no causal language model ({err})") from err
    return describe(model), sum(p.numel() for p in model.parameters())


def load_checkpoint(name: str | Path) -> nn.Module:
    """A model in float32, by its folder, its name on the hub, or 'default' for the embedded one.

    It is a causal language model, or an image classifier where the checkpoint's own class says so.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification
    from transformers.utils import logging as hf_logging

    folder = model_folder(name)
    hf_logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        named = AutoConfig.from_pretrained(folder, local_files_only=True).architectures or ()
        images = any(kind.endswith("ForImageClassification") for kind in named)
        loader = AutoModelForImageClassification if images else AutoModelForCausalLM
        model = loader.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        return cast(nn.Module, model.eval())
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"{folder}: cannot be loaded as a causal language model or an image classifier ({err})"
        ) from err
