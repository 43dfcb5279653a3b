# SPDX-License-Identifier: Apache-2.0
"""Queries and keys turned by their positions on a GPU: one kernel for both, and the same kernel on the way back.

Turned is x cosine + half_away(x) sine; half a head further on the sine has the other sign, so that a gradient goes back
by the same formula with the sine's sign changed. Shapes: (B, T, H D) queries, (B, T, K D) keys, angles (>= T, D).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 32  # rows of one program, of one head


@triton.jit
def _turn_head(X, Y, COS, SIN, rows, T, width, sign, D: tl.constexpr, R: tl.constexpr):
    at = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.arange(0, D)
    far = (col + D // 2) % D
    inside = (at < rows)[:, None] & (col < D)[None, :]
    base = at[:, None].to(tl.int64) * width
    x = tl.load(X + base + col[None, :], mask=inside, other=0.0).to(tl.float32)
    away = tl.load(X + base + far[None, :], mask=inside, other=0.0).to(tl.float32)
    angle = (at % T)[:, None] * D + col[None, :]
    cosine = tl.load(COS + angle, mask=inside, other=0.0)
    sine = tl.load(SIN + angle, mask=inside, other=0.0)
    y = x * cosine + away * (sine * sign)
    tl.store(Y + base + col[None, :], y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _turn(Q, K, TQ, TK, COS, SIN, rows, T, wide_q, wide_k, sign, H, D: tl.constexpr, R: tl.constexpr):
    head = tl.program_id(1)
    if head < H:
        _turn_head(Q + head * D, TQ + head * D, COS, SIN, rows, T, wide_q, sign, D, R)
    else:
        at = (head - H) * D
        _turn_head(K + at, TK + at, COS, SIN, rows, T, wide_k, sign, D, R)


def _run(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    d, rows = cosine.shape[-1], q.shape[0] * q.shape[1]
    turned = torch.empty_like(q), torch.empty_like(k)
    heads = q.shape[-1] // d, k.shape[-1] // d
    _turn[(triton.cdiv(rows, ROWS), sum(heads))](
        q, k, *turned, cosine, sine, rows, q.shape[1], q.shape[-1], k.shape[-1], sign, heads[0], D=d, R=ROWS,
    )  # fmt: skip
    return turned


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor) -> Any:
        ctx.save_for_backward(cosine, sine)
        return _run(q, k, cosine, sine, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_q: Tensor, g_k: Tensor) -> Any:
        cosine, sine = ctx.saved_tensors
        return *_run(g_q.contiguous(), g_k.contiguous(), cosine, sine, -1.0), None, None


def turn(q: Tensor, k: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Contiguous q and k, their heads turned by the position of their row.

    Domain  any; angles as heatfhe.stages.turns gives them, float32, for at least T positions; a head width of 2^n.
    Bound   float32 inside, rounded to the inputs' dtype.
    Depth   none: training only.
    Source  heatfhe.sites.attention, which defines it.
    """
    turned: tuple[Tensor, Tensor] = _Turn.apply(q, k, cosine, sine)
    return turned
