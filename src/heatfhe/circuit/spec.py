# SPDX-License-Identifier: Apache-2.0
"""What a legal circuit is: names resolve, shapes meet, and everything a stage needs is calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit.ops import Activation, Argmax, Attention, Embed, Head, Linear, Norm, Residual, Stage
from heatfhe.errors import ConfigError
from heatfhe.records import Calibration

Weights = Mapping[str, NDArray[Any]]
LARGEST = 1 << 24  # of any size of a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The public size of a model. ``context`` is the longest sequence, prompt and answer together."""

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    context: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 1 <= getattr(self, name) <= LARGEST:
                raise ConfigError(f"shape: {name} must lie in [1, {LARGEST}], got {getattr(self, name)}")
        if self.width % self.heads:
            raise ConfigError(f"shape: width {self.width} is not a multiple of {self.heads} heads")

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.heads


def check(stages: Sequence[Stage], weights: Weights, shape: Shape, calibration: Calibration) -> None:
    """Raise ConfigError, naming the stage, unless the circuit is legal."""
    widths: dict[str, int] = {}

    def tensor(owner: str, name: str, *size: int) -> None:
        if name not in weights:
            raise ConfigError(f"{owner}: weight {name!r} is missing")
        if weights[name].shape != size:
            raise ConfigError(f"{owner}: weight {name!r} has shape {weights[name].shape}, expected {size}")
        if weights[name].dtype not in (np.float16, np.float32, np.float64):
            raise ConfigError(f"{owner}: weight {name!r} holds {weights[name].dtype}, expected float16, 32 or 64")
        if not np.isfinite(weights[name]).all():
            raise ConfigError(f"{owner}: weight {name!r} holds non-finite values")

    def read(owner: str, value: str, width: int | None = None) -> int:
        if value not in widths:
            raise ConfigError(f"{owner}: reads {value!r} before it is written")
        if width is not None and widths[value] != width:
            raise ConfigError(f"{owner}: {value!r} is {widths[value]} wide, expected {width}")
        return widths[value]

    def calibrated(kind: str, name: str, known: Mapping[str, Any]) -> Any:
        if name not in known:
            raise ConfigError(f"{name}: no {kind} calibration for it; calibrate the model again")
        return known[name]

    d = shape.width
    for stage in stages:
        owner = getattr(stage, "name", type(stage).__name__.lower())
        if isinstance(stage, Embed):
            tensor(owner, stage.token, shape.vocabulary, d)
            tensor(owner, stage.position, shape.context, d)
            width = d
        elif isinstance(stage, Norm):
            width = read(owner, stage.reads, d)
            tensor(owner, stage.weight, d)
            tensor(owner, stage.bias, d)
            norm = calibrated("norm", stage.name, calibration.norms)
            if (norm.width, norm.eps) != (d, stage.eps):
                raise ConfigError(f"{owner}: was calibrated for another width or eps; calibrate the model again")
        elif isinstance(stage, Linear):
            inner = read(owner, stage.reads)
            width = weights[stage.weight].shape[-1] if stage.weight in weights else 0
            tensor(owner, stage.weight, inner, width)
            tensor(owner, stage.bias, width)
        elif isinstance(stage, Attention):
            read(owner, stage.reads, 3 * d)
            if stage.heads != shape.heads:
                raise ConfigError(f"{owner}: has {stage.heads} heads, the shape says {shape.heads}")
            calibrated("softmax", stage.name, calibration.softmaxes)
            width = d
        elif isinstance(stage, Activation):
            width = read(owner, stage.reads, shape.hidden)
            fit = calibrated("activation", stage.name, calibration.activations).fit
            if fit.function != stage.function:
                raise ConfigError(f"{owner}: computes {stage.function}, its calibration fits {fit.function}")
        elif isinstance(stage, Residual):
            width = read(owner, stage.reads, d)
            read(owner, stage.branch, d)
        elif isinstance(stage, Head):
            read(owner, stage.reads, d)
            tensor(owner, stage.weight, shape.vocabulary, d)
            width = shape.vocabulary
        elif isinstance(stage, Argmax):
            width = read(owner, stage.reads, shape.vocabulary)
            if calibration.argmax is None:
                raise ConfigError("argmax: the calibration holds no argmax schedule; calibrate the model again")
        if stage.writes in widths:
            raise ConfigError(f"{owner}: writes {stage.writes!r} a second time")
        widths[stage.writes] = width
    _check_order(stages, shape)
    if calibration.context < shape.context:
        raise ConfigError(
            f"the calibration covers rows up to {calibration.context}, the circuit's context is {shape.context}; "
            "calibrate on windows of the full context"
        )


def _check_order(stages: Sequence[Stage], shape: Shape) -> None:
    """One embedding first, one head, at most one argmax, right after it; as many attentions as layers; names once."""
    kinds = [type(stage) for stage in stages]
    ends = kinds[-2:] if kinds[-1:] == [Argmax] else kinds[-1:]
    if kinds[:1] != [Embed] or ends[:1] != [Head] or any(kinds.count(k) > 1 for k in (Embed, Head, Argmax)):
        raise ConfigError("a circuit begins with its one embedding and ends with its one head, or an argmax after it")
    if kinds.count(Attention) != shape.layers:
        raise ConfigError(f"{kinds.count(Attention)} attentions do not make {shape.layers} layers")
    names = [stage.name for stage in stages if isinstance(stage, (Norm, Linear, Attention, Activation))]
    if len(set(names)) != len(names):
        raise ConfigError("two stages share a name")
