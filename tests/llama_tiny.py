# SPDX-License-Identifier: Apache-2.0
"""Small random Llamas for tests: the same for the same seed, nothing downloaded; odd shapes by seed."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from heatfhe.circuit import Circuit
from heatfhe.sites import Prepared
from tests import random_export
from tests.gpt2_tiny import random_tokens as random_tokens

CONTEXT, VOCABULARY = 16, 48
# heads, heads of keys and values, head width, hidden: groups of 1, 3 and 4, odd head counts, widths of no power of two
SHAPES = ((3, 1, 4, 20), (4, 1, 4, 24), (2, 2, 6, 28), (6, 2, 4, 36), (5, 5, 4, 34), (8, 2, 4, 40), (1, 1, 8, 12))


def tiny_llama(seed: int = 0, shape: tuple[int, int, int, int] | None = None, **options: Any) -> Any:
    """A LlamaForCausalLM in eval mode, with weights large enough for its attention to matter; a shape for each seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    heads, cached, head_width, hidden = shape or SHAPES[seed % len(SHAPES)]
    chosen: dict[str, Any] = {
        "num_hidden_layers": 2,
        "hidden_size": heads * head_width,
        "num_attention_heads": heads,
        "num_key_value_heads": cached,
        "intermediate_size": hidden,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "initializer_range": 0.3,
        "tie_word_embeddings": bool(seed % 2),
        "attention_bias": seed % 5 == 4,
        "mlp_bias": seed % 5 == 4,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **options,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**chosen)).eval()
        with torch.no_grad():  # gains and biases away from their defaults, so that folding them is tested
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@lru_cache(maxsize=2)
def exported(seed: int) -> tuple[Prepared, Tensor, Circuit]:
    """A prepared Llama, the tokens it was calibrated on, and its circuit; options by seed."""
    return random_export.exported(tiny_llama(seed), seed, f"llama-{seed}")
