# SPDX-License-Identifier: Apache-2.0
"""Small random GPT-2 models for tests of the torch side: the same for the same seed, nothing downloaded."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

CONTEXT, VOCABULARY = 16, 48


def tiny_gpt2(seed: int = 0, *, layers: int = 2, width: int = 16, heads: int = 2, **options: Any) -> Any:
    """A GPT2LMHeadModel in eval mode, with weights large enough for its attention to matter."""
    from transformers import GPT2Config, GPT2LMHeadModel

    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    chosen: dict[str, Any] = {
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_positions": CONTEXT,
        "vocab_size": VOCABULARY,
        "initializer_range": 0.2,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **options,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(GPT2Config(**chosen)).eval()
        with torch.no_grad():  # gains and biases away from their defaults, so that folding them is tested
            for name, parameter in model.named_parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
                assert torch.isfinite(parameter).all(), name
    return model


# heads, head width, hidden: odd head counts, widths of no power of two, hidden widths that are not four times as large
SHAPES = ((3, 4, 20), (1, 8, 12), (5, 4, 34), (2, 6, 28), (4, 4, 24), (3, 6, 50), (6, 4, 36))
FUNCTIONS = ("gelu_new", "relu", "quick_gelu", "silu", "gelu")


def odd_gpt2(seed: int, *, draw: int = 0, **options: Any) -> Any:
    """A tiny GPT-2 of an odd shape: heads, hidden width, activation, head and scaling of its scores by seed; another
    draw has other weights."""
    heads, head_width, hidden = SHAPES[seed % len(SHAPES)]
    chosen: dict[str, Any] = {
        "n_inner": hidden,
        "activation_function": FUNCTIONS[seed % len(FUNCTIONS)],
        "tie_word_embeddings": bool(seed % 2),
        "scale_attn_weights": seed % 4 != 1,
        "scale_attn_by_inverse_layer_idx": seed % 4 == 2,
        "reorder_and_upcast_attn": seed % 8 == 3,
        **options,
    }
    return tiny_gpt2(seed + 100 * draw, width=heads * head_width, heads=heads, **chosen)


def random_tokens(seed: int = 0, rows: int = 8, length: int = CONTEXT, vocabulary: int = VOCABULARY) -> Tensor:
    """Tokens (rows, length)."""
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def worst(a: Any, b: Any) -> float:
    """Largest |a - b| / largest |b|, per row of logits."""
    x, y = (torch.as_tensor(v, dtype=torch.float64) for v in (a, b))
    return float(((x - y).abs().amax(dim=-1) / y.abs().amax(dim=-1)).max())
