# SPDX-License-Identifier: Apache-2.0
"""ViT of any size with its classification head: its stages, and how its modules and tensors are named.

A class token and the patches of an image, layer norms before attention over all rows and before the MLP, logits of the
class token. Stages have the names of transformers 5; where a model has those of transformers 4 they are translated.
"""

from __future__ import annotations

from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.models.architecture import ACTIVATIONS, Architecture, check_heads_and_activation
from heatfhe.stages import Activation, Attention, Head, Linear, Norm, Patches, Residual, Shape, Stage

# Modules of a layer: as transformers 5 names them, and where they are in transformers 4.
_INSIDE = {
    "layernorm_before": "layernorm_before",
    "layernorm_after": "layernorm_after",
    "attention": "attention.attention",
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.activation_fn": "intermediate.intermediate_act_fn",
    "mlp.fc2": "output.dense",
}


def describe(model: Any) -> Architecture:
    """The architecture of a ViTForImageClassification; raises ConfigError for a variant whose arithmetic differs."""
    config = model.config
    _refuse_variants(model, config)
    image, patch = _pair(config.image_size), _pair(config.patch_size)
    cut = patches((config.num_channels, *image), patch)
    shape = Shape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        hidden=config.intermediate_size,
        vocabulary=config.num_labels,
        context=cut.grid.rows,
    )
    found = stages(
        shape, cut, function=ACTIVATIONS[config.hidden_act], eps=float(config.layer_norm_eps), biased=config.qkv_bias
    )
    paths, older = {"layernorm": "vit.layernorm"}, not hasattr(model.vit, "layers")
    for layer in range(shape.layers):
        at = f"vit.encoder.layer.{layer}" if older else f"vit.layers.{layer}"
        paths |= {f"layers.{layer}.{new}": f"{at}.{old if older else new}" for new, old in _INSIDE.items()}
    tensors = {name: f"vit.{name}" for name in cut.tensors}
    tensors |= {f"classifier.{part}": f"classifier.{part}" for part in ("weight", "bias")}
    for stage in found:
        if isinstance(stage, (Norm, Linear)):
            parts = zip(stage.tensors, ("weight", "bias"))
            tensors |= {name: f"{paths[stage.name]}.{part}" for name, part in parts}
    return Architecture(kind="vit", shape=shape, stages=found, paths=paths, tensors=tensors)


def stages(
    shape: Shape, cut: Patches, *, function: str = "gelu", eps: float = 1e-12, biased: bool = True
) -> tuple[Stage, ...]:
    """The stages of a ViT of this shape on such images; ``biased`` where queries, keys and values have a bias."""

    def norm(name: str, reads: str) -> Norm:
        return Norm(name=name, reads=reads, writes=name, weight=f"{name}.weight", bias=f"{name}.bias", eps=eps)

    def linear(name: str, reads: str, bias: bool = True, residual: bool = False) -> Linear:
        return Linear(
            name=name, reads=reads, writes=name, weight=f"{name}.weight", bias=f"{name}.bias" if bias else None,
            residual=residual, transposed=True,
        )  # fmt: skip

    made: list[Stage] = [cut]
    for layer in range(shape.layers):
        at = f"layers.{layer}"
        attention, mlp = f"{at}.attention", f"{at}.mlp"
        before, between = f"{at}.layernorm_before", f"{at}.layernorm_after"
        q, k, v = (f"{attention}.{part}_proj" for part in "qkv")
        made += [
            norm(before, f"{at}.in"),
            *(linear(name, before, biased) for name in (q, k, v)),
            Attention(name=attention, reads=(q, k, v), writes=attention, heads=shape.heads, causal=False),
            linear(f"{attention}.o_proj", attention, residual=True),
            Residual(reads=f"{at}.in", branch=f"{attention}.o_proj", writes=f"{at}.mid"),
            norm(between, f"{at}.mid"),
            linear(f"{mlp}.fc1", between),
            Activation(name=f"{mlp}.activation_fn", reads=f"{mlp}.fc1", writes=mlp, function=function),
            linear(f"{mlp}.fc2", mlp, residual=True),
            Residual(reads=f"{at}.mid", branch=f"{mlp}.fc2", writes=f"layers.{layer + 1}.in"),
        ]
    return (
        *made,
        norm("layernorm", f"layers.{shape.layers}.in"),
        Head(reads="layernorm", writes="logits", weight="classifier.weight", bias="classifier.bias", first=True),
    )


def patches(image: tuple[int, int, int], patch: tuple[int, int]) -> Patches:
    """How a ViT cuts images of channels, height and width."""
    at = "embeddings.patch_embeddings.projection"
    return Patches(
        writes="layers.0.in", weight=f"{at}.weight", bias=f"{at}.bias", first="embeddings.cls_token",
        position="embeddings.position_embeddings", image=image, patch=patch,
    )  # fmt: skip


def _pair(size: Any) -> tuple[int, int]:
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _refuse_variants(model: Any, config: Any) -> None:
    if not (hasattr(model, "vit") and getattr(getattr(model, "classifier", None), "weight", None) is not None):
        raise ConfigError(
            f"{type(model).__name__}: a ViT with its classifier is needed; load it with ViTForImageClassification and "
            "num_labels of at least 2"
        )
    if config.num_labels < 2:
        raise ConfigError(f"config.num_labels: a classifier tells at least 2 labels apart, got {config.num_labels}")
    check_heads_and_activation(config)
    for field in ("attention_probs_dropout_prob", "hidden_dropout_prob"):
        if getattr(config, field):
            raise ConfigError(
                f"config.{field}: {getattr(config, field)} is not applied to approximated rows; set it to 0.0"
            )
