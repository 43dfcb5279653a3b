# SPDX-License-Identifier: Apache-2.0
"""The learned distribution over counts: sequential halting logits, evaluated in log space, with a floor per site.

Legend: l halting logits, h = sigmoid(l) the chance to stop at a count once it is reached, m the floor, n the largest
count, p the distribution over 0..n. Every function takes logits over absolute counts 0..n-1 along the last axis (those
below the floor exist but are never read) and broadcasts floors and tops over the leading ones, so that one call serves
one site or all of them.

Proved in proofs/Halting.v; docs/theory.md says which theorem stands behind which function.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from heatfhe.errors import ConfigError

GAMMA = 0.7
_TIE = 1e-6  # two masses this close, relatively, are one: the ramp's two deepest are equal up to rounding


def log_probabilities(logits: Tensor, floor: int | Tensor = 0, top: int | Tensor | None = None) -> Tensor:
    """log p over 0..width, -inf outside [floor, top].

    Domain  any logits (..., width); 0 <= floor <= top <= width.
    Bound   exact up to rounding: log p_i = log h_i + sum_{m <= j < i} log(1 - h_j), and the deepest has h = 1.
    Depth   none: training only.
    Source  Banino et al. 2021; the paper, parameterization of the halting distribution.
    """
    width = logits.shape[-1]
    at, m, n = _grid(logits, floor, top)
    halts = (at >= m) & (at < n)
    padded = torch.cat([logits, logits.new_zeros((*logits.shape[:-1], 1))], dim=-1)
    go_on = torch.where(halts, logsigmoid(-padded), 0.0)
    reached = torch.cumsum(go_on, dim=-1) - go_on
    stop = torch.where(halts, logsigmoid(padded), 0.0)
    inside = (at >= m) & (at <= n)
    assert inside.shape[-1] == width + 1
    return torch.where(inside, stop + reached, -torch.inf)


def probabilities(logits: Tensor, floor: int | Tensor = 0, top: int | Tensor | None = None) -> Tensor:
    """p over 0..width: exact zeros below the floor and above the top, the deepest atom as the complement.

    Domain  any logits (..., width); 0 <= floor <= top <= width.
    Bound   sums to one to rounding; the complement is clamped at zero, which absorbs rounding alone.
    Depth   none: training only.
    Source  the paper, parameterization of the halting distribution.
    """
    at, _, n = _grid(logits, floor, top)
    mass = torch.exp(log_probabilities(logits, floor, top))
    shallow = torch.where(at < n, mass, 0.0)
    rest = torch.clamp(1.0 - shallow.sum(dim=-1, keepdim=True), min=0.0)
    return torch.where(at == n, rest, shallow)


def ramp(top: int, floor: int = 0, gamma: float = GAMMA, *, width: int | None = None) -> Tensor:
    """Initial logits gamma (i - (n - 1)): mass grows towards the deepest count, the last two share it evenly.

    Domain  0 <= floor <= top <= width; monotone exactly when gamma >= ln 2.
    Bound   exact.
    Depth   none: training only.
    Source  the paper, initialization and schedule.
    """
    width = top if width is None else width
    if not 0 <= floor <= top <= width:
        raise ConfigError(f"a ramp needs 0 <= floor <= top <= width, got {floor}, {top} and {width}")
    i = torch.arange(width, dtype=torch.float64)
    return torch.where((i >= floor) & (i < top), gamma * (i - (top - 1)), 0.0)


def mode(p: Tensor) -> Tensor:
    """The count of largest mass; among equals, the deeper one."""
    best = p.amax(dim=-1, keepdim=True)
    at = torch.arange(p.shape[-1], device=p.device)
    return torch.where(p >= best * (1.0 - _TIE), at, -1).amax(dim=-1)


def _grid(logits: Tensor, floor: int | Tensor, top: int | Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    width = logits.shape[-1]
    at = torch.arange(width + 1, device=logits.device)
    m = torch.as_tensor(floor, device=logits.device).unsqueeze(-1)
    n = torch.as_tensor(width if top is None else top, device=logits.device).unsqueeze(-1)
    return at, m, n
