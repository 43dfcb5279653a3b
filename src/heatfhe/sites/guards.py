# SPDX-License-Identifier: Apache-2.0
"""Range guards: hard clamps with a push-back gradient while training, and the range loss. Never deployed.

An encrypted circuit has no comparison, so nothing stops a value that leaves its fitted domain. While training, a clamp
does, and its gradient is that of a quadratic penalty, which pulls the value back inside until the clamp is idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heatfhe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBounds:
    """Where the range loss begins. Each term is a squared excess, summed over entries and sites, per token.

    Scores count by their largest in a row, averaged over heads: a row of a thousand wide scores would otherwise drown
    the task (on a GPT-2 whose scores reach 113 the summed form led to KL 4.3 from its parent in 25 updates).

    ``activation``   bound on |input| of every activation (the paper: 32).
    ``score``        squeeze bound on |score| of every attention (the paper: 10 in phase one, 14 after).
    ``denominator``  bound on the logarithm of a softmax row's mean exponential (the paper's 7 = 14 / delta_2), whatever
                     midpoint its circuit takes: a single wide head must not move the bound of all others with it.
    ``variance``     bound on the variance entering every norm (the paper: 16).
    ``spread``       how far from its norm's median a row's variance may lie, as a factor, where medians are known; the
                     logarithm's excess counts, of each sequence's worst row (ours; infinite: no bound).
    ``divisor``      what scores are divided by in those exponentials, delta_2: exact rows do not say.
    """

    activation: float = 32.0
    score: float = 14.0
    denominator: float = 7.0
    variance: float = 16.0
    spread: float = math.inf
    divisor: int = 2

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"range bound {name!r} must be above 0, got {getattr(self, name)!r}")


class _Guard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lo: float | None, hi: float | None, push: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bounds = lo, hi, push
        return x.clamp(min=lo, max=hi)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        lo, hi, push = ctx.bounds
        excess = x - x.clamp(min=lo, max=hi)
        return torch.where(excess == 0.0, g, (2.0 * push) * excess), None, None, None


def guard(x: Tensor, lo: float | None, hi: float | None, push: float) -> Tensor:
    """x clamped into [lo, hi]; outside, the gradient is that of push * excess^2 and nothing else.

    Domain  any x; None leaves a side open.
    Bound   exact; inside, the identity in both directions.
    Depth   none: training only, absent when deployed.
    Source  the paper, initialization and schedule (clamps with push-back).
    """
    out: Tensor = _Guard.apply(x, lo, hi, push)
    return out


def excess(x: Tensor, bound: float, tokens: int) -> Tensor:
    """Sum of max(0, |x| - bound)^2 over all entries, per token: one site's share of a range term."""
    over = torch.relu(x.abs() - bound)
    return (over * over).sum() / tokens


def astray(variance: Tensor, median: float, spread: float) -> Tensor:
    """The squared excess of |log(variance / median)| over log(spread) in each sequence's worst row, averaged over them.

    A position that stands out in every sequence, as the first one does, is one row of a thousand: a mean over rows
    would not see it, and it alone decides how wide the domain of its norm's inverse root is.

    Domain  variances (..., T), positive; spread >= 1.
    Bound   exact.
    Depth   none: training only.
    Source  ours.
    """
    over = torch.relu((variance / median).log().abs() - math.log(spread))
    return (over * over).amax(dim=-1).mean()
