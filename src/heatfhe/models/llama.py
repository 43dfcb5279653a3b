# SPDX-License-Identifier: Apache-2.0
"""Llama of any size: its stages, and how its modules and tensors are named.

RMS norms, rotary positions, heads that share keys and values, a gated MLP; transformers 4.48 and later.
"""

from __future__ import annotations

from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.models.architecture import ACTIVATIONS, Architecture, check_heads_and_activation
from heatfhe.stages import Activation, Argmax, Attention, Embed, Gate, Head, Linear, Norm, Residual, Shape, Stage

PREFIX = "model."


def describe(model: Any) -> Architecture:
    """The architecture of a LlamaForCausalLM; raises ConfigError for a variant whose arithmetic differs."""
    config = model.config
    _refuse_variants(model, config)
    shape = Shape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        hidden=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
    )
    found = stages(
        shape,
        key_value_heads=config.num_key_value_heads,
        base=_rotary(config),
        function=ACTIVATIONS[config.hidden_act],
        eps=float(config.rms_norm_eps),
        tied=model.lm_head.weight is model.model.embed_tokens.weight,
        attention_bias=bool(config.attention_bias),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
    )
    paths = {s.name: PREFIX + s.name for s in found if isinstance(s, (Norm, Linear, Attention, Activation))}
    tensors = {n: n if n == "lm_head.weight" else PREFIX + n for stage in found for n in stage.tensors}
    return Architecture(kind="llama", shape=shape, stages=found, paths=paths, tensors=tensors)


def stages(
    shape: Shape,
    *,
    key_value_heads: int | None = None,
    base: float | None = 10000.0,
    function: str = "silu",
    eps: float = 1e-6,
    tied: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
) -> tuple[Stage, ...]:
    """The stages of a Llama of this shape; ``base`` of its rotary positions, ``tied`` where its head is its token
    embedding."""

    def norm(name: str, reads: str) -> Norm:
        return Norm(name=name, reads=reads, writes=name, weight=f"{name}.weight", eps=eps, centred=False)

    def linear(name: str, reads: str, bias: bool, residual: bool = False) -> Linear:
        return Linear(
            name=name, reads=reads, writes=name, weight=f"{name}.weight", bias=f"{name}.bias" if bias else None,
            residual=residual, transposed=True,
        )  # fmt: skip

    cached = None if key_value_heads in (None, shape.heads) else key_value_heads
    made: list[Stage] = [Embed(writes="layers.0.in", token="embed_tokens.weight")]
    for layer in range(shape.layers):
        at = f"layers.{layer}"
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        before, between = f"{at}.input_layernorm", f"{at}.post_attention_layernorm"
        q, k, v = (f"{attention}.{part}_proj" for part in "qkv")
        made += [
            norm(before, f"{at}.in"),
            *(linear(name, before, attention_bias) for name in (q, k, v)),
            Attention(
                name=attention, reads=(q, k, v), writes=attention, heads=shape.heads, key_value_heads=cached,
                rotary=base,
            ),
            linear(f"{attention}.o_proj", attention, attention_bias, residual=True),
            Residual(reads=f"{at}.in", branch=f"{attention}.o_proj", writes=f"{at}.mid"),
            norm(between, f"{at}.mid"),
            *(linear(f"{mlp}.{name}", between, mlp_bias) for name in ("gate_proj", "up_proj")),
            Activation(name=f"{mlp}.act_fn", reads=f"{mlp}.gate_proj", writes=f"{mlp}.act_fn", function=function),
            Gate(reads=f"{mlp}.act_fn", by=f"{mlp}.up_proj", writes=mlp),
            linear(f"{mlp}.down_proj", mlp, mlp_bias, residual=True),
            Residual(reads=f"{at}.mid", branch=f"{mlp}.down_proj", writes=f"layers.{layer + 1}.in"),
        ]  # fmt: skip
    return (
        *made,
        norm("norm", f"layers.{shape.layers}.in"),
        Head(reads="norm", writes="logits", weight="embed_tokens.weight" if tied else "lm_head.weight"),
        Argmax(reads="logits", writes="token"),
    )


def _rotary(config: Any) -> float:
    """The base of the rotary positions: rope_parameters in transformers 5, rope_theta and rope_scaling before."""
    field = "rope_parameters" if getattr(config, "rope_parameters", None) else "rope_scaling"
    found = getattr(config, field, None) or {}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind != "default":
        raise ConfigError(
            f"config.{field}: rotary scaling {kind!r} is not supported; use a checkpoint with the default one, or set "
            "rope_type to 'default' and keep to the context it was first trained with"
        )
    part = found.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    if part not in (None, 1.0):
        raise ConfigError(f"config.partial_rotary_factor: whole heads must turn, got {part}; use another checkpoint")
    return float(found.get("rope_theta", getattr(config, "rope_theta", 10000.0)))


def _refuse_variants(model: Any, config: Any) -> None:
    if not (hasattr(model, "model") and hasattr(model, "lm_head")):
        raise ConfigError(
            f"{type(model).__name__}: a Llama with its language-model head is needed; load it with LlamaForCausalLM"
        )
    check_heads_and_activation(config)
    window = getattr(config, "sliding_window", None)
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"config.sliding_window: attention over the last {window} positions alone is not supported; set it to None "
            f"and max_position_embeddings to {window}, so that every row is whole"
        )
    if config.attention_dropout:
        raise ConfigError(
            f"config.attention_dropout: {config.attention_dropout} is not applied to approximated rows; set it to 0.0"
        )
