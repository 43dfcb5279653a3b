# SPDX-License-Identifier: Apache-2.0
"""Attention for training on a GPU in one sweep over the scores, which are never stored.

With delta_2 = 2 the approximated row is e^2 r1^2 r2 with r1 from S1 = sum e and r2 from S2 = sum e^2 (e = exp of half
the shifted score). One flash-style pass accumulates S1, S2, the largest |score| for the squeeze, and A = sum e^2 v; no
row maximum is needed, because the guard bounds every exponent. The solvers then act on one number per row, in
registers, and the output is A r1^2 r2 / length. It is read from and written to the projections' own layout. The first
``public`` rows of a sequence are exact, under a maximum that moves with the sweep, and stand in no range term.

Backward, the factors of a row come first (heatfhe.sites.fused.rows), then two sweeps recompute the scores block by
block, one for keys and values (a program walks every head that shares them), one for queries.

Shapes: B sequences, H heads, K heads of keys and values, each for ``SHARED`` of the H, T rows and columns, D head width
(16, 32, 64 or 128); queries (B, T, H D), keys and values (B, T, K D), or all of them joined (B, T, (H + 2 K) D).
Float32 inputs are multiplied as float32 (ieee), not rounded to tf32.
Versions tried: 1 two passes of torch's flex_attention (S1 needs a sweep of its own); 2 a single sweep on contiguous
copies of q, k and v, with the solvers outside; 3 this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from heatfhe.halting import shared
from heatfhe.halting.fused import CAP, on_device
from heatfhe.sites.fused.distribution import distribution, narrow
from heatfhe.sites.fused.rotary import turn
from heatfhe.sites.fused.rows import multiplier, row_factors

if TYPE_CHECKING:
    from heatfhe.approx import ReciprocalFit
    from heatfhe.sites.attention import AttentionSite

BLOCK = 64


@triton.jit
def _scores(q, k, scale, lo, hi, offs_m, public, PUBLIC: tl.constexpr):
    """Raw scores of a block, and clamped except in public rows."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    c = tl.minimum(tl.maximum(s, lo), hi)
    if PUBLIC:
        c = tl.where((offs_m < public)[:, None], s, c)
    return s, c


@triton.jit
def _half(c, mid):
    """exp of half the shifted score; the constant is log2(e) / 2."""
    return tl.exp2((c - mid[:, None]) * 0.7213475204444817)


