# SPDX-License-Identifier: Apache-2.0
"""Centring and folding, in float64 at load: what makes layer norm an RMS norm, its gain free and every head whole.

Where a residual stream is read only through norms that remove the mean, subtracting the mean over the output index from
everything written into the stream (embeddings, output projections, their biases) leaves every reading unchanged, and
the stream has mean zero identically. A stream read by RMS norms is left as it is. A norm's gain and shift fold into the
matrix that reads it: ``W' = diag(gain) W``, ``b' = b + shift W``. Keys and values that several heads share are repeated
for each of them. The head keeps its own, uncentred copy of a tied embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.stages import Attention, Embed, Head, Linear, Norm, Patches, Stage, centred, of, readers, writers

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FoldedLinear:
    """x @ weight + bias in float64, weight (in, out); the bias is zero where the model has none."""

    weight: Matrix
    bias: Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """All weights a circuit computes with. ``linears`` is keyed by stage name, ``head`` maps width to vocabulary.

    Of images, ``token`` maps the pixels of a patch to the width; ``position`` then holds its bias and the class token.
    """

    token: Matrix
    position: Matrix | None
    linears: Mapping[str, FoldedLinear]
    head: FoldedLinear

    def placed(self, rows: Matrix, start: int) -> Matrix:
        """Token rows (B..., T, d) with those of positions start, start + 1, ... added, if the model has any."""
        return rows if self.position is None else rows + self.position[start : start + rows.shape[-2]]


def fold(stages: Sequence[Stage], weights: Mapping[str, NDArray[Any]]) -> Folded:
    """Centre the residual writes, fold every norm's gain and shift into its readers, repeat shared keys and values."""

    def wide(name: str) -> Matrix:
        return np.asarray(weights[name], dtype=np.float64)

    def settle(rows: Matrix) -> Matrix:
        return rows - rows.mean(axis=-1, keepdims=True) if mean_free else rows

    def through(stage: Linear | Head, weight: Matrix) -> FoldedLinear:
        """Behind the norm that it reads, if it reads one."""
        bias = np.zeros(weight.shape[1]) if stage.bias is None else wide(stage.bias)
        norm = made[stage.reads]
        if not isinstance(norm, Norm):
            return FoldedLinear(weight, bias)
        shifted = bias if norm.bias is None else bias + wide(norm.bias) @ weight
        return FoldedLinear(wide(norm.weight)[:, None] * weight, shifted)

    mean_free, made = centred(stages), writers(stages)
    linears: dict[str, FoldedLinear] = {}
    for stage in of(stages, Linear):
        linear = through(stage, wide(stage.weight).T if stage.transposed else wide(stage.weight))
        if stage.residual:
            linear = FoldedLinear(settle(linear.weight), settle(linear.bias))
        for reader in readers(stages, stage.writes):
            if isinstance(reader, Attention) and reader.shared > 1:
                linear = FoldedLinear(*(_for_every_head(reader, stage, m) for m in (linear.weight, linear.bias)))
        linears[stage.name] = linear
    (head,), start = of(stages, Head), stages[0]
    if isinstance(start, Patches):
        token = wide(start.weight).reshape(len(weights[start.bias]), -1).T
        added = np.concatenate([wide(start.first)[0], np.tile(wide(start.bias), (start.grid.rows - 1, 1))])
        position: Matrix | None = wide(start.position)[0] + added
    else:
        assert isinstance(start, Embed)
        token = wide(start.token)
        position = None if start.position is None else wide(start.position)
    return Folded(
        token=settle(token),
        position=None if position is None else settle(position),
        linears=linears,
        head=through(head, wide(head.weight).T),
    )


def _for_every_head(attention: Attention, stage: Linear, columns: Matrix) -> Matrix:
    """Columns (..., heads e) of queries, keys or values, those of shared heads repeated for each head they serve."""
    own = [attention.heads, attention.cached, attention.cached]
    if not isinstance(attention.reads, str):
        own = [own[attention.reads.index(stage.writes)]]
    width = columns.shape[-1] // sum(own)
    parts = np.split(columns, [k * width for k in np.cumsum(own[:-1])], axis=-1)
    heads = [p.reshape(*p.shape[:-1], -1, width).repeat(attention.heads // n, axis=-2) for p, n in zip(parts, own)]
    return np.concatenate([h.reshape(*columns.shape[:-1], -1) for h in heads], axis=-1)
