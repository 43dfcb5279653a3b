# SPDX-License-Identifier: Apache-2.0
"""A whole norm for training on a GPU: statistics, guard, both solvers, product and range term in one kernel.

One read of the row forward, two backward; a norm keeps its input and two numbers per row. The solvers run on one number
per row, in registers, between the two uses of the row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from heatfhe.halting.fused import (
    CAP,
    goldschmidt_shares,
    goldschmidt_tangent,
    goldschmidt_value,
    newton_shares,
    newton_tangent,
    newton_value,
    on_device,
)
from heatfhe.sites.fused.distribution import distribution, narrow

if TYPE_CHECKING:
    from heatfhe.sites.norm import NormSite

ROWS = 4  # rows of one program

# Legend: z = sum of squares + d eps, its guarded value in [lo, hi]; the seed is n(z) / (z + c) + a(z) with a cubic n
# and a quadratic a (one of which is trivial, by the fit's form); sa - sb q seeds the division by q = z + c.


@triton.jit
def _start(z, c, n0, n1, n2, n3, sa, sb):
    """Numerator and denominator the division starts from."""
    q = z + c
    seed = sa - sb * q
    return ((z * n3 + n2) * (z * z) + (z * n1 + n0)) * seed, q * seed


@triton.jit
def _forward(
    X, W, B, OUT, PEN, MEAN, Z, PD, PN, S, rows, width, KD, KN, shift, lo, hi, bound, gain, h, cap,
    c, n0, n1, n2, n3, a0, a1, a2, sa, sb, EXACT: tl.constexpr, R: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.arange(0, BW)
    inside = (at < rows)[:, None] & (col < width)[None, :]
    x = tl.load(X + at[:, None].to(tl.int64) * width + col[None, :], mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / width
    centred = tl.where(inside, x - mean[:, None], 0.0)
    squares = tl.sum(centred * centred, 1)
    over = tl.maximum(squares / width - bound, 0.0)
    whole = squares + shift
    z = tl.minimum(tl.maximum(whole, lo), hi)
    if EXACT:
        y = gain * tl.rsqrt(z)
    else:
        n, d = _start(z, c, n0, n1, n2, n3, sa, sb)
        y = goldschmidt_value(n, d, PD, S, KD, cap) + (a2 * z + a1) * z + a0
        y = newton_value(y, z * h, PN, KN, cap)
    w = tl.load(W + col, mask=col < width, other=0.0)
    b = tl.load(B + col, mask=col < width, other=0.0)
    out = centred * y[:, None] * w[None, :] + b[None, :]
    tl.store(OUT + at[:, None].to(tl.int64) * width + col[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    tl.store(PEN + at, over * over, mask=at < rows)
    tl.store(MEAN + at, mean, mask=at < rows)
    tl.store(Z + at, whole, mask=at < rows)


@triton.jit
def _backward(
    G, GP, X, W, MEAN, Z, DX, DW, DB, DPD, DPN, PD, PN, S, rows, width, KD, KN, shift, lo, hi, bound, gain, h, cap,
    push, c, n0, n1, n2, n3, a0, a1, a2, sa, sb,
    EXACT: tl.constexpr, SHARES: tl.constexpr, R: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    at = pid * R + tl.arange(0, R)
    col = tl.arange(0, BW)
    inside = (at < rows)[:, None] & (col < width)[None, :]
    grid = at[:, None].to(tl.int64) * width + col[None, :]
    x = tl.load(X + grid, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(G + grid, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(W + col, mask=col < width, other=0.0)
    centred = tl.where(inside, x - tl.load(MEAN + at, mask=at < rows, other=0.0)[:, None], 0.0)
    whole = tl.load(Z + at, mask=at < rows, other=1.0)
    z = tl.minimum(tl.maximum(whole, lo), hi)
    gw = g * w[None, :]
    gy = tl.sum(gw * centred, 1)
    if EXACT:
        y = gain * tl.rsqrt(z)
        slope = -0.5 * y / z
    else:
        n, d = _start(z, c, n0, n1, n2, n3, sa, sb)
        q = z + c
        seed = sa - sb * q
        numerator = (z * n3 + n2) * (z * z) + (z * n1 + n0)
        n_dot = ((3.0 * n3 * z + 2.0 * n2) * z + n1) * seed - sb * numerator
        r, r_dot = goldschmidt_tangent(n, d, n_dot, seed - sb * q, PD, S, KD, cap)
        first = r + (a2 * z + a1) * z + a0
        half = z * h
        y, slope = newton_tangent(first, half, r_dot + 2.0 * a2 * z + a1, z * 0.0 + h, PN, KN, cap)
        if SHARES:
            newton_shares(first, half, gy, KN, cap, DPN + pid * KN)
            _, by_first = newton_tangent(first, half, z * 0.0 + 1.0, z * 0.0, PN, KN, cap)
            goldschmidt_shares(n, d, gy * by_first, S, KD, cap, DPD + pid * KD)
    dz = tl.where(whole == z, gy * slope, 2.0 * push * (whole - z))
    over = tl.maximum((whole - shift) / width - bound, 0.0)
    dz += tl.load(GP + at, mask=at < rows, other=0.0) * 2.0 * over / width
    dc = gw * y[:, None] + 2.0 * dz[:, None] * centred
    dx = dc - (tl.sum(dc, 1) / width)[:, None]
    tl.store(DX + grid, dx.to(DX.dtype.element_ty), mask=inside)
    tl.store(DW + pid * width + col, tl.sum(g * centred * y[:, None], 0), mask=col < width)
    tl.store(DB + pid * width + col, tl.sum(g, 0), mask=col < width)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, pd: Tensor, pn: Tensor, facts: _Facts) -> Any:
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        out = torch.empty(x.shape, device=x.device, dtype=facts.dtype)
        pen, mean, z = (torch.empty(rows, device=x.device, dtype=torch.float32) for _ in range(3))
        grid = (triton.cdiv(rows, ROWS),)
        _forward[grid](
            x, weight, bias, out, pen, mean, z, pd, pn, facts.schedule, rows, width, pd.shape[0], pn.shape[0],
            *facts.numbers, *facts.seed, EXACT=facts.exact, R=ROWS, BW=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, mean, z, pd, pn)
        ctx.facts = facts
        return out, pen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_pen: Tensor) -> Any:
        x, weight, mean, z, pd, pn = ctx.saved_tensors
        facts: _Facts = ctx.facts
        rows, width = mean.numel(), x.shape[-1]
        blocks = triton.cdiv(rows, ROWS)
        dx = torch.empty_like(x)
        dw, db = (torch.empty((blocks, width), device=x.device, dtype=torch.float32) for _ in range(2))
        shares = ctx.needs_input_grad[3]
        dpd, dpn = (p.new_empty((blocks if shares else 1, p.shape[0])) for p in (pd, pn))
        _backward[(blocks,)](
            g.contiguous(), g_pen.contiguous(), x, weight, mean, z, dx, dw, db, dpd, dpn, pd, pn, facts.schedule,
            rows, width, pd.shape[0], pn.shape[0], *facts.numbers, facts.push, *facts.seed,
            EXACT=facts.exact, SHARES=shares, R=ROWS, BW=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        gradients = (dpd.sum(0), dpn.sum(0)) if shares else (None, None)
        return dx, dw.sum(0), db.sum(0), *gradients, None


class _Facts:
    """Every number of a norm that its kernels take, in their order."""

    def __init__(self, site: NormSite, dtype: torch.dtype, states: int) -> None:
        switch, width = site.switch, site.width
        self.dtype, self.push, self.exact = dtype, switch.push, switch.mode == "exact"
        gain = math.sqrt(width)
        lo, hi = 0.0, 1e30
        self.seed: tuple[float, ...] = (0.0,) * 10
        schedule: tuple[float, ...] = (1.0,)
        if not self.exact:
            fit = site.fitted().fit
            if switch.guards:
                lo, hi = fit.lo, fit.hi
            n, a = fit.seed.p, (0.0, 0.0, 0.0)
            if fit.form != "quotient":
                a0, a1, a2, rest = fit.seed.partial
                n, a = (rest, 0.0, 0.0, 0.0), (a0, a1, a2)
            schedule = fit.denominator.schedule(states - 1)
            line = schedule[0] * fit.denominator.alpha, schedule[0] * fit.denominator.beta
            self.seed = (fit.seed.c, *(gain * v for v in (*n, *a)), *line)
        bound = switch.variance_bound(site.stage.name) if switch.bounds is not None else 1e30
        self.numbers = width * site.stage.eps, lo, hi, bound, gain, 0.5 / (gain * gain), CAP
        self.schedule = on_device(schedule, site.weight.device)


def norm(site: NormSite, x: Tensor) -> Tensor:
    """The norm of the last axis, exact or training, with its range term: what NormSite computes eagerly.

    Domain  float32 or bf16 rows of up to 8192 entries on a GPU.
    Bound   statistics and solvers in float32; the output rounded to autocast's dtype where that is on.
    Depth   none: training only.
    Source  heatfhe.sites.norm, which defines it.
    """
    division, newton = (
        distribution(site.switch, site.table, f"{site.stage.name}/{part}") for part in ("goldschmidt", "newton")
    )
    facts = _Facts(site, narrow(x), division.shape[0])
    out, pen = _Norm.apply(x.contiguous(), site.weight, site.bias, division, newton, facts)
    if site.switch.bounds is not None:
        site.switch.add_term("variance", pen.sum() * (1.0 / pen.numel()))
    result: Tensor = out
    return result
