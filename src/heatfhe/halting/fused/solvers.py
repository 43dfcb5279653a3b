# SPDX-License-Identifier: Apache-2.0
"""The expected solvers on a GPU: one kernel forward and one backward, one read and one write per tensor.

The same recurrences and clamps as heatfhe.halting.solvers, which defines them. The functions without a leading
underscore run inside other kernels too (a whole norm, a whole attention), on one number per row: a value, a derivative
along one direction, or the sums that are p's gradient. P and S point to the distribution and the
schedule, K counts states.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 1024
CAP = 0.5 * float(torch.finfo(torch.float32).max) ** 0.5


@triton.jit
def clip(x, cap):
    """x in [-cap, cap]: a row out of its domain stays finite."""
    return tl.minimum(tl.maximum(x, -cap), cap)


@triton.jit
def goldschmidt_value(n, d, P, S, K, cap):
    """sum_i p_i n_i / s_i."""
    r = n * (tl.load(P) / tl.load(S))
    for i in range(1, K):
        f = 2.0 * tl.load(S + i - 1) - d
        n, d = clip(n * f, cap), clip(d * f, cap)
        r += n * (tl.load(P + i) / tl.load(S + i))
    return r


@triton.jit
def goldschmidt_tangent(n, d, n_dot, d_dot, P, S, K, cap):
    """The value, and its derivative in the direction (n_dot, d_dot)."""
    w = tl.load(P) / tl.load(S)
    r, r_dot = n * w, n_dot * w
    for i in range(1, K):
        f = 2.0 * tl.load(S + i - 1) - d
        n_dot = clip(n_dot * f - n * d_dot, cap)
        d_dot = clip(d_dot * f - d * d_dot, cap)
        n, d = clip(n * f, cap), clip(d * f, cap)
        w = tl.load(P + i) / tl.load(S + i)
        r += n * w
        r_dot += n_dot * w
    return r, r_dot


@triton.jit
def goldschmidt_shares(n, d, g, S, K, cap, DP):
    """DP[i] = sum over the block of g n_i / s_i."""
    tl.store(DP, tl.sum(g * n, 0) / tl.load(S))
    for i in range(1, K):
        f = 2.0 * tl.load(S + i - 1) - d
        n, d = clip(n * f, cap), clip(d * f, cap)
        tl.store(DP + i, tl.sum(g * n, 0) / tl.load(S + i))


@triton.jit
def newton_value(y, half, P, K, cap):
    """sum_i p_i y_i; half = z / (2 gain^2)."""
    r = y * tl.load(P)
    for i in range(1, K):
        y = clip(y * 1.5 - (half * y) * (y * y), cap)
        r += y * tl.load(P + i)
    return r


@triton.jit
def newton_tangent(y, half, y_dot, half_dot, P, K, cap):
    """The value, and its derivative in the direction (y_dot, half_dot)."""
    p = tl.load(P)
    r, r_dot = y * p, y_dot * p
    for i in range(1, K):
        square = y * y
        slope = clip(1.5 - 3.0 * (half * square), cap)
        y_dot = clip(y_dot * slope - (half_dot * y) * square, cap)
        y = clip(y * 1.5 - (half * y) * square, cap)
        p = tl.load(P + i)
        r += y * p
        r_dot += y_dot * p
    return r, r_dot


@triton.jit
def newton_shares(y, half, g, K, cap, DP):
    """DP[i] = sum over the block of g y_i."""
    tl.store(DP, tl.sum(g * y, 0))
    for i in range(1, K):
        y = clip(y * 1.5 - (half * y) * (y * y), cap)
        tl.store(DP + i, tl.sum(g * y, 0))


@triton.jit
def _goldschmidt(N, D, P, S, R, size, K, cap, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.load(N + at, mask=at < size, other=0.0)
    d = tl.load(D + at, mask=at < size, other=1.0)
    tl.store(R + at, goldschmidt_value(n, d, P, S, K, cap), mask=at < size)


@triton.jit
def _goldschmidt_back(N, D, P, S, G, DN, DD, DP, size, K, cap, B: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * B + tl.arange(0, B)
    n = tl.load(N + at, mask=at < size, other=0.0)
    d = tl.load(D + at, mask=at < size, other=1.0)
    g = tl.load(G + at, mask=at < size, other=0.0)
    one, none = tl.full([B], 1.0, tl.float32), tl.zeros([B], tl.float32)
    _, by_n = goldschmidt_tangent(n, d, one, none, P, S, K, cap)
    _, by_d = goldschmidt_tangent(n, d, none, one, P, S, K, cap)
    tl.store(DN + at, g * by_n, mask=at < size)
    tl.store(DD + at, g * by_d, mask=at < size)
    goldschmidt_shares(n, d, g, S, K, cap, DP + pid * K)


@triton.jit
def _newton(Z, Y, P, R, h, size, K, cap, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    half = tl.load(Z + at, mask=at < size, other=0.0) * h
    y = tl.load(Y + at, mask=at < size, other=0.0)
    tl.store(R + at, newton_value(y, half, P, K, cap), mask=at < size)


@triton.jit
def _newton_back(Z, Y, P, G, DZ, DY, DP, h, size, K, cap, B: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * B + tl.arange(0, B)
    half = tl.load(Z + at, mask=at < size, other=0.0) * h
    y = tl.load(Y + at, mask=at < size, other=0.0)
    g = tl.load(G + at, mask=at < size, other=0.0)
    one, none = tl.full([B], 1.0, tl.float32), tl.zeros([B], tl.float32)
    _, by_y = newton_tangent(y, half, one, none, P, K, cap)
    _, by_z = newton_tangent(y, half, none, none + h, P, K, cap)
    tl.store(DZ + at, g * by_z, mask=at < size)
    tl.store(DY + at, g * by_y, mask=at < size)
    newton_shares(y, half, g, K, cap, DP + pid * K)


@lru_cache(maxsize=256)
def on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A schedule, or a hard count as one-hot distribution, copied to the device once: captured updates cannot copy."""
    return torch.tensor(values, device=device, dtype=torch.float32)


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


