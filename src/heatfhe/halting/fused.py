# SPDX-License-Identifier: Apache-2.0
"""The expected solvers on a GPU: one kernel forward and one backward, one read and one write per tensor.

The same recurrences, clamps and tangents as heatfhe.halting.solvers, which defines them; sums for p's gradient are made
per block and added afterwards. Opaque to torch.compile on purpose: unrolled, the loops of 74 sites take it minutes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _clip(x, cap):
    return tl.minimum(tl.maximum(x, -cap), cap)


@triton.jit
def _goldschmidt(N, D, P, S, R, size, cap, K: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.load(N + at, mask=at < size, other=0.0)
    d = tl.load(D + at, mask=at < size, other=1.0)
    r = n * (tl.load(P) / tl.load(S))
    for i in range(1, K):
        f = 2.0 * tl.load(S + i - 1) - d
        n, d = _clip(n * f, cap), _clip(d * f, cap)
        r += n * (tl.load(P + i) / tl.load(S + i))
    tl.store(R + at, r, mask=at < size)


@triton.jit
def _goldschmidt_back(N, D, P, S, G, DN, DD, DP, size, cap, K: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * B + tl.arange(0, B)
    n = tl.load(N + at, mask=at < size, other=0.0)
    d = tl.load(D + at, mask=at < size, other=1.0)
    g = tl.load(G + at, mask=at < size, other=0.0)
    s = tl.load(S)
    nu = tl.zeros([B], dtype=tl.float32) + 1.0
    eta = tl.zeros([B], dtype=tl.float32)
    delta = tl.zeros([B], dtype=tl.float32) + 1.0
    w = tl.load(P) / s
    n_bar, d_bar = nu * w, eta * w
    tl.store(DP + pid * K, tl.sum(g * n, 0) / s)
    for i in range(1, K):
        f = 2.0 * tl.load(S + i - 1) - d
        eta = _clip(eta * f - n * delta, cap)
        nu = _clip(nu * f, cap)
        delta = _clip(delta * f - d * delta, cap)
        n, d = _clip(n * f, cap), _clip(d * f, cap)
        s = tl.load(S + i)
        w = tl.load(P + i) / s
        n_bar += nu * w
        d_bar += eta * w
        tl.store(DP + pid * K + i, tl.sum(g * n, 0) / s)
    tl.store(DN + at, g * n_bar, mask=at < size)
    tl.store(DD + at, g * d_bar, mask=at < size)


@triton.jit
def _newton(Z, Y, P, R, h, size, cap, K: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    half = tl.load(Z + at, mask=at < size, other=0.0) * h
    y = tl.load(Y + at, mask=at < size, other=0.0)
    r = y * tl.load(P)
    for i in range(1, K):
        y = _clip(y * 1.5 - (half * y) * (y * y), cap)
        r += y * tl.load(P + i)
    tl.store(R + at, r, mask=at < size)


@triton.jit
def _newton_back(Z, Y, P, G, DZ, DY, DP, h, size, cap, K: tl.constexpr, B: tl.constexpr):
    pid = tl.program_id(0)
    at = pid * B + tl.arange(0, B)
    half = tl.load(Z + at, mask=at < size, other=0.0) * h
    y = tl.load(Y + at, mask=at < size, other=0.0)
    g = tl.load(G + at, mask=at < size, other=0.0)
    by_y = tl.zeros([B], dtype=tl.float32) + 1.0
    by_z = tl.zeros([B], dtype=tl.float32)
    p = tl.load(P)
    y_bar, z_bar = by_y * p, by_z * p
    tl.store(DP + pid * K, tl.sum(g * y, 0))
    for i in range(1, K):
        square = y * y
        slope = _clip(1.5 - 3.0 * (half * square), cap)
        by_z = _clip(by_z * slope - (h * y) * square, cap)
        by_y = _clip(by_y * slope, cap)
        y = _clip(y * 1.5 - (half * y) * square, cap)
        p = tl.load(P + i)
        y_bar += by_y * p
        z_bar += by_z * p
        tl.store(DP + pid * K + i, tl.sum(g * y, 0))
    tl.store(DZ + at, g * z_bar, mask=at < size)
    tl.store(DY + at, g * y_bar, mask=at < size)


def _grid(x: Tensor) -> tuple[int]:
    return (triton.cdiv(x.numel(), BLOCK),)


def _cap() -> float:
    return 0.5 * float(torch.finfo(torch.float32).max) ** 0.5


def _schedule(schedule: list[float], p: Tensor) -> Tensor:
    """The schedule on the device; the plain one, all ones, needs no copy from the host."""
    return (
        torch.ones_like(p)
        if all(s == 1.0 for s in schedule)
        else torch.tensor(schedule, device=p.device, dtype=p.dtype)
    )


@torch.library.custom_op("heatfhe::expected_goldschmidt", mutates_args=())
def goldschmidt(n: Tensor, d: Tensor, p: Tensor, schedule: list[float]) -> Tensor:
    """sum_i p_i N_i / s_i on contiguous float32 tensors of one shape; see solvers.expected_goldschmidt."""
    r = torch.empty_like(n)
    _goldschmidt[_grid(n)](n, d, p, _schedule(schedule, p), r, n.numel(), _cap(), K=p.shape[0], B=BLOCK)
    return r


@torch.library.custom_op("heatfhe::expected_goldschmidt_backward", mutates_args=())
def goldschmidt_backward(
    n: Tensor, d: Tensor, p: Tensor, g: Tensor, schedule: list[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of n, d and p."""
    dn, dd = torch.empty_like(n), torch.empty_like(d)
    (blocks,) = _grid(n)
    dp = torch.empty((blocks, p.shape[0]), device=p.device, dtype=torch.float32)
    s = _schedule(schedule, p)
    _goldschmidt_back[(blocks,)](n, d, p, s, g.contiguous(), dn, dd, dp, n.numel(), _cap(), K=p.shape[0], B=BLOCK)
    return dn, dd, dp.sum(0)


