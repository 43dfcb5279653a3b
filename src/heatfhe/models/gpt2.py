# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of any size: where its norms, attentions, activations and linears are, and how its tensors are named."""

from __future__ import annotations

from typing import Any

from heatfhe.errors import ConfigError
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

PREFIX = "transformer."
# Hugging Face's names of one function; what is not here has no fit.
ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
}


def describe(model: Any) -> Architecture:
    """The architecture of a GPT2LMHeadModel; raises ConfigError for a variant whose arithmetic differs."""
    config = model.config
    _refuse_variants(model, config)
    width, layers = config.n_embd, config.n_layer
    hidden = config.n_inner if config.n_inner is not None else 4 * width
    tied = model.lm_head.weight is model.transformer.wte.weight
    places: list[Place] = [EmbedPlace(writes="h.0.in", token="wte.weight", position="wpe.weight")]
    for layer in range(layers):
        places += _block(layer, width, config)
    places.append(_norm("ln_f", f"h.{layers}.in", width, config))
    places.append(HeadPlace(reads="ln_f", writes="logits", weight="wte.weight" if tied else "lm_head.weight"))
    names = [n for p in places for n in _tensors(p)]
    return Architecture(
        kind="gpt2",
        layers=layers,
        width=width,
        heads=config.n_head,
        hidden=hidden,
        vocabulary=config.vocab_size,
        context=config.n_positions,
        places=tuple(places),
        tensors={n: n if n == "lm_head.weight" else PREFIX + n for n in names},
    )


def _block(layer: int, width: int, config: Any) -> list[Place]:
    h = f"h.{layer}"
    return [
        _norm(f"{h}.ln_1", f"{h}.in", width, config),
        _linear(f"{h}.attn.c_attn", f"{h}.ln_1", f"{h}.attn.qkv"),
        AttentionPlace(
            name=f"{h}.attn",
            path=f"{PREFIX}{h}.attn",
            reads=f"{h}.attn.qkv",
            writes=f"{h}.attn.out",
            heads=config.n_head,
        ),
        _linear(f"{h}.attn.c_proj", f"{h}.attn.out", f"{h}.attn.proj", residual=True),
        ResidualPlace(reads=f"{h}.in", branch=f"{h}.attn.proj", writes=f"{h}.mid"),
        _norm(f"{h}.ln_2", f"{h}.mid", width, config),
        _linear(f"{h}.mlp.c_fc", f"{h}.ln_2", f"{h}.mlp.pre"),
        ActivationPlace(
            name=f"{h}.mlp",
            path=f"{PREFIX}{h}.mlp.act",
            reads=f"{h}.mlp.pre",
            writes=f"{h}.mlp.act",
            function=ACTIVATIONS[config.activation_function],
        ),
        _linear(f"{h}.mlp.c_proj", f"{h}.mlp.act", f"{h}.mlp.proj", residual=True),
        ResidualPlace(reads=f"{h}.mid", branch=f"{h}.mlp.proj", writes=f"h.{layer + 1}.in"),
    ]


def _norm(name: str, reads: str, width: int, config: Any) -> NormPlace:
    return NormPlace(
        name=name,
        path=PREFIX + name,
        reads=reads,
        writes=name,
        weight=f"{name}.weight",
        bias=f"{name}.bias",
        eps=float(config.layer_norm_epsilon),
        width=width,
    )


def _linear(name: str, reads: str, writes: str, residual: bool = False) -> LinearPlace:
    return LinearPlace(
        name=name,
        path=PREFIX + name,
        reads=reads,
        writes=writes,
        weight=f"{name}.weight",
        bias=f"{name}.bias",
        residual=residual,
    )


def _tensors(place: Place) -> list[str]:
    if isinstance(place, EmbedPlace):
        return [place.token, place.position]
    if isinstance(place, (NormPlace, LinearPlace)):
        return [place.weight, place.bias]
    if isinstance(place, HeadPlace):
        return [place.weight]
    return []


def _refuse_variants(model: Any, config: Any) -> None:
    if not (hasattr(model, "transformer") and hasattr(model, "lm_head")):
        raise ConfigError(
            f"{type(model).__name__}: a GPT-2 with its language-model head is needed; load it with GPT2LMHeadModel"
        )
    if config.activation_function not in ACTIVATIONS:
        raise ConfigError(
            f"h.0.mlp: activation {config.activation_function!r} has no fit; have: {', '.join(sorted(ACTIVATIONS))}"
        )
    if config.add_cross_attention:
        raise ConfigError("h.0.crossattention: cross attention is not supported; use a decoder-only GPT-2")
    if not config.scale_attn_weights or config.scale_attn_by_inverse_layer_idx:
        raise ConfigError(
            "h.0.attn: scores must be scaled by the root of the head width alone "
            "(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)"
        )
