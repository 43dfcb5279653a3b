# SPDX-License-Identifier: Apache-2.0
"""Centring and folding, in float64 at load: what makes layer norm an RMS norm and its gain free.

GPT-2's residual stream is read only through layer norms, which remove the mean. Subtracting the mean over the output
index from everything written into the stream (embeddings, output projections, their biases) leaves every reading
unchanged, and the stream has mean zero identically. A norm's gain and shift fold into the matrix that reads it:
``W' = diag(gain) W``, ``b' = b + shift W``. The head keeps its own, uncentred copy of a tied embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit.ops import Embed, Head, Linear, Norm, Stage
from heatfhe.errors import ConfigError

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FoldedLinear:
    """x @ weight + bias in float64, weight (in, out)."""

    weight: Matrix
    bias: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """All weights a circuit computes with. ``linears`` is keyed by stage name, ``head`` maps width to vocabulary."""

    token: Matrix
    position: Matrix
    linears: Mapping[str, FoldedLinear]
    head: FoldedLinear


def fold(stages: Sequence[Stage], weights: Mapping[str, NDArray[Any]]) -> Folded:
    """Centre the residual writes and fold every norm's gain and shift into its readers."""

    def wide(name: str) -> Matrix:
        return np.asarray(weights[name], dtype=np.float64)

    norms = {s.writes: s for s in stages if isinstance(s, Norm)}
    linears: dict[str, FoldedLinear] = {}
    token = position = None
    head = None
    for stage in stages:
        if isinstance(stage, Embed):
            token, position = (_centred(wide(n)) for n in (stage.token, stage.position))
        elif isinstance(stage, Linear):
            weight, bias = _through_norm(norms.get(stage.reads), wide(stage.weight), wide(stage.bias), wide)
            if stage.residual:
                weight, bias = _centred(weight), _centred(bias)
            linears[stage.name] = FoldedLinear(weight, bias)
        elif isinstance(stage, Head):
            weight = wide(stage.weight).T
            head = FoldedLinear(*_through_norm(norms.get(stage.reads), weight, np.zeros(weight.shape[1]), wide))
    if token is None or position is None or head is None:
        raise ConfigError("a circuit needs an embed and a head stage")
    return Folded(token=token, position=position, linears=linears, head=head)


def _through_norm(norm: Norm | None, weight: Matrix, bias: Matrix, wide: Any) -> tuple[Matrix, Matrix]:
    if norm is None:
        return weight, bias
    return wide(norm.weight)[:, None] * weight, bias + wide(norm.bias) @ weight


def _centred(rows: Matrix) -> Matrix:
    return np.asarray(rows - rows.mean(axis=-1, keepdims=True))
