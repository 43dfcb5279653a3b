# SPDX-License-Identifier: Apache-2.0
"""The meaning of a circuit: float64 arithmetic through the same approximations that every engine runs.

Shapes: B sequences (any leading shape), T rows of this chunk, P rows cached before it, d width, h heads, e head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import activation, cutmax, exact_activation, inverse_sqrt, rms_norm, softmax, softmax_solvers
from heatfhe.errors import ConfigError
from heatfhe.stages import Activation, Argmax, Attention, Embed, Gate, Head, Linear, Norm, Patches, Residual, turns

if TYPE_CHECKING:
    from heatfhe.circuit.circuit import Circuit
    from heatfhe.stages import Grid

PIECE = 1 << 16  # numbers of a wide value that a core's cache holds beside a polynomial's others
Rows = NDArray[np.float64]
# Sees (and may replace) named values on the way: a norm's z, a softmax's scores and sums, an activation's input.
Tap = Callable[[str, Rows], Rows]


def no_tap(_name: str, value: Rows) -> Rows:
    """Look at nothing, change nothing."""
    return value


@dataclass
class Cache:
    """Keys and values of the positions seen so far, by attention name; the encrypted cache's plain twin."""

    length: int = 0
    keys: dict[str, Rows] = field(default_factory=dict)
    values: dict[str, Rows] = field(default_factory=dict)

    def spread(self, batch: tuple[int, ...]) -> Cache:
        """A cache of one sequence as one for a batch; appending to it leaves this one as it is."""
        parts = ({k: np.broadcast_to(v, (*batch, *v.shape)) for k, v in p.items()} for p in (self.keys, self.values))
        return Cache(self.length, *parts)


def embed(circuit: Circuit, tokens: NDArray[np.int64], start: int) -> Rows:
    """Rows of the residual stream for tokens at positions start, start + 1, ..."""
    if tokens.size and (tokens.min() < 0 or tokens.max() >= circuit.shape.vocabulary):
        raise ConfigError(
            f"a token id lies outside the vocabulary of {circuit.shape.vocabulary}; use the circuit's tokenizer"
        )
    _check_room(circuit, start, tokens.shape[-1])
    return circuit.folded.placed(circuit.folded.token[tokens], start)


def embed_images(circuit: Circuit, grid: Grid, images: Any) -> Rows:
    """Rows of the residual stream for images (B..., channels, height, width): the class token's first."""
    return circuit.folded.placed(grid.project(images, circuit.folded.token), 0)


def forward(circuit: Circuit, x: Rows, cache: Cache, *, tap: Tap = no_tap, exact: bool = False) -> Rows:
    """Logits of rows of the residual stream (B..., T, d) that come after the cached ones.

    ``exact`` uses no approximation: what a public prefix is computed with.
    """
    start = cache.length
    _check_room(circuit, start, x.shape[-2])
    values: dict[str, Rows] = {}
    last = x
    for stage in circuit.stages:
        if isinstance(stage, (Embed, Patches)):
            out = x
        elif isinstance(stage, Norm):
            out = (_exact_norm if exact else _norm)(circuit, stage, values[stage.reads], tap)
        elif isinstance(stage, Linear):
            linear = circuit.folded.linears[stage.name]
            out = values[stage.reads] @ linear.weight + linear.bias
        elif isinstance(stage, Attention):
            out = _attention(circuit, stage, [values[v] for v in stage.inputs], cache, start, tap, exact)
        elif isinstance(stage, Activation):
            fit, given = circuit.calibration.activations[stage.name].fit, tap(f"{stage.name}/in", values[stage.reads])
            function = exact_activation(stage.function) if exact else partial(activation, fit=fit)
            out = _in_pieces(function, given if exact else given / fit.bound)
        elif isinstance(stage, Gate):
            out = values[stage.reads] * values[stage.by]
        elif isinstance(stage, Residual):
            out = values[stage.reads] + values[stage.branch]
        elif isinstance(stage, Head):
            given = values[stage.reads][..., :1, :] if stage.first else values[stage.reads]
            out = given @ circuit.folded.head.weight + circuit.folded.head.bias
        elif isinstance(stage, Argmax):
            break
        values[stage.writes] = last = tap(stage.writes, out)
    cache.length = start + x.shape[-2]
    return last


