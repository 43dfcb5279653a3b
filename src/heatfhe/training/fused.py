# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy and distillation loss on a GPU: logits are read once forward and once backward, never widened.

Its logits are the largest tensor of a micro-batch (32768 x 50257 in the squeeze). Written out in float32 with their log
softmax they cost more time than the model's last block; here a row goes by in registers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK = 4096

# Legend: x the student's logits, t the teacher's; lse the log of a row's sum of exponentials.


@triton.jit
def _log_sum(x, top, total):
    """A running (maximum, sum of exponentials) with one more block in it."""
    higher = tl.maximum(top, tl.max(x, 0))
    return higher, total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)


@triton.jit
def _entropy(X, TARGET, LOSS, LSE, width, stride, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total = -1e30, 0.0
    for start in range(0, width, B):
        at = start + tl.arange(0, B)
        x = tl.load(X + row * stride + at, mask=at < width, other=-1e30).to(tl.float32)
        top, total = _log_sum(x, top, total)
    lse = top + tl.log(total)
    wanted = tl.load(X + row * stride + tl.load(TARGET + row)).to(tl.float32)
    tl.store(LOSS + row, lse - wanted)
    tl.store(LSE + row, lse)


@triton.jit
def _entropy_back(X, TARGET, LSE, G, DX, width, stride, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    g = tl.load(G + row)
    x = tl.load(X + row * stride + at, mask=at < width, other=-1e30).to(tl.float32)
    dx = tl.exp(x - tl.load(LSE + row)) - tl.where(at == tl.load(TARGET + row), 1.0, 0.0)
    tl.store(DX + row * stride + at, (g * dx).to(DX.dtype.element_ty), mask=at < stride)


@triton.jit
def _divergence(X, T, LOSS, LSE, LSE_T, width, stride, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top, total, top_t, total_t, gap = -1e30, 0.0, -1e30, 0.0, 0.0
    for start in range(0, width, B):
        at = start + tl.arange(0, B)
        x = tl.load(X + row * stride + at, mask=at < width, other=-1e30).to(tl.float32)
        t = tl.load(T + row * stride + at, mask=at < width, other=-1e30).to(tl.float32)
        top, total = _log_sum(x, top, total)
        higher = tl.maximum(top_t, tl.max(t, 0))
        e, shrink = tl.exp(t - higher), tl.exp(top_t - higher)
        gap = gap * shrink + tl.sum(tl.where(at < width, e * (t - x), 0.0), 0)
        total_t = total_t * shrink + tl.sum(e, 0)
        top_t = higher
    lse, lse_t = top + tl.log(total), top_t + tl.log(total_t)
    tl.store(LOSS + row, gap / total_t - lse_t + lse)
    tl.store(LSE + row, lse)
    tl.store(LSE_T + row, lse_t)


@triton.jit
def _divergence_back(X, T, LSE, LSE_T, G, DX, width, stride, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(X + row * stride + at, mask=at < width, other=-1e30).to(tl.float32)
    t = tl.load(T + row * stride + at, mask=at < width, other=-1e30).to(tl.float32)
    dx = tl.exp(x - tl.load(LSE + row)) - tl.exp(t - tl.load(LSE_T + row))
    tl.store(DX + row * stride + at, (tl.load(G + row) * dx).to(DX.dtype.element_ty), mask=at < stride)


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, width: int) -> Tensor:
        rows, stride = x.shape
        loss, lse = (torch.empty(rows, device=x.device, dtype=torch.float32) for _ in range(2))
        _entropy[(rows,)](x, target, loss, lse, width, stride, B=BLOCK, num_warps=8)
        ctx.save_for_backward(x, target, lse)
        ctx.width = width
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        x, target, lse = ctx.saved_tensors
        rows, stride = x.shape
        dx = torch.empty_like(x)
        _entropy_back[(rows, triton.cdiv(stride, BLOCK))](
            x, target, lse, g.contiguous(), dx, ctx.width, stride, B=BLOCK, num_warps=8
        )  # fmt: skip
        return dx, None, None


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, t: Tensor, width: int) -> Tensor:
        rows, stride = x.shape
        loss, lse, lse_t = (torch.empty(rows, device=x.device, dtype=torch.float32) for _ in range(3))
        _divergence[(rows,)](x, t, loss, lse, lse_t, width, stride, B=BLOCK, num_warps=8)
        ctx.save_for_backward(x, t, lse, lse_t)
        ctx.width = width
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        x, t, lse, lse_t = ctx.saved_tensors
        rows, stride = x.shape
        dx = torch.empty_like(x)
        _divergence_back[(rows, triton.cdiv(stride, BLOCK))](
            x, t, lse, lse_t, g.contiguous(), dx, ctx.width, stride, B=BLOCK, num_warps=8
        )  # fmt: skip
        return dx, None, None


def cross_entropy(logits: Tensor, targets: Tensor, width: int, weights: Tensor | None = None) -> Tensor:
    """Mean cross-entropy per token in nats over the first ``width`` logits, in any dtype; sums in float32.

    ``weights``, one per window, multiply the losses before the mean.
    """
    rows: Tensor = _Entropy.apply(logits.flatten(0, -2).contiguous(), targets.flatten().contiguous(), width)
    return _mean(rows, weights)


def divergence(logits: Tensor, teacher: Tensor, width: int, weights: Tensor | None = None) -> Tensor:
    """Mean KL of the student from the teacher per token over the first ``width`` logits; the rest as above."""
    student, wanted = (x.flatten(0, -2).contiguous() for x in (logits, teacher))
    rows: Tensor = _Divergence.apply(student, wanted, width)
    return _mean(rows, weights)


def _mean(rows: Tensor, weights: Tensor | None) -> Tensor:
    return rows.mean() if weights is None else (rows.view(len(weights), -1) * weights[:, None]).mean()


@contextmanager
def aligned_heads(*models: nn.Module) -> Iterator[None]:
    """Let the models' last product have a multiple of 128 columns: an odd vocabulary makes it several times slower.

    Inside, logits have zero columns past the vocabulary, which the losses above are told to leave out.
    """
    heads = [model.get_output_embeddings() for model in models]
    heads = [head for head in heads if isinstance(head, nn.Linear) and head.bias is None]
    for head in heads:
        head.forward = partial(_aligned, head)
    try:
        yield
    finally:
        for head in heads:
            del head.forward


def _aligned(head: nn.Linear, x: Tensor) -> Tensor:
    weight = head.weight.to(torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype)
    return nn.functional.linear(x, nn.functional.pad(weight, (0, 0, 0, -head.out_features % 128)))
