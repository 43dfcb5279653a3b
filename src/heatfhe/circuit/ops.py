# SPDX-License-Identifier: Apache-2.0
"""The stages a circuit is made of. A stage reads named values and writes one; it owns no numbers, only their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from heatfhe.errors import FileFormatError


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """Token and position rows, added. Written to the residual stream, hence centred at load."""

    writes: str
    token: str
    position: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """Layer norm; its gain and shift are folded into the linear stages that read it."""

    name: str
    reads: str
    writes: str
    weight: str
    bias: str
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """x @ weight + bias, weight stored (in, out). ``residual`` says that the output is added to the residual stream."""

    name: str
    reads: str
    writes: str
    weight: str
    bias: str
    residual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Causal attention over the joined (q, k, v) of its input, through the approximated softmax called ``name``."""

    name: str
    reads: str
    writes: str
    heads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """A fitted nonlinearity, entry by entry."""

    name: str
    reads: str
    writes: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Sum of the stream and a branch."""

    reads: str
    branch: str
    writes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Logits over the vocabulary: x @ weight.T, weight stored (vocabulary, width)."""

    reads: str
    writes: str
    weight: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Argmax:
    """Near one-hot of the largest logit."""

    reads: str
    writes: str


Stage = Union[Embed, Norm, Linear, Attention, Activation, Residual, Head, Argmax]
STAGES: dict[str, type[Any]] = {
    t.__name__.lower(): t for t in (Embed, Norm, Linear, Attention, Activation, Residual, Head, Argmax)
}


def stage_to_json(stage: Stage) -> dict[str, Any]:
    """Plain JSON form, its type under ``stage``."""
    return {"stage": type(stage).__name__.lower(), **{k: getattr(stage, k) for k in stage.__slots__}}


def stage_from_json(body: dict[str, Any]) -> Stage:
    """Inverse of stage_to_json."""
    kind = STAGES.get(body.get("stage", ""))
    if kind is None:
        raise FileFormatError(f"unknown stage {body.get('stage')!r}; have {', '.join(STAGES)}")
    try:
        made: Stage = kind(**{k: v for k, v in body.items() if k != "stage"})
    except TypeError as err:
        raise FileFormatError(f"stage {body.get('stage')!r} has wrong fields: {err}") from err
    return made