class _Goldschmidt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, n: Tensor, d: Tensor, p: Tensor, schedule: Tensor) -> Tensor:
        r = torch.empty_like(n)
        _goldschmidt[_grid(n)](n, d, p, schedule, r, n.numel(), p.shape[0], CAP, B=BLOCK)
        ctx.save_for_backward(n, d, p, schedule)
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        n, d, p, s = ctx.saved_tensors
        dn, dd = torch.empty_like(n), torch.empty_like(d)
        dp = p.new_empty((*_grid(n), p.shape[0]))
        _goldschmidt_back[_grid(n)](
            n, d, p, s, g.contiguous(), dn, dd, dp, n.numel(), p.shape[0], CAP, B=BLOCK
        )  # fmt: skip
        return dn, dd, dp.sum(0), None


class _Newton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, p: Tensor, gain: float) -> Tensor:
        r = torch.empty_like(y)
        ctx.h = 0.5 / (gain * gain)
        _newton[_grid(y)](z, y, p, r, ctx.h, y.numel(), p.shape[0], CAP, B=BLOCK)
        ctx.save_for_backward(z, y, p)
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        z, y, p = ctx.saved_tensors
        dz, dy = torch.empty_like(z), torch.empty_like(y)
        dp = p.new_empty((*_grid(y), p.shape[0]))
        _newton_back[_grid(y)](
            z, y, p, g.contiguous(), dz, dy, dp, ctx.h, y.numel(), p.shape[0], CAP, B=BLOCK
        )  # fmt: skip
        return dz, dy, dp.sum(0), None


def goldschmidt(n: Tensor, d: Tensor, p: Tensor, schedule: Sequence[float]) -> Tensor:
    """sum_i p_i N_i / s_i on contiguous float32 tensors of one shape; see solvers.expected_goldschmidt."""
    out: Tensor = _Goldschmidt.apply(n, d, p, on_device(tuple(schedule), p.device))
    return out


def newton(z: Tensor, y: Tensor, p: Tensor, gain: float) -> Tensor:
    """sum_i p_i Y_i on contiguous float32 tensors of one shape; see solvers.expected_newton."""
    out: Tensor = _Newton.apply(z, y, p, gain)
    return out
