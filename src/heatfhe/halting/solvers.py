# SPDX-License-Identifier: Apache-2.0
"""Expected solvers: sum_i p_i F_i(x) over a solver's states, with memory that does not grow with the count.

Forward keeps the inputs alone. Backward runs the recurrence again and carries the states' derivatives along
(forward-mode tangents): one sweep, exact gradients for every input and for p, no reverse pass over the states.
Everything is elementwise on one number per row, so that a compiler fuses each direction into one read and one write.

Out of its domain a recurrence squares itself towards infinity. States and tangents are clamped at half the root of the
dtype's range (9e18 in float32 and bf16), far beyond anything in a domain and with room for one product, so that a
stray row gives a large finite gradient instead of NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heatfhe.approx import ReciprocalFit
from heatfhe.errors import ConfigError

# Legend (as in the paper's algorithm): N, D, F the Goldschmidt states, nu = dN/dN_0, eta = dN/dD_0, delta = dD/dD_0,
# phi = dF/dD_0 (which starts at -1, since F_0 = 2 s_0 - D_0), s the relaxed schedule (all ones when plain).


class _Goldschmidt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, n: Tensor, d: Tensor, p: Tensor, schedule: tuple[float, ...]) -> Tensor:
        ctx.save_for_backward(n, d, p)
        ctx.schedule = schedule
        cap = _cap(n.dtype)
        r = n * (p[0] / schedule[0])
        for i in range(1, len(schedule)):
            f = 2.0 * schedule[i - 1] - d
            n, d = (n * f).clamp(-cap, cap), (d * f).clamp(-cap, cap)
            r = r + n * (p[i] / schedule[i])
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        n, d, p = ctx.saved_tensors
        s = ctx.schedule
        cap = _cap(n.dtype)
        nu, eta, delta = torch.ones_like(n), torch.zeros_like(n), torch.ones_like(n)
        w = p[0] / s[0]
        n_bar, d_bar = nu * w, eta * w
        p_bar = [(g * n).sum() / s[0]]
        for i in range(1, len(s)):
            f = 2.0 * s[i - 1] - d
            phi = -delta
            eta = (eta * f + n * phi).clamp(-cap, cap)
            nu = (nu * f).clamp(-cap, cap)
            delta = (delta * f + d * phi).clamp(-cap, cap)
            n, d = (n * f).clamp(-cap, cap), (d * f).clamp(-cap, cap)
            w = p[i] / s[i]
            n_bar, d_bar = n_bar + nu * w, d_bar + eta * w
            p_bar.append((g * n).sum() / s[i])
        return g * n_bar, g * d_bar, torch.stack(p_bar).to(p.dtype), None


class _Newton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor, p: Tensor, gain: float) -> Tensor:
        ctx.save_for_backward(z, y, p)
        ctx.gain = gain
        cap = _cap(y.dtype)
        half = z * (0.5 / (gain * gain))
        r = y * p[0]
        for i in range(1, p.shape[0]):
            y = (y * 1.5 - (half * y) * (y * y)).clamp(-cap, cap)
            r = r + y * p[i]
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        z, y, p = ctx.saved_tensors
        cap = _cap(y.dtype)
        h = 0.5 / (ctx.gain * ctx.gain)
        half = z * h
        by_y, by_z = torch.ones_like(y), torch.zeros_like(y)
        y_bar, z_bar = by_y * p[0], by_z * p[0]
        p_bar = [(g * y).sum()]
        for i in range(1, p.shape[0]):
            square = y * y
            slope = (1.5 - 3.0 * (half * square)).clamp(-cap, cap)
            by_z = (by_z * slope - (h * y) * square).clamp(-cap, cap)
            by_y = (by_y * slope).clamp(-cap, cap)
            y = (y * 1.5 - (half * y) * square).clamp(-cap, cap)
            y_bar, z_bar = y_bar + by_y * p[i], z_bar + by_z * p[i]
            p_bar.append((g * y).sum())
        return g * z_bar, g * y_bar, torch.stack(p_bar).to(p.dtype), None


def expected_goldschmidt(n: Tensor, d: Tensor, p: Tensor, schedule: Sequence[float] | None = None) -> Tensor:
    """sum_i p_i N_i, N_i the numerator after i iterations; with a relaxed schedule, state i is divided by its scale.

    Domain  0 < d < 2 (with a schedule, n and d come multiplied by schedule[0]); p over 0..count.
    Bound   with a one-hot p, what goldschmidt gives at that count; gradients exact.
    Depth   none: training only. Saves n, d and p for backward, whatever the count.
    Source  the paper, memory-efficient depth gradients; its printed sweep starts phi at 0, which is wrong by the
            derivative of F_0.
    """
    s = (1.0,) * p.shape[0] if schedule is None else tuple(schedule)
    _check(n, d, p, len(s))
    return _run(_Goldschmidt, n, d, p, s)


def expected_newton(z: Tensor, y: Tensor, p: Tensor, *, gain: float = 1.0) -> Tensor:
    """sum_i p_i Y_i, Y_i the estimate of gain / sqrt(z) after i of Newton's iterations from y.

    Domain  0 < y sqrt(z) / gain < sqrt(3); p over 0..count.
    Bound   with a one-hot p, what newton gives at that count; gradients exact.
    Depth   none: training only. Saves z, y and p for backward, whatever the count.
    Source  the paper, memory-efficient depth gradients.
    """
    _check(z, y, p, p.shape[0])
    return _run(_Newton, z, y, p, gain)


def expected_divide(
    num: Tensor | float, d: Tensor, fit: ReciprocalFit, p: Tensor, *, scale: Tensor | float = 1.0
) -> Tensor:
    """num / (scale d), the expectation of approx.divide over its counts; the seed's slope is differentiated too.

    Domain  fit.lo <= scale d <= fit.hi.
    Bound   with a one-hot p, what divide gives at that count, rounding aside; gradients exact.
    Depth   none: training only.
    Source  as expected_goldschmidt, from the minimax linear seed.
    """
    s = fit.schedule(p.shape[0] - 1)
    x = d * scale
    seed = x * (-s[0] * fit.beta) + s[0] * fit.alpha
    return expected_goldschmidt(seed * num, x * seed, shared(fit, p), s)


def shared(fit: ReciprocalFit, p: Tensor) -> Tensor:
    """The distribution with each chance times its state's share: what an expectation from below is taken with."""
    shares = fit.shares(p.shape[0] - 1)
    return p if min(shares) == 1.0 else torch.stack([p[i] * share for i, share in enumerate(shares)])


