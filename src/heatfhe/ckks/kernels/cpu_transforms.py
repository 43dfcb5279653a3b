# SPDX-License-Identifier: Apache-2.0
"""Transforms of one limb in numba: Shoup butterflies, the last half of the stages on transposed blocks.

Versions tried, single thread, AVX2, ns per butterfly on long rows: Montgomery radix 2 0.60; Shoup radix 4 0.38; Shoup
radix 2 0.28, kept. Slices made inside the stages cost more than the butterflies (a reference count each), and one
large function did not vectorise; offsets and small functions do: 28 us became 9 us at N = 2^12.

Number rules: a Shoup constant is (w, floor(w 2^32 / q)), its product of any 32-bit x lies in [0, 2q). All arithmetic is
unsigned; min(x, x - q) is the conditional subtraction. The evaluation order of plans.py is this layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heatfhe.ckks.kernels.cpu_jit import jit

U = np.uint32
L = np.uint64
SHIFT = np.uint64(32)

Array = Any  # numba arrays: shapes and types are in the signatures


# -- transforms: forward on values in [0, 2q), inverse on values in [0, q) --------------------------------------------
# Offsets are unsigned, which spares the wrap-around test of negative indices, and no slice is made in a loop.


@jit()
def _forward(a: Array, ox: Any, oy: Any, count: Any, w: Any, v: Any, q: Any) -> None:
    v = L(v)
    for j in range(count):
        x, y = a[ox + j], a[oy + j]
        t = U(U(y * w) - U(U((L(y) * v) >> SHIFT) * q))
        t, x = min(t, U(t - q)), min(x, U(x - q))
        a[ox + j] = U(x + t)
        a[oy + j] = U(U(x - t) + q)


@jit()
def _forward_rows(a: Array, ox: Any, oy: Any, rows: Any, count: Any, w: Array, v: Array, ow: Any, q: Any) -> None:
    for _ in range(rows):
        for j in range(count):
            x, y = a[ox + j], a[oy + j]
            t = U(U(y * w[ow + j]) - U(U((L(y) * L(v[ow + j])) >> SHIFT) * q))
            t, x = min(t, U(t - q)), min(x, U(x - q))
            a[ox + j] = U(x + t)
            a[oy + j] = U(U(x - t) + q)
        ox += count
        oy += count


@jit()
def _inverse(a: Array, ox: Any, oy: Any, count: Any, w: Any, v: Any, q: Any) -> None:
    v = L(v)
    for j in range(count):
        x, y = a[ox + j], a[oy + j]
        s, d = U(x + y), U(U(x - y) + q)
        t = U(U(d * w) - U(U((L(d) * v) >> SHIFT) * q))
        a[ox + j] = min(s, U(s - q))
        a[oy + j] = min(t, U(t - q))


@jit()
def _inverse_rows(a: Array, ox: Any, oy: Any, rows: Any, count: Any, w: Array, v: Array, ow: Any, q: Any) -> None:
    for _ in range(rows):
        for j in range(count):
            x, y = a[ox + j], a[oy + j]
            s, d = U(x + y), U(U(x - y) + q)
            t = U(U(d * w[ow + j]) - U(U((L(d) * L(v[ow + j])) >> SHIFT) * q))
            a[ox + j] = min(s, U(s - q))
            a[oy + j] = min(t, U(t - q))
        ox += count
        oy += count


@jit()
def _forward_head(a: Array, blocks: Any, length: Any, w: Array, v: Array, q: Any) -> None:
    count, half = L(1), (blocks * length) >> L(1)
    while count < blocks:
        for i in range(count):
            o = (i * half) << L(1)
            _forward(a, o, o + half, half, w[count + i], v[count + i], q)
        count, half = count << L(1), half >> L(1)


@jit()
def _forward_tail(a: Array, blocks: Any, length: Any, w: Array, v: Array, q: Any) -> None:
    groups, half = L(1), length >> L(1)
    while groups < length:
        for g in range(groups):
            o = ((g * half) << L(1)) * blocks
            _forward_rows(a, o, o + half * blocks, half, blocks, w, v, (groups + g) * blocks, q)
        groups, half = groups << L(1), half >> L(1)


@jit()
def _inverse_tail(a: Array, blocks: Any, length: Any, w: Array, v: Array, q: Any) -> None:
    groups, half = length >> L(1), L(1)
    while groups > L(0):
        for g in range(groups):
            o = ((g * half) << L(1)) * blocks
            _inverse_rows(a, o, o + half * blocks, half, blocks, w, v, (groups + g) * blocks, q)
        groups, half = groups >> L(1), half << L(1)


@jit()
def _inverse_head(a: Array, blocks: Any, length: Any, w: Array, v: Array, q: Any) -> None:
    count, half = blocks >> L(1), length
    while count > L(0):
        for i in range(count):
            o = (i * half) << L(1)
            _inverse(a, o, o + half, half, w[count + i], v[count + i], q)
        count, half = count >> L(1), half << L(1)


@jit()
def _transpose(out: Array, a: Array, blocks: Any, length: Any) -> None:
    """(blocks, length) to (length, blocks), eight rows at a time where there are eight."""
    step = min(L(8), blocks)
    for c in range(L(0), blocks, step):
        for j in range(length):
            for k in range(step):
                out[j * blocks + c + k] = a[(c + k) * length + j]


@jit()
def _canonical(x: Array, q: Any) -> None:
    for j in range(x.shape[0]):
        x[j] = min(x[j], U(x[j] - q))


@jit()
def scale_row(out: Array, x: Array, w: Any, v: Any, q: Any) -> None:
    v = L(v)
    for j in range(x.shape[0]):
        t = U(U(x[j] * w) - U(U((L(x[j]) * v) >> SHIFT) * q))
        out[j] = min(t, U(t - q))


@jit()
def ntt_row(out: Array, a: Array, head: Array, head_v: Array, tail: Array, tail_v: Array, q: Any) -> None:
    """Transform of coefficients ``a`` (overwritten) into ``out``."""
    blocks = L(head.shape[0])
    length = L(a.shape[0]) // blocks
    _forward_head(a, blocks, length, head, head_v, q)
    _transpose(out, a, blocks, length)
    _forward_tail(out, blocks, length, tail, tail_v, q)
    _canonical(out, q)


@jit()
def intt_row(
    out: Array, a: Array, head: Array, head_v: Array, tail: Array, tail_v: Array, q: Any, w: Any, v: Any
) -> None:
    """Inverse transform of evaluations ``a`` (overwritten) into ``out``, times the constant (w, v)."""
    blocks = L(head.shape[0])
    length = L(a.shape[0]) // blocks
    _inverse_tail(a, blocks, length, tail, tail_v, q)
    _transpose(out, a, length, blocks)
    _inverse_head(out, blocks, length, head, head_v, q)
    scale_row(out, out, w, v, q)
