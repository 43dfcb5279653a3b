# SPDX-License-Identifier: Apache-2.0
"""An activation for training on a GPU: guard, function and range term in one kernel each way.

Of every T rows the first ``public`` are exact: no guard, no range term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from heatfhe.sites.activation import ActivationSite

BLOCK = 2048
FUNCTIONS = ("gelu_new", "gelu", "silu")


@triton.jit
def _value_and_slope(x, FUNCTION: tl.constexpr):
    """f(x) and f'(x); the tanh form of GELU as x sigmoid(2 u), which is the same number."""
    if FUNCTION == 0:
        s = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        return x * s, s + x * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    if FUNCTION == 1:
        s = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        return x * s, s + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    s = tl.sigmoid(x)
    return x * s, s + x * s * (1.0 - s)


@triton.jit
def _open(pid, whole, front, B: tl.constexpr):
    """Which of a block's entries stand in the first ``front`` of their sequence's ``whole``."""
    return (((pid * B) % whole).to(tl.int32) + tl.arange(0, B)) % whole < front


@triton.jit
def _forward(
    X, Y, PEN, size, whole, front, guard, bound, FUNCTION: tl.constexpr, PUBLIC: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    at = pid * B + tl.arange(0, B)
    x = tl.load(X + at, mask=at < size, other=0.0).to(tl.float32)
    c = tl.minimum(tl.maximum(x, -guard), guard)
    over = tl.maximum(tl.abs(x) - bound, 0.0)
    if PUBLIC:
        opened = _open(pid, whole, front, B)
        c = tl.where(opened, x, c)
        over = tl.where(opened, 0.0, over)
    y, _ = _value_and_slope(c, FUNCTION)
    tl.store(Y + at, y.to(Y.dtype.element_ty), mask=at < size)
    tl.store(PEN + pid, tl.sum(over * over, 0))


@triton.jit
def _backward(
    X, G, GP, DX, size, whole, front, guard, bound, push,
    FUNCTION: tl.constexpr, PUBLIC: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    at = pid * B + tl.arange(0, B)
    x = tl.load(X + at, mask=at < size, other=0.0).to(tl.float32)
    g = tl.load(G + at, mask=at < size, other=0.0).to(tl.float32)
    c = tl.minimum(tl.maximum(x, -guard), guard)
    over = tl.maximum(tl.abs(x) - bound, 0.0)
    if PUBLIC:
        opened = _open(pid, whole, front, B)
        c = tl.where(opened, x, c)
        over = tl.where(opened, 0.0, over)
    _, slope = _value_and_slope(c, FUNCTION)
    dx = tl.where(x == c, g * slope, 2.0 * push * (x - c))
    dx += tl.load(GP + pid) * 2.0 * over * tl.where(x >= 0.0, 1.0, -1.0)
    tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=at < size)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, public: int, guard: float, bound: float, push: float, function: int) -> Any:
        blocks = triton.cdiv(x.numel(), BLOCK)
        y, pen = torch.empty_like(x), torch.empty(blocks, device=x.device, dtype=torch.float32)
        ctx.sizes = x.numel(), x.shape[-2] * x.shape[-1], public * x.shape[-1]
        ctx.options = {"FUNCTION": function, "PUBLIC": public > 0, "B": BLOCK}
        _forward[(blocks,)](x, y, pen, *ctx.sizes, guard, bound, **ctx.options)
        ctx.save_for_backward(x)
        ctx.constants = guard, bound, push
        return y, pen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_pen: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        _backward[(g_pen.numel(),)](
            x, g.contiguous(), g_pen.contiguous(), dx, *ctx.sizes, *ctx.constants, **ctx.options
        )  # fmt: skip
        return dx, None, None, None, None, None


def activate(site: ActivationSite, x: Tensor) -> Tensor:
    """The analytic activation of every entry with its range term, exact or training: as ActivationSite eagerly.

    Domain  float32 or bf16 rows (..., T, d) on a GPU; training with guards clamps those not public to the fitted bound.
    Bound   float32 inside, rounded to x's dtype.
    Depth   none: training only.
    Source  heatfhe.sites.activation, which defines it.
    """
    switch = site.switch
    guarded = switch.guards and switch.mode == "training"
    guard = site.fitted().fit.bound if guarded else 1e30
    bound = switch.bounds.activation if switch.bounds is not None else 1e30
    function = FUNCTIONS.index(site.stage.function)
    out, pen = _Activate.apply(x.contiguous(), switch.public, guard, bound, switch.push, function)
    if switch.bounds is not None:
        switch.add_term("activation", pen.sum() * (x.shape[-1] / switch.private(x).numel()))
    result: Tensor = out
    return result
