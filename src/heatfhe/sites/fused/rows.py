# SPDX-License-Identifier: Apache-2.0
"""What the solvers make of an attention row's two sums: its factor, and how a gradient passes back through it.

Legend: m1 = S1 / length and m2 = r1^2 S2 / length, each guarded from above; r1 and r2 their expected reciprocals;
the row's factor f = S2 r1^2 r2 / length multiplies the average O = A / S2, so that out = f O. ``mid`` is what was taken
from a row's scores: the midpoint, or in an exact row its largest. The first ``public`` rows are exact whatever the
others are, and stand in no range term; both sums are 0 to their solvers, which no gradient reaches.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from heatfhe.halting.fused import CAP, goldschmidt_shares, goldschmidt_tangent, goldschmidt_value

BLOCK = 64


@triton.jit
def _reciprocal(x, P, S, K, a, b, cap):
    seed = a - b * x
    return goldschmidt_value(seed, x * seed, P, S, K, cap)


@triton.jit
def _reciprocal_tangent(x, P, S, K, a, b, cap):
    """1 / x and its derivative."""
    seed = a - b * x
    return goldschmidt_tangent(seed, x * seed, x * 0.0 - b, a - 2.0 * b * x, P, S, K, cap)


@triton.jit
def multiplier(s1, s2, length, PI, PR, SI, SR, KI, KR, hi1, hi2, i_a, i_b, r_a, r_b, cap):
    """The row's factor f."""
    r1 = _reciprocal(tl.minimum(s1 / length, hi1), PI, SI, KI, i_a, i_b, cap)
    m2 = r1 * r1 * s2 / length
    return m2 * _reciprocal(tl.minimum(m2, hi2), PR, SR, KR, r_a, r_b, cap)


@triton.jit
def _factors(
    OUT, G, S1, S2, MID, WIDE, GP, GPS, PI, PR, SI, SR, BY_P, BY_S2, BY_S1, BY_WIDE, DPI, DPR, KI, KR,
    hi1, hi2, i_a, i_b, r_a, r_b, bound, bound_s, push, cap, T, H, public,
    D: tl.constexpr, M: tl.constexpr, EXACT: tl.constexpr, PUBLIC: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    offs = tl.program_id(0) * M + tl.arange(0, M)
    rows = offs < T
    grid = (bh // H) * T * H * D + (bh % H) * D + offs[:, None] * (H * D) + tl.arange(0, D)[None, :]
    out = tl.load(OUT + grid, mask=rows[:, None], other=0.0).to(tl.float32)
    g = tl.load(G + grid, mask=rows[:, None], other=0.0).to(tl.float32)
    through = tl.sum(out * g, 1)  # f times dL/df
    at = bh * T + offs
    s1 = tl.load(S1 + at, mask=rows, other=1.0)
    s2 = tl.load(S2 + at, mask=rows, other=1.0)
    widest = tl.load(WIDE + at, mask=rows, other=0.0)
    by_wide = tl.load(GP + at, mask=rows, other=0.0) * 2.0 * tl.maximum(widest - bound, 0.0)
    m1 = s1 / (offs + 1).to(tl.float32)
    over = tl.maximum(tl.log(m1) + 0.5 * tl.load(MID + at, mask=rows, other=0.0) - bound_s, 0.0)
    g_log = tl.load(GPS + at, mask=rows, other=0.0) * 2.0 * over
    own = rows
    if PUBLIC:
        own = rows & (offs >= public)
        by_wide, g_log = tl.where(own, by_wide, 0.0), tl.where(own, g_log, 0.0)
    tl.store(BY_WIDE + at, by_wide, mask=rows)
    if EXACT:
        tl.store(BY_P + at, 1.0 / s2, mask=rows)
        tl.store(BY_S2 + at, -through / s2, mask=rows)
        tl.store(BY_S1 + at, 0.5 * g_log / s1, mask=rows)
    else:
        length = (offs + 1).to(tl.float32)
        x1, squares = tl.minimum(m1, hi1), s2
        if PUBLIC:
            x1, squares = tl.where(own, x1, 0.0), tl.where(own, s2, 0.0)
        r1, slope1 = _reciprocal_tangent(x1, PI, SI, KI, i_a, i_b, cap)
        m2 = r1 * r1 * squares / length
        r2, slope2 = _reciprocal_tangent(tl.minimum(m2, hi2), PR, SR, KR, r_a, r_b, cap)
        f = m2 * r2
        gf = tl.where(f == 0.0, 0.0, through / f)
        g_r2 = gf * m2
        g_m2 = gf * r2 + tl.where(m2 <= hi2, g_r2 * slope2, 2.0 * push * (m2 - hi2))
        g_r1 = g_m2 * 2.0 * r1 * squares / length
        g_m1 = tl.where(m1 <= hi1, g_r1 * slope1, 2.0 * push * (m1 - hi1))
        by_p, by_s2, by_s1 = f / s2, g_m2 * r1 * r1 / length - through / s2, 0.5 * (g_m1 + g_log / m1) / length
        if PUBLIC:
            by_p, by_s1 = tl.where(own, by_p, 1.0 / s2), tl.where(own, by_s1, 0.0)
            by_s2 = tl.where(own, by_s2, -through / s2)
        tl.store(BY_P + at, by_p, mask=rows)
        tl.store(BY_S2 + at, by_s2, mask=rows)
        tl.store(BY_S1 + at, by_s1, mask=rows)
        if SHARES:
            pid = bh * tl.num_programs(0) + tl.program_id(0)
            x2 = tl.minimum(m2, hi2)
            first, second = i_a - i_b * x1, r_a - r_b * x2
            goldschmidt_shares(first, x1 * first, tl.where(own, g_r1, 0.0), SI, KI, cap, DPI + pid * KI)
            goldschmidt_shares(second, x2 * second, tl.where(own, g_r2, 0.0), SR, KR, cap, DPR + pid * KR)


def row_factors(
    out: Tensor, g: Tensor, s1: Tensor, s2: Tensor, mid: Tensor, wide: Tensor, g_pen: Tensor, g_pen_s: Tensor,
    init: Tensor, refine: Tensor, schedules: tuple[Tensor, Tensor], lines: tuple[float, ...],
    bounds: tuple[float, float], push: float, public: int, *, exact: bool, shares: bool,
) -> tuple[tuple[Any, ...], Tensor | None, Tensor | None]:  # fmt: skip
    """Per row: what multiplies e^2 dp, e^2, e and the largest score's sign in dL/ds; and the gradients of both p."""
    b, h, t = s1.shape
    factors = tuple(torch.empty_like(s1) for _ in range(4))
    blocks = triton.cdiv(t, BLOCK)
    programs = blocks * b * h if shares else 1
    d_init, d_refine = (p.new_empty((programs, p.shape[0])) for p in (init, refine))
    _factors[(blocks, b * h)](
        out, g, s1, s2, mid, wide, g_pen, g_pen_s, init, refine, *schedules, *factors, d_init, d_refine, init.shape[0],
        refine.shape[0], *lines, *bounds, push, CAP, t, h, public,
        D=out.shape[-1] // h, M=BLOCK, EXACT=exact, PUBLIC=public > 0, SHARES=shares,
    )  # fmt: skip
    return factors, d_init.sum(0) if shares else None, d_refine.sum(0) if shares else None
