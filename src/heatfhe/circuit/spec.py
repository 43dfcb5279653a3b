# SPDX-License-Identifier: Apache-2.0
"""What a legal circuit is: names resolve, shapes meet, and everything a stage needs is calibrated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.records import Calibration
from heatfhe.stages import (
    Activation,
    Argmax,
    Attention,
    Embed,
    Head,
    Linear,
    Norm,
    Patches,
    Residual,
    Shape,
    Stage,
    centred,
    of,
)

Weights = Mapping[str, NDArray[Any]]
_NAME = re.compile(
    r"[A-Za-z0-9_.-]+"
)  # keys of plans are made of names: their other signs and last numbers have a meaning


def check(stages: Sequence[Stage], weights: Weights, shape: Shape, calibration: Calibration) -> None:
    """Raise ConfigError, naming the stage, unless the circuit is legal."""
    widths: dict[str, int] = {}
    held = {name: tensor.shape for name, tensor in weights.items()}
    for stage in stages:
        owner = stage.label
        for value in stage.inputs:
            if value not in widths:
                raise ConfigError(f"{owner}: reads {value!r} before it is written")
        needs = stage.needs(shape, [widths[value] for value in stage.inputs], held)
        for value, width in zip(stage.inputs, needs.inputs, strict=True):
            if widths[value] != width:
                raise ConfigError(f"{owner}: {value!r} is {widths[value]} wide, expected {width}")
        for name, size in needs.tensors.items():
            _check_tensor(owner, name, weights, size)
        _check_calibrated(stage, shape, calibration)
        if stage.writes in widths:
            raise ConfigError(f"{owner}: writes {stage.writes!r} a second time")
        widths[stage.writes] = needs.width
    _check_order(stages, shape)
    centred(stages)
    if calibration.context < shape.context:
        raise ConfigError(
            f"the calibration covers rows up to {calibration.context}, the circuit's context is {shape.context}; "
            "calibrate on windows of the full context"
        )
    prefix = calibration.prefix
    if prefix and isinstance(stages[0], Patches):
        raise ConfigError(f"prefix: an image has no public tokens in front, got {len(prefix)}; leave them out")
    if len(prefix) >= shape.context or any(not 0 <= token < shape.vocabulary for token in prefix):
        raise ConfigError(
            f"prefix: {len(prefix)} public tokens, of a vocabulary of {shape.vocabulary}, must leave room in a context "
            f"of {shape.context}; shorten it, or use the model's own tokenizer"
        )


def _check_tensor(owner: str, name: str, weights: Weights, size: tuple[int, ...]) -> None:
    if name not in weights:
        raise ConfigError(f"{owner}: weight {name!r} is missing")
    if weights[name].shape != size:
        raise ConfigError(f"{owner}: weight {name!r} has shape {weights[name].shape}, expected {size}")
    if weights[name].dtype not in (np.float16, np.float32, np.float64):
        raise ConfigError(f"{owner}: weight {name!r} holds {weights[name].dtype}, expected float16, 32 or 64")
    if not np.isfinite(weights[name]).all():
        raise ConfigError(f"{owner}: weight {name!r} holds non-finite values")


def _check_calibrated(stage: Stage, shape: Shape, calibration: Calibration) -> None:
    def found(kind: str, known: Mapping[str, Any]) -> Any:
        if stage.label not in known:
            raise ConfigError(f"{stage.label}: no {kind} calibration for it; calibrate the model again")
        return known[stage.label]

    if isinstance(stage, Norm):
        norm = found("norm", calibration.norms)
        if (norm.width, norm.eps) != (shape.width, stage.eps):
            raise ConfigError(f"{stage.name}: was calibrated for another width or eps; calibrate the model again")
    elif isinstance(stage, Attention):
        found("softmax", calibration.softmaxes)
    elif isinstance(stage, Activation):
        fit = found("activation", calibration.activations).fit
        if fit.function != stage.function:
            raise ConfigError(f"{stage.name}: computes {stage.function}, its calibration fits {fit.function}")
    elif isinstance(stage, Argmax) and calibration.argmax is None:
        raise ConfigError("argmax: the calibration holds no argmax schedule; calibrate the model again")


def _check_order(stages: Sequence[Stage], shape: Shape) -> None:
    """One embedding first, one head, at most one argmax, right after it; as many attentions as layers; names once."""
    kinds = [type(stage) for stage in stages]
    ends = kinds[-2:] if kinds[-1:] == [Argmax] else kinds[-1:]
    once = (Embed, Patches, Head, Argmax)
    if (
        kinds[:1] not in ([Embed], [Patches])
        or ends[:1] != [Head]
        or any(kinds[1:].count(k) > (k in once[2:]) for k in once)
    ):
        raise ConfigError("a circuit begins with its one embedding and ends with its one head, or an argmax after it")
    if kinds.count(Attention) != shape.layers:
        raise ConfigError(f"{kinds.count(Attention)} attentions do not make {shape.layers} layers")
    _check_rows(stages)
    names = [stage.name for stage in stages if isinstance(stage, (Norm, Linear, Attention, Activation))]
    if len(set(names)) != len(names):
        raise ConfigError("two stages share a name")
    branches = {stage.branch for stage in of(stages, Residual)}
    for linear in of(stages, Linear):
        if linear.residual != (linear.writes in branches):
            raise ConfigError(f"{linear.name}: residual is {linear.residual}, but the stages say otherwise")
    for name in names:
        if not _NAME.fullmatch(name) or name.rpartition(".")[2].isdecimal():
            raise ConfigError(
                f"{name[:64]!r}: a stage's name has letters, digits, dots, dashes, underscores, and no number last"
            )


def _check_rows(stages: Sequence[Stage]) -> None:
    """Text is read causally, with logits after every token; an image as a whole, with one row of logits."""
    whole = isinstance(stages[0], Patches)
    for stage in stages:
        if isinstance(stage, Attention) and stage.causal == whole:
            raise ConfigError(f"{stage.name}: attention is causal over a text and over all rows of an image")
        if (isinstance(stage, Head) and stage.first != whole) or (isinstance(stage, Argmax) and whole):
            raise ConfigError(
                f"{stage.label}: the class token of an image has logits, and so has every token of a text"
            )
