# SPDX-License-Identifier: Apache-2.0
"""centre: shift keys so that all rows of a softmax have about the same sum, which changes no probability.

Shapes: K heads of keys, R rows that ask them, e head width.

A vector added to all keys of a head adds one number to all scores of a row, which a softmax does not see. A reciprocal
does: it has to serve the least and the greatest sum of any row and head, and every factor of two between them costs a
plain iteration. So each head's keys are moved, through their bias, to where the logarithms of its rows' mean
exponentials lie closest about zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heatfhe.progress import SILENT, Reporter
from heatfhe.ranges.observe import Tokens, batch_of, hidden_scores, row_lengths
from heatfhe.sites import Prepared
from heatfhe.stages import Attention

POWER = 8  # of the deviations that are added up: what counts is the widest row, and it may not be the only one
ROUNDS = 40  # of Newton's method
RIDGE = 1e-6  # of the mean square of a query's entry: entries that are always nothing are not moved


@dataclass(frozen=True, slots=True)
class Centred:
    """How far the logarithms of an attention's mean exponentials reached, least and greatest, before and after."""

    before: tuple[float, float]
    after: tuple[float, float]


@torch.no_grad()
def centre(
    prepared: Prepared,
    sequences: Iterable[Tokens],
    *,
    tau: int = 2,
    place: Callable[[Tensor, nn.Parameter], Tensor] = lambda value, like: value,
    reporter: Reporter = SILENT,
) -> dict[str, Centred]:
    """Move the key biases of every attention that has them; what the model computes stays, up to rounding.

    ``tau`` divides the scores, as a softmax's delta_2 does. All rows of the sequences are held at once. Keys that turn
    with their position, or have no bias, stay as they are. ``place`` puts a whole vector where a parameter's own parts
    are, if it is split over processes.

    Domain  any model; one whose nonlinearities are approximated changes where a solver has not converged.
    Bound   the sum of the deviations' eighth powers is no larger than before, head by head.
    Depth   none: weights alone change.
    Source  softmax(s + c) = softmax(s); Newton's method on a sum of even powers, which is convex.
    """
    biases, public = prepared.key_biases(), len(prepared.config.prefix)
    stages = {stage.name: stage for stage in prepared.architecture.of(Attention) if stage.name in biases}
    queries: dict[str, list[Tensor]] = {name: [] for name in stages}
    heights: dict[str, list[Tensor]] = {name: [] for name in stages}

    def tap(name: str, value: Tensor) -> Tensor:
        owner, _, part = name.rpartition("/")
        if owner in stages and part == "q":
            queries[owner].append(value)
        elif owner in stages and part == "scores":
            heights[owner].append(_log_means(stages[owner], value, public, tau))
        return value

    reporter.start("centre")
    with prepared.tapped(tap):
        for sequence in sequences:
            prepared.logits(batch_of(prepared, sequence), mode="exact")
            reporter.advance("centre")
    made = {}
    for name, stage in stages.items():
        asked = _by_head(torch.cat(queries.pop(name)), stage.cached)
        height = _by_head(torch.cat(heights.pop(name))[..., None], stage.cached)[..., 0]
        scaled = asked / (tau * stage.divisor(asked.shape[-1]))
        shift = levelled(scaled, height)
        after = height + torch.einsum("kre,ke->kr", scaled, shift)
        bias, part = biases[name]
        whole = shift.new_zeros(bias.shape)
        whole[part] = shift.flatten()
        bias.add_(place(whole.to(bias.dtype), bias))
        made[name] = Centred(_ends(height), _ends(after))
    reporter.done("centre")
    return made


def levelled(rows: Tensor, heights: Tensor) -> Tensor:
    """The shift d (K, e) with the least sum of |heights + rows d|^POWER, from rows (K, R, e) and heights (K, R).

    Newton's method, damped to what an even power's curvature asks for, so that no round makes the sum larger; it starts
    from the least squares.
    """
    width = rows.shape[-1]
    least = torch.finfo(rows.dtype).tiny
    ridge = torch.eye(width).to(rows) * (RIDGE * rows.shape[1] * rows.square().mean()).clamp(min=least)
    shift = rows.new_zeros(len(rows), width)
    for turn in range(ROUNDS):
        off = heights + torch.einsum("kre,ke->kr", rows, shift)
        top = off.abs().amax(dim=-1, keepdim=True).clamp(min=least)
        weights = torch.ones_like(off) if turn == 0 else (off / top) ** (POWER - 2)
        weighted = rows * weights[..., None]
        curvature = torch.einsum("kre,krf->kef", weighted, rows) + ridge
        slope = torch.einsum("kre,kr->ke", weighted, off)
        shift = shift - torch.linalg.solve(curvature, slope) / (1 if turn == 0 else POWER - 1)
    off = heights + torch.einsum("kre,ke->kr", rows, shift)
    top = torch.maximum(off.abs().amax(), heights.abs().amax()).clamp(min=least)
    better = ((off / top) ** POWER).sum(-1) < ((heights / top) ** POWER).sum(-1)
    return torch.where(better[:, None], shift, 0.0)


def _log_means(stage: Attention, scores: Tensor, public: int, tau: int) -> Tensor:
    """The logarithm of the mean of e^(s / tau) along every row of scores (B, H, T, S): (B, H, T)."""
    open_ = scores.masked_fill(hidden_scores(stage, scores), -torch.inf)
    return torch.logsumexp(open_ / tau, dim=-1) - torch.log(row_lengths(stage, scores, public))


def _ends(heights: Tensor) -> tuple[float, float]:
    return float(heights.min()), float(heights.max())


def _by_head(rows: Tensor, heads: int) -> Tensor:
    """Rows (B, H, T, e) by the head of keys they ask, (K, R, e) in float64: neighbours share one."""
    return rows.unflatten(1, (heads, -1)).transpose(0, 1).flatten(1, 3).double()
