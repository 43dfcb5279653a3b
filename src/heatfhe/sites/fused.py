# SPDX-License-Identifier: Apache-2.0
"""Attention for training on a GPU in one sweep over the scores, which are never stored.

With delta_2 = 2 the approximated row is e^2 r1^2 r2 with r1 from S1 = sum e and r2 from S2 = sum e^2 (e = exp of half
the shifted score). One flash-style pass accumulates S1, S2, the largest |score| for the squeeze, and
O = sum e^2 v / S2; no row maximum is needed, because the guard bounds every exponent. Solvers then act on one number
per row, outside the kernel, and scale O. The backward pass recomputes the scores block by block.

Shapes: B sequences, H heads, T rows and columns, e head width (16, 32, 64 or 128).
Versions tried: 1 two passes of torch's flex_attention (S1 needs a sweep of its own); 2 this single sweep.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from heatfhe.sites.attention import AttentionSite

BLOCK = 64


def supports(site: AttentionSite, q: Tensor) -> bool:
    """Whether this forward can run here: training with one refinement pass, or exact with range terms."""
    if site.switch.mode == "deployed" or q.shape[-1] not in (16, 32, 64, 128):
        return False
    if site.switch.mode == "exact":
        return not site.switch.guards
    return site.fitted().fit.delta_2 == 2


def attend(site: AttentionSite, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention output (B, H, T, e), through the sites' solvers when training, exactly when the mode is exact."""
    switch = site.switch
    rows = q.shape[-2]
    exact = switch.mode == "exact"
    guarded = switch.guards and not exact
    lo, hi, midpoint = -1e30, 1e30, 0.0
    if not exact:
        fit = site.fitted().fit
        midpoint = fit.midpoint
        if guarded:
            lo, hi = fit.lo, fit.hi
    narrow = (
        q.dtype
        if q.dtype in (torch.bfloat16, torch.float16)
        else torch.bfloat16
        if torch.is_autocast_enabled()
        else q.dtype
    )
    q, k, v = (x.to(narrow).contiguous() for x in (q, k, v))
    out, s1, s2, largest, _ = sweep(q, k, v, lo, hi, midpoint, switch.push if guarded else 0.0, exact)
    if switch.bounds is not None:
        bound = switch.bounds.score
        switch.add_term("score", torch.relu(largest - bound).square().mean())
    if exact:
        return out
    length = torch.arange(1, rows + 1, device=q.device, dtype=torch.float32)[:, None]
    init, refine = site.solvers(length, s1)
    r1 = init(s1[..., None])
    r2 = refine(r1 * r1 * s2[..., None])
    return out * (s2[..., None] * r1 * r1 * r2 / length).to(out.dtype)


@triton.jit
def _scores(q, k, scale, lo, hi, offs_m, offs_n, T):
    """Raw score, clamped score, and which entries the causal mask keeps."""
    s = tl.dot(q, tl.trans(k)) * scale
    keep = (offs_m[:, None] >= offs_n[None, :]) & (offs_n[None, :] < T)
    return s, tl.minimum(tl.maximum(s, lo), hi), keep


@triton.jit
def _half(c, mid, keep):
    """exp of half the shifted score, zero where masked; the constant is log2(e) / 2."""
    return tl.where(keep, tl.exp2((c - mid[:, None]) * 0.7213475204444817), 0.0)


