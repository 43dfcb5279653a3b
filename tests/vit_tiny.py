# SPDX-License-Identifier: Apache-2.0
"""Small random ViTs for tests: the same for the same seed, nothing downloaded; odd shapes by seed."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from heatfhe.circuit import Circuit
from heatfhe.sites import Prepared
from tests import random_export

# heads, head width, hidden, labels, channels, image, patch: odd head counts, widths of no power of two, images and
# patches that are no squares, hidden widths that are not 4 times the width, more labels than the width
SHAPES = (
    (2, 8, 64, 5, 1, (6, 6), (2, 2)),
    (3, 4, 20, 3, 3, (4, 8), (2, 4)),
    (1, 8, 12, 2, 2, (9, 3), (3, 3)),
    (5, 4, 34, 7, 1, (8, 8), (4, 2)),
    (2, 6, 28, 30, 1, (4, 4), (1, 2)),
    (4, 4, 24, 4, 3, (8, 4), (4, 4)),
)


def tiny_vit(seed: int = 0, **options: Any) -> Any:
    """A ViTForImageClassification in eval mode, with weights large enough for its attention to matter."""
    from transformers import ViTConfig, ViTForImageClassification

    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    heads, head_width, hidden, labels, channels, image, patch = SHAPES[seed % len(SHAPES)]
    chosen: dict[str, Any] = {
        "num_hidden_layers": 2,
        "hidden_size": heads * head_width,
        "num_attention_heads": heads,
        "intermediate_size": hidden,
        "num_labels": labels,
        "num_channels": channels,
        "image_size": image,
        "patch_size": patch,
        "initializer_range": 0.3,
        "layer_norm_eps": 1e-5,
        "qkv_bias": seed % 4 != 3,
        **options,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ViTForImageClassification(ViTConfig(**chosen)).eval()
        with torch.no_grad():  # gains and biases away from their defaults, so that folding them is tested
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def random_images(model: Any, seed: int = 0, count: int = 8) -> Tensor:
    """Images (count, channels, height, width) for a model."""
    size = (count, model.config.num_channels, *model.config.image_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@lru_cache(maxsize=2)
def exported(seed: int) -> tuple[Prepared, Tensor, Circuit]:
    """A prepared ViT, the images it was calibrated on, and its circuit; options by seed."""
    model = tiny_vit(seed)
    return random_export.exported(model, seed, f"vit-{seed}", random_images(model, seed, count=24))
