# SPDX-License-Identifier: Apache-2.0
"""The negative-binomial prior that pulls a site's count down, and the divergence from it.

Legend: k = i - m the count above the floor, w the target (the prior's mode, also above the floor), p its success
probability, r its shape.

Proved in proofs/Halting.v; docs/theory.md says which theorem stands behind which function.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heatfhe.errors import ConfigError


def log_prior(
    target: int | Tensor,
    floor: int | Tensor,
    top: int | Tensor,
    p: float,
    *,
    width: int,
    geometric_at_zero: bool = True,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """log of P(k) ~ C(k + r - 1, k) (1 - p)^k over absolute counts 0..width, -inf outside [floor, top].

    With ``geometric_at_zero`` a target of 0 gives the geometric distribution (r = 1), as the paper's text says;
    without, the bare formula r = 1 + (w + 1/2) p / (1 - p), which is not geometric there and pulls far less.

    Domain  0 < p < 1; 0 <= target <= top - floor (targets are counted above the floor).
    Bound   the mode sits at the target: P(k+1)/P(k) = (1 - p)(k + r)/(k + 1) passes 1 at k = w + 1/2.
    Depth   none: training only.
    Source  the paper, initialization and schedule.
    """
    if not 0.0 < p < 1.0:
        raise ConfigError(f"the prior's success probability lies strictly between 0 and 1, got {p:g}")
    w, m, n = (torch.as_tensor(v).unsqueeze(-1) for v in (target, floor, top))
    if bool(((w < 0) | (w > n - m)).any()):
        raise ConfigError("a prior's target lies outside its site's support; targets count from the floor to the top")
    r = 1.0 + (w.to(dtype) + 0.5) * p / (1.0 - p)
    if geometric_at_zero:
        r = torch.where(w == 0, torch.ones_like(r), r)
    at = torch.arange(width + 1, device=w.device)
    k = (at - m).clamp(min=0).to(dtype)
    raw = torch.lgamma(k + r) - torch.lgamma(r) - torch.lgamma(k + 1.0)
    raw = raw + k * torch.log1p(torch.tensor(-p, dtype=dtype))
    raw = torch.where((at >= m) & (at <= n), raw, -torch.inf)
    return raw - torch.logsumexp(raw, dim=-1, keepdim=True)


def kl(p: Tensor, log_p: Tensor, log_prior: Tensor) -> Tensor:
    """KL(p || prior) over the last axis, the learned distribution first; places without mass count nothing.

    Domain  a prior with mass wherever p has some.
    Bound   exact.
    Depth   none: training only.
    Source  the paper, iteration count penalty.
    """
    held = torch.isfinite(log_p) & torch.isfinite(log_prior)
    gap = torch.where(held, log_p, 0.0) - torch.where(held, log_prior, 0.0)
    return (p * gap).sum(dim=-1)
