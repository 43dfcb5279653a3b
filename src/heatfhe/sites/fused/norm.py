# SPDX-License-Identifier: Apache-2.0
"""A whole norm for training on a GPU: statistics, guard, both solvers, product and range term in one kernel.

One read of the row forward, two backward; a norm keeps its input and two numbers per row. The solvers run on one number
per row, in registers, between the two uses of the row. The public first rows of every sequence are exact, and stand in
no range term.
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
# and a quadratic a (one of which is trivial, by the fit's form); sa - sb q seeds the division by q = z + c. T rows make
# a sequence, of which the first ``public`` are open: theirs is the exact root of z as it is, and the solvers run on
# ``home``, a point of the domain, in their stead, with no gradient.


@triton.jit
def _start(z, c, n0, n1, n2, n3, sa, sb):
    """Numerator and denominator the division starts from."""
    q = z + c
    seed = sa - sb * q
    return ((z * n3 + n2) * (z * z) + (z * n1 + n0)) * seed, q * seed


@triton.jit
def _forward(
    X, W, B, OUT, PEN, MEAN, Z, PD, PN, S, rows, width, T, public, KD, KN, shift, lo, hi, home, bound, gain, h, cap,
    c, n0, n1, n2, n3, a0, a1, a2, sa, sb, EXACT: tl.constexpr, CENTRED: tl.constexpr, BIAS: tl.constexpr,
    PUBLIC: tl.constexpr, R: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * R + tl.arange(0, R)
    col = tl.arange(0, BW)
    inside = (at < rows)[:, None] & (col < width)[None, :]
    x = tl.load(X + at[:, None].to(tl.int64) * width + col[None, :], mask=inside, other=0.0).to(tl.float32)
    centred = x
    if CENTRED:
        mean = tl.sum(x, 1) / width
        centred = tl.where(inside, x - mean[:, None], 0.0)
        tl.store(MEAN + at, mean, mask=at < rows)
    squares = tl.sum(centred * centred, 1)
    over = tl.maximum(squares / width - bound, 0.0)
    whole = squares + shift
    z = tl.minimum(tl.maximum(whole, lo), hi)
    if PUBLIC:
        opened = (at % T) < public
        over = tl.where(opened, 0.0, over)
        if not EXACT:
            z = tl.where(opened, home, z)
    if EXACT:
        y = gain * tl.rsqrt(z)
    else:
        n, d = _start(z, c, n0, n1, n2, n3, sa, sb)
        y = goldschmidt_value(n, d, PD, S, KD, cap) + (a2 * z + a1) * z + a0
        y = newton_value(y, z * h, PN, KN, cap)
        if PUBLIC:
            y = tl.where(opened, gain * tl.rsqrt(whole), y)
    w = tl.load(W + col, mask=col < width, other=0.0)
    out = centred * y[:, None] * w[None, :]
    if BIAS:
        out += tl.load(B + col, mask=col < width, other=0.0)[None, :]
    tl.store(OUT + at[:, None].to(tl.int64) * width + col[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    tl.store(PEN + at, over * over, mask=at < rows)
    tl.store(Z + at, whole, mask=at < rows)


@triton.jit
def _backward(
    G, GP, X, W, MEAN, Z, DX, DW, DB, DPD, DPN, PD, PN, S, rows, width, T, public, KD, KN, shift, lo, hi, home, bound,
    gain, h, cap, push, c, n0, n1, n2, n3, a0, a1, a2, sa, sb,
    EXACT: tl.constexpr, SHARES: tl.constexpr, CENTRED: tl.constexpr, BIAS: tl.constexpr, PUBLIC: tl.constexpr,
    R: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    at = pid * R + tl.arange(0, R)
    col = tl.arange(0, BW)
    inside = (at < rows)[:, None] & (col < width)[None, :]
    grid = at[:, None].to(tl.int64) * width + col[None, :]
    x = tl.load(X + grid, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(G + grid, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(W + col, mask=col < width, other=0.0)
    centred = x
    if CENTRED:
        centred = tl.where(inside, x - tl.load(MEAN + at, mask=at < rows, other=0.0)[:, None], 0.0)
    whole = tl.load(Z + at, mask=at < rows, other=1.0)
    z = tl.minimum(tl.maximum(whole, lo), hi)
    gw = g * w[None, :]
    gy = tl.sum(gw * centred, 1)
    own = gy
    if PUBLIC:
        opened = (at % T) < public
        own = tl.where(opened, 0.0, gy)
        if not EXACT:
            z = tl.where(opened, home, z)
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
            newton_shares(first, half, own, KN, cap, DPN + pid * KN)
            _, by_first = newton_tangent(first, half, z * 0.0 + 1.0, z * 0.0, PN, KN, cap)
            goldschmidt_shares(n, d, own * by_first, S, KD, cap, DPD + pid * KD)
    dz = tl.where(whole == z, gy * slope, 2.0 * push * (whole - z))
    over = tl.maximum((whole - shift) / width - bound, 0.0)
    if PUBLIC:
        over = tl.where(opened, 0.0, over)
        if not EXACT:
            y = tl.where(opened, gain * tl.rsqrt(whole), y)
            dz = tl.where(opened, -0.5 * gy * y / whole, dz)
    dz += tl.load(GP + at, mask=at < rows, other=0.0) * 2.0 * over / width
    dc = gw * y[:, None] + 2.0 * dz[:, None] * centred
    dx = dc
    if CENTRED:
        dx = dc - (tl.sum(dc, 1) / width)[:, None]
    tl.store(DX + grid, dx.to(DX.dtype.element_ty), mask=inside)
    tl.store(DW + pid * width + col, tl.sum(g * centred * y[:, None], 0), mask=col < width)
    if BIAS:
        tl.store(DB + pid * width + col, tl.sum(g, 0), mask=col < width)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, pd: Tensor, pn: Tensor, facts: _Facts) -> Any:
        rows, width = x.numel() // x.shape[-1], x.shape[-1]
        out = torch.empty(x.shape, device=x.device, dtype=facts.dtype)
        pen, z = (torch.empty(rows, device=x.device, dtype=torch.float32) for _ in range(2))
        mean = torch.empty_like(z) if facts.options["CENTRED"] else z  # not touched then
        _forward[(triton.cdiv(rows, ROWS),)](
            x, weight, weight if bias is None else bias, out, pen, mean, z, pd, pn, facts.schedule, rows, width,
            x.shape[-2], facts.public, pd.shape[0], pn.shape[0], *facts.numbers, *facts.seed,
            **facts.options, BIAS=bias is not None, R=ROWS, BW=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, mean, z, pd, pn)
        ctx.facts, ctx.bias = facts, bias is not None
        return out, pen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_pen: Tensor) -> Any:
        x, weight, mean, z, pd, pn = ctx.saved_tensors
        facts: _Facts = ctx.facts
        rows, width = z.numel(), x.shape[-1]
        blocks = triton.cdiv(rows, ROWS)
        dx = torch.empty_like(x)
        dw, db = (
            torch.empty((n, width), device=x.device, dtype=torch.float32) for n in (blocks, blocks if ctx.bias else 1)
        )
        shares = ctx.needs_input_grad[3]
        dpd, dpn = (p.new_empty((blocks if shares else 1, p.shape[0])) for p in (pd, pn))
        _backward[(blocks,)](
            g.contiguous(), g_pen.contiguous(), x, weight, mean, z, dx, dw, db, dpd, dpn, pd, pn, facts.schedule,
            rows, width, x.shape[-2], facts.public, pd.shape[0], pn.shape[0], *facts.numbers, facts.push, *facts.seed,
            **facts.options, SHARES=shares, BIAS=ctx.bias, R=ROWS, BW=triton.next_power_of_2(width), num_warps=4,
        )  # fmt: skip
        gradients = (dpd.sum(0), dpn.sum(0)) if shares else (None, None)
        return dx, dw.sum(0), db.sum(0) if ctx.bias else None, *gradients, None


class _Facts:
    """Every number of a norm that its kernels take, in their order."""

    def __init__(self, site: NormSite, dtype: torch.dtype, states: int) -> None:
        switch, width = site.switch, site.width
        self.dtype, self.push, self.public = dtype, switch.push, switch.public
        exact = switch.mode == "exact"
        self.options = {"EXACT": exact, "CENTRED": site.stage.centred, "PUBLIC": switch.public > 0}
        gain = math.sqrt(width)
        lo, hi, home = 0.0, 1e30, 1.0
        self.seed: tuple[float, ...] = (0.0,) * 10
        schedule: tuple[float, ...] = (1.0,)
        if not exact:
            fit = site.fitted().fit
            home = fit.lo
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
        self.numbers = width * site.stage.eps, lo, hi, home, bound, gain, 0.5 / (gain * gain), CAP
        self.schedule = on_device(schedule, site.weight.device)


def norm(site: NormSite, x: Tensor) -> Tensor:
    """The norm of the last axis, exact or training, with its range term: what NormSite computes eagerly.

    Domain  float32 or bf16 rows (..., T, d) of up to 8192 entries on a GPU, the first of every T public or none.
    Bound   statistics and solvers in float32; the output rounded to autocast's dtype where that is on.
    Depth   none: training only.
    Source  heatfhe.sites.norm, which defines it.
    """
    switch, length = site.switch, x.shape[-2]
    division, newton = (
        distribution(switch, site.table, f"{site.stage.name}/{part}") for part in ("goldschmidt", "newton")
    )
    facts = _Facts(site, narrow(x), division.shape[0])
    out, pen = _Norm.apply(x.contiguous(), site.weight, site.bias, division, newton, facts)
    if switch.bounds is not None:
        switch.add_term("variance", pen.sum() * (1.0 / (pen.numel() // length * (length - switch.public))))
    result: Tensor = out
    return result
