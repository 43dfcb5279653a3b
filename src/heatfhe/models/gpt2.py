# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of any size: its stages, and how its modules and tensors are named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.models.architecture import ACTIVATIONS, Architecture
from heatfhe.stages import Activation, Argmax, Attention, Embed, Head, Linear, Norm, Residual, Shape, Stage

PREFIX = "transformer."


def describe(model: Any) -> Architecture:
    """The architecture of a GPT2LMHeadModel; raises ConfigError for a variant whose arithmetic differs."""
    config = model.config
    _refuse_variants(model, config)
    shape = Shape(
        layers=config.n_layer,
        width=config.n_embd,
        heads=config.n_head,
        hidden=config.n_inner if config.n_inner is not None else 4 * config.n_embd,
        vocabulary=config.vocab_size,
        context=config.n_positions,
    )
    found = stages(
        shape,
        function=ACTIVATIONS[config.activation_function],
        eps=float(config.layer_norm_epsilon),
        tied=model.lm_head.weight is model.transformer.wte.weight,
        scales=_scales(config, shape),
    )
    blocks = [f"h.{layer}" for layer in range(shape.layers)]
    paths = {s.name: PREFIX + s.name for s in found if isinstance(s, (Norm, Linear, Attention))}
    tensors = [name for stage in found for name in stage.tensors]
    return Architecture(
        kind="gpt2",
        shape=shape,
        stages=found,
        paths=paths | {f"{h}.mlp": f"{PREFIX}{h}.mlp.act" for h in blocks},
        tensors={n: n if n == "lm_head.weight" else PREFIX + n for n in tensors},
        dropouts={f"{h}.attn": f"{PREFIX}{h}.attn.attn_dropout" for h in blocks}
        | {f"{h}.attn.c_proj": f"{PREFIX}{h}.attn.resid_dropout" for h in blocks},
    )


def stages(
    shape: Shape,
    *,
    function: str = "gelu_new",
    eps: float = 1e-5,
    tied: bool = True,
    scales: Sequence[float | None] | None = None,
) -> tuple[Stage, ...]:
    """The stages of a GPT-2 of this shape; ``tied`` where its head is its token embedding, ``scales`` of the scores by
    layer where they are not the usual one."""
    scales = [None] * shape.layers if scales is None else scales
    made: list[Stage] = [Embed(writes="h.0.in", token="wte.weight", position="wpe.weight")]
    for layer in range(shape.layers):
        h = f"h.{layer}"
        made += [
            _norm(f"{h}.ln_1", f"{h}.in", eps),
            _linear(f"{h}.attn.c_attn", f"{h}.ln_1", f"{h}.attn.qkv"),
            Attention(
                name=f"{h}.attn", reads=f"{h}.attn.qkv", writes=f"{h}.attn.out", heads=shape.heads, scale=scales[layer]
            ),
            _linear(f"{h}.attn.c_proj", f"{h}.attn.out", f"{h}.attn.proj", residual=True),
            Residual(reads=f"{h}.in", branch=f"{h}.attn.proj", writes=f"{h}.mid"),
            _norm(f"{h}.ln_2", f"{h}.mid", eps),
            _linear(f"{h}.mlp.c_fc", f"{h}.ln_2", f"{h}.mlp.pre"),
            Activation(name=f"{h}.mlp", reads=f"{h}.mlp.pre", writes=f"{h}.mlp.act", function=function),
            _linear(f"{h}.mlp.c_proj", f"{h}.mlp.act", f"{h}.mlp.proj", residual=True),
            Residual(reads=f"{h}.mid", branch=f"{h}.mlp.proj", writes=f"h.{layer + 1}.in"),
        ]
    return (
        *made,
        _norm("ln_f", f"h.{shape.layers}.in", eps),
        Head(reads="ln_f", writes="logits", weight="wte.weight" if tied else "lm_head.weight"),
        Argmax(reads="logits", writes="token"),
    )


def _scales(config: Any, shape: Shape) -> list[float | None]:
    """What each layer's scores are multiplied by, where it is not one over the root of the head width.

    Either option is a number per layer that folds into the query weights. A third, reorder_and_upcast_attn, scales in
    another order so that half precision does not overflow: the same function.
    """
    if config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx:
        return [None] * shape.layers
    own = 1.0 / math.sqrt(shape.head_width) if config.scale_attn_weights else 1.0
    return [own / (layer + 1) if config.scale_attn_by_inverse_layer_idx else own for layer in range(shape.layers)]


def _norm(name: str, reads: str, eps: float) -> Norm:
    return Norm(name=name, reads=reads, writes=name, weight=f"{name}.weight", bias=f"{name}.bias", eps=eps)


def _linear(name: str, reads: str, writes: str, residual: bool = False) -> Linear:
    weight, bias = f"{name}.weight", f"{name}.bias"
    return Linear(name=name, reads=reads, writes=writes, weight=weight, bias=bias, residual=residual)


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