@triton.jit
def _rows_of(P, offs, stride, D: tl.constexpr, inside):
    """A block of rows, zero outside."""
    return tl.load(P + offs[:, None] * stride + tl.arange(0, D)[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _forward(
    Q, K, V, OUT, S1, S2, WIDE, MID, PEN, PEN_S, PI, PR, SI, SR, KI, KR, scale, lo, hi, midpoint, hi1, hi2, i_a, i_b,
    r_a, r_b, bound, bound_s, cap, T, H, stride_q, stride_kv, public,
    SHARED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EXACT: tl.constexpr, PUBLIC: tl.constexpr,
):  # fmt: skip
    start, bh = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    offs_m = start + tl.arange(0, M)
    home = (bh // H) * T * stride_kv + (bh % H) // SHARED * D
    rows = offs_m < T
    q = _rows_of(Q + (bh // H) * T * stride_q + (bh % H) * D, offs_m, stride_q, D, rows)
    acc = tl.zeros([M, D], dtype=tl.float32)
    s1 = tl.zeros([M], dtype=tl.float32)
    s2 = tl.zeros([M], dtype=tl.float32)
    widest = tl.zeros([M], dtype=tl.float32)
    mid = tl.zeros([M], dtype=tl.float32) + midpoint
    if EXACT:
        mid = tl.zeros([M], dtype=tl.float32) - 1e30
    opened = offs_m < public
    if PUBLIC:
        mid = tl.where(opened, -1e30, mid)
    for n in range(0, start + M, N):  # columns past T are masked
        offs_n = n + tl.arange(0, N)
        inside = offs_n < T
        k = _rows_of(K + home, offs_n, stride_kv, D, inside)
        v = _rows_of(V + home, offs_n, stride_kv, D, inside)
        s, c = _scores(q, k, scale, lo, hi, offs_m, public, PUBLIC)
        keep = (offs_m[:, None] >= offs_n[None, :]) & inside[None, :]
        if EXACT or PUBLIC:
            top = tl.maximum(mid, tl.max(tl.where(keep, c, -1e30), 1))
            if not EXACT:
                top = tl.where(opened, top, mid)
            shrink = tl.exp2((mid - top) * 0.7213475204444817)
            s1, s2, acc, mid = s1 * shrink, s2 * shrink * shrink, acc * (shrink * shrink)[:, None], top
        e = tl.where(keep, _half(c, mid), 0.0)
        e2 = e * e
        s1 += tl.sum(e, 1)
        s2 += tl.sum(e2, 1)
        widest = tl.maximum(widest, tl.max(tl.where(keep, tl.abs(s), 0.0), 1))
        acc += tl.dot(e2.to(v.dtype), v, input_precision="ieee")
    s2 = tl.where(rows, s2, 1.0)
    s1 = tl.where(rows, s1, 1.0)
    factor = 1.0 / s2
    length = (offs_m + 1).to(tl.float32)
    if not EXACT:
        if PUBLIC:
            m1, m2 = tl.where(opened, 0.0, s1), tl.where(opened, 0.0, s2)
            f = multiplier(m1, m2, length, PI, PR, SI, SR, KI, KR, hi1, hi2, i_a, i_b, r_a, r_b, cap)
            factor *= tl.where(opened, 1.0, f)
        else:
            factor *= multiplier(s1, s2, length, PI, PR, SI, SR, KI, KR, hi1, hi2, i_a, i_b, r_a, r_b, cap)
    over = tl.maximum(tl.log(s1 / length) + 0.5 * mid - bound_s, 0.0)
    wide_over = tl.maximum(widest - bound, 0.0)
    if PUBLIC:
        over, wide_over = tl.where(opened, 0.0, over), tl.where(opened, 0.0, wide_over)
    out = (acc * factor[:, None]).to(OUT.dtype.element_ty)
    to = OUT + (bh // H) * T * H * D + (bh % H) * D
    tl.store(to + offs_m[:, None] * (H * D) + tl.arange(0, D)[None, :], out, mask=rows[:, None])
    at = bh * T + offs_m
    tl.store(PEN + at, wide_over * wide_over, mask=rows)
    tl.store(PEN_S + at, over * over, mask=rows)
    tl.store(S1 + at, s1, mask=rows)
    tl.store(S2 + at, s2, mask=rows)
    tl.store(WIDE + at, widest, mask=rows)
    tl.store(MID + at, mid, mask=rows)


@triton.jit
def _score_gradient(s, c, e, keep, dp, by_p, by_s2, by_s1, by_wide, widest, push):
    """dL/ds of a block: through the output and both sums inside the guard, push-back outside, the largest score."""
    ds = e * (e * (by_p[:, None] * dp + by_s2[:, None]) + by_s1[:, None])
    ds = tl.where(s == c, ds, 2.0 * push * (s - c))
    ds += tl.where(tl.abs(s) >= widest[:, None] * (1.0 - 1e-6), tl.where(s >= 0, 1.0, -1.0) * by_wide[:, None], 0.0)
    return tl.where(keep, ds, 0.0)


@triton.jit
def _backward_kv(
    Q, K, V, G, DQ, DK, DV, MID, WIDE, BY_P, BY_S2, BY_S1, BY_WIDE, scale, lo, hi, push, T, H, stride_q, stride_kv,
    public, SHARED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PUBLIC: tl.constexpr,
):  # fmt: skip
    start, bk = tl.program_id(0) * N, tl.program_id(1).to(tl.int64)
    offs_n = start + tl.arange(0, N)
    kept = H // SHARED
    batch = bk // kept
    home = batch * T * stride_kv + (bk % kept) * D
    inside = offs_n < T
    k = _rows_of(K + home, offs_n, stride_kv, D, inside)
    v = _rows_of(V + home, offs_n, stride_kv, D, inside)
    dk = tl.zeros([N, D], dtype=tl.float32)
    dv = tl.zeros([N, D], dtype=tl.float32)
    for j in range(SHARED):
        head = (bk % kept) * SHARED + j
        q_base = Q + batch * T * stride_q + head * D
        g_base = G + batch * T * H * D + head * D
        for m in range((start // M) * M, T, M):
            offs_m = m + tl.arange(0, M)
            rows = offs_m < T
            q = _rows_of(q_base, offs_m, stride_q, D, rows)
            g = _rows_of(g_base, offs_m, H * D, D, rows)
            at = (batch * H + head) * T + offs_m
            mid = tl.load(MID + at, mask=rows, other=0.0)
            by_p = tl.load(BY_P + at, mask=rows, other=0.0)
            by_s2 = tl.load(BY_S2 + at, mask=rows, other=0.0)
            by_s1 = tl.load(BY_S1 + at, mask=rows, other=0.0)
            by_wide = tl.load(BY_WIDE + at, mask=rows, other=0.0)
            widest = tl.load(WIDE + at, mask=rows, other=1e30)
            s, c = _scores(q, k, scale, lo, hi, offs_m, public, PUBLIC)
            keep = (offs_m[:, None] >= offs_n[None, :]) & rows[:, None]
            e = tl.where(keep, _half(c, mid), 0.0)
            dv += tl.dot(tl.trans((e * e * by_p[:, None]).to(g.dtype)), g, input_precision="ieee")
            dp = tl.dot(g, tl.trans(v), input_precision="ieee")
            ds = _score_gradient(s, c, e, keep, dp, by_p, by_s2, by_s1, by_wide, widest, push)
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
    grid = offs_n[:, None] * stride_kv + tl.arange(0, D)[None, :]
    tl.store(DK + home + grid, (dk * scale).to(DK.dtype.element_ty), mask=inside[:, None])
    tl.store(DV + home + grid, dv.to(DV.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _backward_q(
    Q, K, V, G, DQ, DK, DV, MID, WIDE, BY_P, BY_S2, BY_S1, BY_WIDE, scale, lo, hi, push, T, H, stride_q, stride_kv,
    public, SHARED: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PUBLIC: tl.constexpr,
):  # fmt: skip
    start, bh = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    offs_m = start + tl.arange(0, M)
    home = (bh // H) * T * stride_kv + (bh % H) // SHARED * D
    here = (bh // H) * T * stride_q + (bh % H) * D
    rows = offs_m < T
    q = _rows_of(Q + here, offs_m, stride_q, D, rows)
    g = _rows_of(G + (bh // H) * T * H * D + (bh % H) * D, offs_m, H * D, D, rows)
    at = bh * T + offs_m
    mid = tl.load(MID + at, mask=rows, other=0.0)
    by_p = tl.load(BY_P + at, mask=rows, other=0.0)
    by_s2 = tl.load(BY_S2 + at, mask=rows, other=0.0)
    by_s1 = tl.load(BY_S1 + at, mask=rows, other=0.0)
    by_wide = tl.load(BY_WIDE + at, mask=rows, other=0.0)
    widest = tl.load(WIDE + at, mask=rows, other=1e30)
    dq = tl.zeros([M, D], dtype=tl.float32)
    for n in range(0, start + M, N):  # columns past T are masked
        offs_n = n + tl.arange(0, N)
        inside = offs_n < T
        k = _rows_of(K + home, offs_n, stride_kv, D, inside)
        v = _rows_of(V + home, offs_n, stride_kv, D, inside)
        s, c = _scores(q, k, scale, lo, hi, offs_m, public, PUBLIC)
        keep = (offs_m[:, None] >= offs_n[None, :]) & inside[None, :]
        e = tl.where(keep, _half(c, mid), 0.0)
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        ds = _score_gradient(s, c, e, keep, dp, by_p, by_s2, by_s1, by_wide, widest, push)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    grid = offs_m[:, None] * stride_q + tl.arange(0, D)[None, :]
    tl.store(DQ + here + grid, (dq * scale).to(DQ.dtype.element_ty), mask=rows[:, None])


@dataclass(frozen=True, slots=True)
class _Facts:
    """Every number of an attention that its kernels take."""

    heads: int
    shared: int  # heads that each key and value serves
    width: int  # of a head
    scale: float
    public: int
    exact: bool
    interval: tuple[float, float, float]  # lo, hi, midpoint of the scores
    lines: tuple[float, ...]  # upper guards of both sums, then alpha and beta of both seeds
    bounds: tuple[float, float]  # where the range terms of scores and of log sums begin
    push: float
    schedules: tuple[Tensor, Tensor]

    def parts(self, given: Sequence[Tensor | None]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values: those given, or views of the joined one."""
        q, k, v = given
        assert q is not None
        if k is not None and v is not None:
            return q, k, v
        own, kept = self.heads * self.width, self.heads // self.shared * self.width
        return q, q[..., own:], q[..., own + kept :]

    def sizes(self, given: Sequence[Tensor | None]) -> tuple[int, ...]:
        """Rows, heads, how far apart rows of queries and of keys stand, and the public rows."""
        q, k, *_ = given
        assert q is not None
        return q.shape[1], self.heads, q.shape[-1], q.shape[-1] if k is None else k.shape[-1], self.public

    @property
    def options(self) -> dict[str, int | bool]:
        """What the kernels of a sweep are compiled for."""
        return {"SHARED": self.shared, "D": self.width, "M": BLOCK, "N": BLOCK, "PUBLIC": self.public > 0}


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor | None, values: Tensor | None, init: Tensor, refine: Tensor, facts: _Facts
    ) -> Any:
        _, k, v = facts.parts((q, keys, values))
        (b, t, _), h = q.shape, facts.heads
        out = q.new_empty((b, t, h * facts.width))
        rows = [torch.empty((b, h, t), device=q.device, dtype=torch.float32) for _ in range(6)]
        s1, s2, wide, mid, pen, pen_s = rows
        _forward[(triton.cdiv(t, BLOCK), b * h)](
            q, k, v, out, s1, s2, wide, mid, pen, pen_s, init, refine, *facts.schedules, init.shape[0], refine.shape[0],
            facts.scale, *facts.interval, *facts.lines, *facts.bounds, CAP, *facts.sizes((q, keys)),
            **facts.options, EXACT=facts.exact, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(q, keys, values, out, s1, s2, wide, mid, init, refine)
        ctx.facts = facts
        return out, pen, pen_s

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, g_pen: Tensor, g_pen_s: Tensor) -> Any:
        *given, out, s1, s2, wide, mid, init, refine = ctx.saved_tensors
        facts: _Facts = ctx.facts
        b, h, t = s1.shape
        g = g.contiguous()
        shares = ctx.needs_input_grad[3]
        factors, d_init, d_refine = row_factors(
            out, g, s1, s2, mid, wide, g_pen.contiguous(), g_pen_s.contiguous(), init, refine, facts.schedules,
            facts.lines, facts.bounds, facts.push, facts.public, exact=facts.exact, shares=shares,
        )  # fmt: skip
        bars = [None if part is None else torch.empty_like(part) for part in given]
        q, k, v = facts.parts(given)
        sweep = (
            q, k, v, g, *facts.parts(bars), mid, wide, *factors, facts.scale, *facts.interval[:2], facts.push,
            *facts.sizes(given),
        )  # fmt: skip
        blocks = triton.cdiv(t, BLOCK)
        _backward_kv[(blocks, b * h // facts.shared)](*sweep, **facts.options, num_warps=4)
        _backward_q[(blocks, b * h)](*sweep, **facts.options, num_warps=4)
        return *bars, d_init, d_refine, None


def supports(site: AttentionSite, made: Sequence[Tensor]) -> bool:
    """Whether this forward can run here: causal, one refinement pass in training or exact range terms."""
    stage = site.stage
    if not stage.causal or site.head_width(made) not in (16, 32, 64, 128):
        return False
    bounds = site.switch.bounds
    if site.switch.mode == "exact":  # unbounded: torch's own flash attention
        return not site.switch.guards and bounds is not None and bounds.divisor == 2
    return site.fitted().fit.delta_2 == 2


def attend(site: AttentionSite, made: Sequence[Tensor]) -> Tensor:
    """Attention output (B, T, H D) from the projections, one joined or three, exact or training, with range terms.

    Domain  scores clamped to the fitted interval while training; the clamp's gradient outside is 2 push excess.
            Public rows are exact.
    Bound   as a flash kernel in the inputs' dtype: products rounded to it, sums and solvers in float32.
    Depth   none: training only.
    Source  heatfhe.sites.attention, which defines it; flash attention (Dao 2023) for the blocking.
    """
    switch, stage, name = site.switch, site.stage, site.stage.name
    width, device, length = site.head_width(made), made[0].device, made[0].shape[1]
    exact = switch.mode == "exact"
    init, refine = (distribution(switch, site.table, f"{name}/{part}") for part in ("init", "refine"))
    interval, lines = (-1e30, 1e30, 0.0), (1e30, 1e30, 0.0, 0.0, 0.0, 0.0)
    schedules = on_device((1.0,), device), on_device((1.0,), device)
    if not exact:
        fit = site.fitted().fit
        second = fit.refine if fit.refine is not None else fit.init
        guards = (1e30, 1e30)
        interval = (-1e30, 1e30, fit.midpoint)
        if switch.guards:
            interval, guards = (fit.lo, fit.hi, fit.midpoint), site.ends(length)
        (first_line, first), (second_line, last) = _seed(fit.init, init), _seed(second, refine)
        init = shared(fit.init, init)
        lines, schedules = (*guards, *first_line, *second_line), (first, last)
    bounds = switch.bounds
    facts = _Facts(
        heads=stage.heads, shared=stage.shared, width=width, public=switch.public, exact=exact, interval=interval,
        scale=1 / math.sqrt(width) if stage.scale is None else stage.scale, lines=lines, push=switch.push,
        schedules=schedules, bounds=(1e30, 1e30) if bounds is None else (bounds.score, bounds.denominator),
    )  # fmt: skip
    given = [part.to(narrow(part)) for part in made]
    if stage.rotary is not None and len(given) == 1:
        given = list(given[0].split(stage.widths(width), dim=-1))
    given = [part.contiguous() for part in given]
    if stage.rotary is not None:
        cosine, sine = site.angles(width, length, device, torch.float32)
        given[:2] = turn(given[0], given[1], cosine, sine)
    q, k, v = given if len(given) == 3 else (given[0], None, None)
    out, pen, pen_s = _Attend.apply(q, k, v, init, refine, facts)
    if bounds is not None:
        counted = pen.numel() // length * (length - switch.public)
        switch.add_term("score", pen.sum() * (1.0 / counted))
        switch.add_term("denominator", pen_s.sum() * (facts.heads / counted))
    result: Tensor = out
    return result


def _seed(fit: ReciprocalFit, chances: Tensor) -> tuple[tuple[float, float], Tensor]:
    """alpha and beta of the seed, scaled for the schedule, and the schedule on the device."""
    schedule = fit.schedule(chances.shape[0] - 1)
    return (schedule[0] * fit.alpha, schedule[0] * fit.beta), on_device(schedule, chances.device)