def expected_reciprocal(
    d: Tensor, fit: ReciprocalFit, p: Tensor, *, scale: Tensor | float = 1.0, gain: Tensor | float = 1.0
) -> Tensor:
    """gain / (scale d), the expectation of approx.reciprocal over its counts.

    Domain  fit.lo <= scale d <= fit.hi.
    Bound   with a one-hot p, what reciprocal gives at that count, rounding aside; gradients exact.
    Depth   none: training only.
    Source  as expected_divide.
    """
    return expected_divide(gain, d, fit, p, scale=scale)


def _cap(dtype: torch.dtype) -> float:
    return 0.5 * float(torch.finfo(dtype).max) ** 0.5


def _run(function: Any, a: Tensor, b: Tensor, p: Tensor, rest: Any) -> Tensor:
    if a.is_cuda and a.dtype == b.dtype == p.dtype == torch.float32 and _FUSED is not None:
        kernel = _FUSED.goldschmidt if function is _Goldschmidt else _FUSED.newton
        fused: Tensor = kernel(a.contiguous(), b.contiguous(), p.contiguous(), rest)
        return fused
    out: Tensor = function.apply(a, b, p, rest)
    return out


def gpu_kernels(name: str) -> ModuleType | None:
    """A room's module of kernels for GPUs, or None where triton, which compiles them, is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as err:
        if err.name != "triton":  # our own broken import is not an absent compiler
            raise
        return None


_FUSED = gpu_kernels("heatfhe.halting.fused")


def _check(a: Tensor, b: Tensor, p: Tensor, states: int) -> None:
    if a.shape != b.shape:
        raise ConfigError(f"an expected solver's operands have one shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    if p.ndim != 1 or p.shape[0] != states:
        raise ConfigError(f"p must be a vector over {states} states, got shape {tuple(p.shape)}")