@triton.jit
def _forward(
    Q, K, V, O, S1, S2, A, MID, scale, lo, hi, midpoint, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, ONLINE: tl.constexpr,
):  # fmt: skip
    start, bh = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    offs_m, offs_d = start + tl.arange(0, M), tl.arange(0, D)
    base = bh * T * D
    rows = offs_m < T
    q = tl.load(Q + base + offs_m[:, None] * D + offs_d[None, :], mask=rows[:, None], other=0.0)
    acc = tl.zeros([M, D], dtype=tl.float32)
    s1 = tl.zeros([M], dtype=tl.float32)
    s2 = tl.zeros([M], dtype=tl.float32)
    widest = tl.zeros([M], dtype=tl.float32)
    mid = tl.zeros([M], dtype=tl.float32) + midpoint
    if ONLINE:
        mid = tl.zeros([M], dtype=tl.float32) - 1e30
    for n in range(0, start + M, N):  # columns past T are masked
        offs_n = n + tl.arange(0, N)
        inside = offs_n < T
        k = tl.load(K + base + offs_n[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(V + base + offs_n[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
        s, c, keep = _scores(q, k, scale, lo, hi, offs_m, offs_n, T)
        if ONLINE:
            top = tl.maximum(mid, tl.max(tl.where(keep, c, -1e30), 1))
            shrink = tl.exp2((mid - top) * 0.7213475204444817)
            s1, s2, acc, mid = s1 * shrink, s2 * shrink * shrink, acc * (shrink * shrink)[:, None], top
        e = _half(c, mid, keep)
        e2 = e * e
        s1 += tl.sum(e, 1)
        s2 += tl.sum(e2, 1)
        widest = tl.maximum(widest, tl.max(tl.where(keep, tl.abs(s), 0.0), 1))
        acc += tl.dot(e2.to(v.dtype), v)
    tl.store(
        O + base + offs_m[:, None] * D + offs_d[None, :], (acc / s2[:, None]).to(O.dtype.element_ty), mask=rows[:, None]
    )
    tl.store(S1 + bh * T + offs_m, s1, mask=rows)
    tl.store(S2 + bh * T + offs_m, s2, mask=rows)
    tl.store(A + bh * T + offs_m, widest, mask=rows)
    tl.store(MID + bh * T + offs_m, mid, mask=rows)


@triton.jit
def _score_gradient(s, c, e, keep, do, v, delta, s2, g1, g2, ga, widest, push):
    """dL/ds of one block: through O, S1, S2 inside the guard; the push-back outside; the row's largest score."""
    e2 = e * e
    dp = tl.dot(do, tl.trans(v))
    ds = e2 / s2[:, None] * (dp - delta[:, None]) + g2[:, None] * e2 + 0.5 * g1[:, None] * e
    ds = tl.where(s == c, ds, 2.0 * push * (s - c))
    ds += tl.where(tl.abs(s) >= widest[:, None] * (1.0 - 1e-6), ga[:, None] * tl.where(s >= 0, 1.0, -1.0), 0.0)
    return tl.where(keep, ds, 0.0), e2


@triton.jit
def _backward_kv(
    Q, K, V, DO, DK, DV, DELTA, S2, MID, WIDE, G1, G2, GA, scale, lo, hi, push, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    start, bh = tl.program_id(0) * N, tl.program_id(1).to(tl.int64)
    offs_n, offs_d = start + tl.arange(0, N), tl.arange(0, D)
    base = bh * T * D
    inside = offs_n < T
    k = tl.load(K + base + offs_n[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
    v = tl.load(V + base + offs_n[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
    dk = tl.zeros([N, D], dtype=tl.float32)
    dv = tl.zeros([N, D], dtype=tl.float32)
    for m in range((start // M) * M, T, M):
        offs_m = m + tl.arange(0, M)
        rows = offs_m < T
        q = tl.load(Q + base + offs_m[:, None] * D + offs_d[None, :], mask=rows[:, None], other=0.0)
        do = tl.load(DO + base + offs_m[:, None] * D + offs_d[None, :], mask=rows[:, None], other=0.0)
        at = bh * T + offs_m
        s2 = tl.load(S2 + at, mask=rows, other=1.0)
        mid = tl.load(MID + at, mask=rows, other=0.0)
        delta = tl.load(DELTA + at, mask=rows, other=0.0)
        g1 = tl.load(G1 + at, mask=rows, other=0.0)
        g2 = tl.load(G2 + at, mask=rows, other=0.0)
        ga = tl.load(GA + at, mask=rows, other=0.0)
        widest = tl.load(WIDE + at, mask=rows, other=1e30)
        s, c, keep = _scores(q, k, scale, lo, hi, offs_m, offs_n, T)
        keep = keep & rows[:, None]
        e = _half(c, mid, keep)
        ds, e2 = _score_gradient(s, c, e, keep, do, v, delta, s2, g1, g2, ga, widest, push)
        p = tl.where(keep, e2 / s2[:, None], 0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do)
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q)
    tl.store(
        DK + base + offs_n[:, None] * D + offs_d[None, :], (dk * scale).to(DK.dtype.element_ty), mask=inside[:, None]
    )
    tl.store(DV + base + offs_n[:, None] * D + offs_d[None, :], dv.to(DV.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _backward_q(
    Q, K, V, DO, DQ, DELTA, S2, MID, WIDE, G1, G2, GA, scale, lo, hi, push, T,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    start, bh = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    offs_m, offs_d = start + tl.arange(0, M), tl.arange(0, D)
    base = bh * T * D
    rows = offs_m < T
    q = tl.load(Q + base + offs_m[:, None] * D + offs_d[None, :], mask=rows[:, None], other=0.0)
    do = tl.load(DO + base + offs_m[:, None] * D + offs_d[None, :], mask=rows[:, None], other=0.0)
    at = bh * T + offs_m
    s2 = tl.load(S2 + at, mask=rows, other=1.0)
    mid = tl.load(MID + at, mask=rows, other=0.0)
    delta = tl.load(DELTA + at, mask=rows, other=0.0)
    g1 = tl.load(G1 + at, mask=rows, other=0.0)
    g2 = tl.load(G2 + at, mask=rows, other=0.0)
    ga = tl.load(GA + at, mask=rows, other=0.0)
    widest = tl.load(WIDE + at, mask=rows, other=1e30)
    dq = tl.zeros([M, D], dtype=tl.float32)
    for n in range(0, start + M, N):  # columns past T are masked
        offs_n = n + tl.arange(0, N)
        inside = offs_n < T
        k = tl.load(K + base + offs_n[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(V + base + offs_n[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
        s, c, keep = _scores(q, k, scale, lo, hi, offs_m, offs_n, T)
        e = _half(c, mid, keep)
        ds, _ = _score_gradient(s, c, e, keep, do, v, delta, s2, g1, g2, ga, widest, push)
        dq += tl.dot(ds.to(k.dtype), k)
    tl.store(
        DQ + base + offs_m[:, None] * D + offs_d[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=rows[:, None]
    )


@torch.library.custom_op("heatfhe::sweep", mutates_args=())
def sweep(
    q: Tensor, k: Tensor, v: Tensor, lo: float, hi: float, midpoint: float, push: float, online: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(O, S1, S2, largest |score|, shift): O = sum e^2 v / S2 over the causal columns, and row sums in float32.

    The shift is the midpoint, or with ``online`` the row's running maximum: unbounded scores, sums not to be used.

    Domain  scores clamped to [lo, hi]; the clamp's gradient outside is 2 push (score - clamp).
    Bound   as a flash kernel in the inputs' dtype: products rounded to it, sums in float32.
    Depth   none: training only.
    Source  the single-pass identity of docs/theory.md; flash attention (Dao 2023) for the blocking.
    """
    b, h, t, d = q.shape
    out = torch.empty_like(q)
    s1, s2, widest, mid = (torch.empty((b, h, t), device=q.device, dtype=torch.float32) for _ in range(4))
    grid = (triton.cdiv(t, BLOCK), b * h)
    _forward[grid](
        q, k, v, out, s1, s2, widest, mid, 1 / math.sqrt(d), lo, hi, midpoint, t,
        D=d, M=BLOCK, N=BLOCK, ONLINE=online, num_warps=4,
    )  # fmt: skip
    return out, s1, s2, widest, mid


@sweep.register_fake
def _(q: Tensor, *_: Any) -> Any:
    return torch.empty_like(q), *(q.new_empty(q.shape[:-1], dtype=torch.float32) for _ in range(4))


@torch.library.custom_op("heatfhe::sweep_backward", mutates_args=())
def sweep_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, s2: Tensor, mid: Tensor, widest: Tensor, do: Tensor,
    g1: Tensor, g2: Tensor, ga: Tensor, lo: float, hi: float, push: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v from those of O and the three row sums."""
    b, h, t, d = q.shape
    do = do.to(q.dtype).contiguous()
    g1, g2, ga = (g.float().contiguous() for g in (g1, g2, ga))
    delta = (do.float() * out.float()).sum(-1)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    grid = (triton.cdiv(t, BLOCK), b * h)
    shared = (delta, s2, mid, widest, g1, g2, ga, 1 / math.sqrt(d), lo, hi, push, t)
    _backward_kv[grid](q, k, v, do, dk, dv, *shared, D=d, M=BLOCK, N=BLOCK, num_warps=4)
    _backward_q[grid](q, k, v, do, dq, *shared, D=d, M=BLOCK, N=BLOCK, num_warps=4)
    return dq, dk, dv


@sweep_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, lo, hi, _midpoint, push, _online = inputs
    ctx.constants = lo, hi, push
    out, _s1, s2, widest, mid = output
    ctx.save_for_backward(q, k, v, out, s2, mid, widest)


def _backward(ctx: Any, do: Tensor, g1: Tensor, g2: Tensor, ga: Tensor, _shift: Tensor) -> tuple[Any, ...]:
    q, k, v, out, s2, mid, widest = ctx.saved_tensors
    dq, dk, dv = sweep_backward(q, k, v, out, s2, mid, widest, do, g1, g2, ga, *ctx.constants)
    return dq, dk, dv, None, None, None, None, None


sweep.register_autograd(_backward, setup_context=_setup)
