# SPDX-License-Identifier: Apache-2.0
"""What a supported class of transformers looks like: parameters, modules, and the logits of weights given by formula.

No random generator and no initialisation of theirs is in it, so a difference is one of names, shapes or arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.gpt2_tiny import tiny_gpt2
from tests.llama_tiny import tiny_llama
from tests.vit_tiny import tiny_vit

MODELS = {
    "gpt2": lambda: tiny_gpt2(),
    "llama": lambda: tiny_llama(3, tie_word_embeddings=False),
    "llama, tied, with biases": lambda: tiny_llama(4, tie_word_embeddings=True),
    "vit": lambda: tiny_vit(1),
}


def portrait(name: str) -> dict[str, Any]:
    """Parameters with their shapes, modules that hold one, and logits of three tokens, or an image, to six digits."""
    model = MODELS[name]()
    with torch.no_grad():
        for number, parameter in enumerate(dict(sorted(model.named_parameters())).values()):
            wave = torch.arange(parameter.numel(), dtype=torch.float64).mul(0.7 + 0.01 * number).sin()
            parameter.copy_(0.4 * wave.reshape(parameter.shape) + (1.0 if parameter.ndim == 1 else 0.0))
        model.double()
        if name == "vit":
            wave = torch.arange(3 * 4 * 8, dtype=torch.float64).mul(0.3).cos().reshape(1, 3, 4, 8)
            logits = model(pixel_values=wave).logits
        else:
            logits = model(torch.tensor([[5, 17, 40]])).logits[0, :, ::8]
    return {
        "class": type(model).__name__,
        "parameters": {key: list(value.shape) for key, value in model.named_parameters()},
        "modules": sorted(path for path, module in model.named_modules() if path and not list(module.children())),
        "logits": [[float(f"{x:.6g}") for x in row] for row in logits.tolist()],
    }


def everything() -> dict[str, Any]:
    """The portrait of every model."""
    return {name: portrait(name) for name in MODELS}