@torch.library.custom_op("heatfhe::expected_newton", mutates_args=())
def newton(z: Tensor, y: Tensor, p: Tensor, gain: float) -> Tensor:
    """sum_i p_i Y_i on contiguous float32 tensors of one shape; see solvers.expected_newton."""
    r = torch.empty_like(y)
    _newton[_grid(y)](z, y, p, r, 0.5 / (gain * gain), y.numel(), _cap(), K=p.shape[0], B=BLOCK)
    return r


@torch.library.custom_op("heatfhe::expected_newton_backward", mutates_args=())
def newton_backward(z: Tensor, y: Tensor, p: Tensor, g: Tensor, gain: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, y and p."""
    dz, dy = torch.empty_like(z), torch.empty_like(y)
    (blocks,) = _grid(y)
    dp = torch.empty((blocks, p.shape[0]), device=p.device, dtype=torch.float32)
    _newton_back[(blocks,)](
        z, y, p, g.contiguous(), dz, dy, dp, 0.5 / (gain * gain), y.numel(), _cap(), K=p.shape[0], B=BLOCK
    )
    return dz, dy, dp.sum(0)


@goldschmidt.register_fake
def _(n: Tensor, d: Tensor, p: Tensor, schedule: list[float]) -> Tensor:
    return torch.empty_like(n)


@newton.register_fake
def _(z: Tensor, y: Tensor, p: Tensor, gain: float) -> Tensor:
    return torch.empty_like(y)


@goldschmidt_backward.register_fake
def _(n: Tensor, d: Tensor, p: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(n), torch.empty_like(d), torch.empty_like(p)


@newton_backward.register_fake
def _(z: Tensor, y: Tensor, p: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(z), torch.empty_like(y), torch.empty_like(p)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, p, ctx.rest = inputs
    ctx.save_for_backward(a, b, p)


goldschmidt.register_autograd(
    lambda ctx, g: (*goldschmidt_backward(*ctx.saved_tensors, g, ctx.rest), None), setup_context=_keep
)
newton.register_autograd(lambda ctx, g: (*newton_backward(*ctx.saved_tensors, g, ctx.rest), None), setup_context=_keep)