def _in_pieces(function: Callable[[Any], Any], x: Rows) -> Rows:
    """An elementwise function of rows (..., n), some at a time: no bit differs, and values between its operations stay
    in a core's cache."""
    flat = x.reshape(-1, x.shape[-1])
    each, out = max(1, PIECE // x.shape[-1]), np.empty_like(flat)
    for top in range(0, len(flat), each):
        out[top : top + each] = function(flat[top : top + each])
    return out.reshape(x.shape)


def one_hot(circuit: Circuit, logits: Rows) -> Rows:
    """The argmax stage: a near one-hot row per row of logits."""
    if circuit.calibration.argmax is None:
        raise ConfigError("argmax: the calibration holds no argmax schedule; calibrate the model again")
    schedule = circuit.calibration.argmax.schedule
    return np.asarray(cutmax(logits, schedule, mean=lambda v: v.mean(axis=-1, keepdims=True), size=logits.shape[-1]))


def _norm(circuit: Circuit, stage: Norm, x: Rows, tap: Tap) -> Rows:
    c = circuit.calibration.norms[stage.name]

    def sum_of_squares(v: Rows) -> Rows:
        return tap(f"{stage.name}/z", (v * v).sum(axis=-1, keepdims=True) + c.width * c.eps)

    def inverse_root(z: Rows) -> Rows:
        y = inverse_sqrt(z, c.fit, c.goldschmidt_count, c.newton_count, gain=math.sqrt(c.width))
        return tap(f"{stage.name}/root", y)

    return np.asarray(rms_norm(x, sum_of_squares=sum_of_squares, inverse_root=inverse_root))


def _exact_norm(circuit: Circuit, stage: Norm, x: Rows, _tap: Tap) -> Rows:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + stage.eps))


def _attention(
    circuit: Circuit, stage: Attention, given: list[Rows], cache: Cache, start: int, tap: Tap, exact: bool
) -> Rows:
    shape = circuit.shape
    c = circuit.calibration.softmaxes[stage.name]
    q, k, v = (
        part.reshape(*part.shape[:-1], shape.heads, shape.head_width).swapaxes(-2, -3)
        for part in (np.split(given[0], 3, axis=-1) if len(given) == 1 else given)
    )  # each (B..., h, T, e)
    if stage.rotary is not None:
        cosine, sine = turns(stage.rotary, shape.head_width, start + np.arange(q.shape[-2]))
        q, k = (part * cosine + np.roll(part, shape.head_width // 2, axis=-1) * sine for part in (q, k))
    if stage.name in cache.keys:
        k = np.concatenate([cache.keys[stage.name], k], axis=-2)
        v = np.concatenate([cache.values[stage.name], v], axis=-2)
    cache.keys[stage.name], cache.values[stage.name] = k, v
    rows, columns = q.shape[-2], k.shape[-2]
    positions = start + np.arange(rows) if stage.causal else np.full(rows, columns - 1)
    mask = (np.arange(columns)[None, :] <= positions[:, None]).astype(np.float64)
    row_length = (positions + 1.0)[:, None]
    scores = tap(f"{stage.name}/scores", (q @ k.swapaxes(-1, -2)) / stage.divisor(shape.head_width))
    if exact:
        e = np.exp(scores - np.where(mask > 0, scores, -np.inf).max(axis=-1, keepdims=True)) * mask
        return _joined(e / e.sum(axis=-1, keepdims=True) @ v)
    t = np.where(mask > 0, (scores - c.fit.midpoint) / (c.fit.width / 2), 0.0)  # masked slots: any in-domain value
    init, refine = softmax_solvers(c.fit, c.init_count, c.refine_count, row_length)
    y = softmax(
        t,
        c.fit,
        row_sum=lambda r: r.sum(axis=-1, keepdims=True),
        mask=mask,
        init=lambda s: tap(f"{stage.name}/inverse", init(tap(f"{stage.name}/sum", s))),
        refine=None if refine is None else lambda s: tap(f"{stage.name}/inverse", refine(tap(f"{stage.name}/sum2", s))),
    )
    return _joined((y / row_length) @ v)


def _joined(heads: Rows) -> Rows:
    """(B..., h, T, e) -> (B..., T, d)."""
    rows = heads.swapaxes(-2, -3)
    return np.asarray(rows.reshape(*rows.shape[:-2], -1))


def _check_room(circuit: Circuit, start: int, length: int) -> None:
    if start + length > circuit.shape.context:
        behind = f", {len(circuit.prefix)} of them a public prefix," if circuit.prefix else ""
        raise ConfigError(
            f"{start + length} positions{behind} do not fit the circuit's context of {circuit.shape.context}; "
            "shorten the prompt or ask for fewer tokens"
        )
