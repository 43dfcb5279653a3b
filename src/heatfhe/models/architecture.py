# SPDX-License-Identifier: Apache-2.0
"""What a file of this room says about a model: its stages, and where their modules and tensors are. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heatfhe.errors import ConfigError
from heatfhe.stages import Activation, Attention, Linear, Norm, Shape, Stage, of

S = TypeVar("S")
# Hugging Face's names of one function; what is not here has no fit.
ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model, described: its public size, its stages in order, and where each is in the Hugging Face model.

    ``paths``     the module of every norm, linear, attention and activation, by the stage's name. An attention's module
                  holds those of the linear stages before it, and of the one after it unless the model itself calls
                  that; it takes hidden states first and returns (output, weights).
    ``tensors``   where each tensor that the stages name is in the checkpoint.
    ``dropouts``  modules inside an attention that drop what the named stage makes: a linear's output, an attention's
                  probabilities.
    """

    kind: str
    shape: Shape
    stages: tuple[Stage, ...]
    paths: Mapping[str, str]
    tensors: Mapping[str, str]
    dropouts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stage in self.stages:
            if isinstance(stage, (Norm, Linear, Attention, Activation)) and stage.name not in self.paths:
                raise ConfigError(f"{stage.name}: the description of {self.kind!r} gives no path of its module")
            if missing := set(stage.tensors) - set(self.tensors):
                raise ConfigError(f"{stage.label}: the description of {self.kind!r} does not place {min(missing)!r}")

    def of(self, kind: type[S]) -> tuple[S, ...]:
        """Stages of one kind, in depth order."""
        return of(self.stages, kind)


def check_heads_and_activation(config: Any) -> None:
    """Refuse an activation without a fit, and heads that do not fill the width."""
    if config.hidden_act not in ACTIVATIONS:
        raise ConfigError(
            f"config.hidden_act: {config.hidden_act!r} has no fit; have: {', '.join(sorted(ACTIVATIONS))}"
        )
    width = getattr(config, "head_dim", None)
    if width is not None and width * config.num_attention_heads != config.hidden_size:
        raise ConfigError(
            f"config.head_dim: {config.num_attention_heads} heads of {width} do not make the hidden_size of "
            f"{config.hidden_size}; use a checkpoint whose heads fill its width"
        )
