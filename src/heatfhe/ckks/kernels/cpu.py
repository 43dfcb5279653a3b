# SPDX-License-Identifier: Apache-2.0
"""The inner loops in numba: every function works on a range of tasks and releases the interpreter's lock.

Number rules: a Shoup constant is (w, floor(w 2^32 / q)), its product of any 32-bit x lies in [0, 2q). A Montgomery
constant is w 2^32 mod q; four products of x < 2^31 with constants below q stay below 2q 2^32 and reduce together.
Inner helpers take slices and start at zero, which is what lets the compiler vectorise them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heatfhe.ckks.kernels.cpu_jit import jit
from heatfhe.ckks.kernels.cpu_transforms import SHIFT, Array, L, U, intt_row, ntt_row, scale_row

FIXED_SHIFT = np.uint64(52)
FIXED_HALF = np.uint64(1 << 51)


# -- sums of products, one Montgomery reduction for up to four --------------------------------------------------------


@jit()
def _mac4(
    out: Array, a: Array, b: Array, c: Array, d: Array, wa: Any, wb: Any, wc: Any, wd: Any, q: Any, qi: Any
) -> None:
    wa, wb, wc, wd = L(wa), L(wb), L(wc), L(wd)
    for j in range(out.shape[0]):
        t = L(a[j]) * wa + L(b[j]) * wb + L(c[j]) * wc + L(d[j]) * wd
        h = U(t >> SHIFT)
        h = min(h, U(h - q))
        r = U(h - U((L(U(U(t) * qi)) * L(q)) >> SHIFT))
        r = U(min(r, U(r + q)) + out[j])
        out[j] = min(r, U(r - q))


@jit()
def _mac2(out: Array, a: Array, b: Array, wa: Any, wb: Any, q: Any, qi: Any) -> None:
    wa, wb = L(wa), L(wb)
    for j in range(out.shape[0]):
        t = L(a[j]) * wa + L(b[j]) * wb
        h = U(t >> SHIFT)
        r = U(h - U((L(U(U(t) * qi)) * L(q)) >> SHIFT))
        r = U(min(r, U(r + q)) + out[j])
        out[j] = min(r, U(r - q))


@jit()
def _dot4(
    out: Array, a: Array, b: Array, c: Array, d: Array, e: Array, f: Array, g: Array, i: Array, q: Any, qi: Any
) -> None:
    for j in range(out.shape[0]):
        t = L(a[j]) * L(e[j]) + L(b[j]) * L(f[j]) + L(c[j]) * L(g[j]) + L(d[j]) * L(i[j])
        h = U(t >> SHIFT)
        h = min(h, U(h - q))
        r = U(h - U((L(U(U(t) * qi)) * L(q)) >> SHIFT))
        r = U(min(r, U(r + q)) + out[j])
        out[j] = min(r, U(r - q))


@jit()
def _dot2(out: Array, a: Array, b: Array, e: Array, f: Array, q: Any, qi: Any) -> None:
    for j in range(out.shape[0]):
        t = L(a[j]) * L(e[j]) + L(b[j]) * L(f[j])
        h = U(t >> SHIFT)
        r = U(h - U((L(U(U(t) * qi)) * L(q)) >> SHIFT))
        r = U(min(r, U(r + q)) + out[j])
        out[j] = min(r, U(r - q))


@jit()
def _dot1(out: Array, a: Array, e: Array, q: Any, qi: Any) -> None:
    for j in range(out.shape[0]):
        t = L(a[j]) * L(e[j])
        r = U(U(t >> SHIFT) - U((L(U(U(t) * qi)) * L(q)) >> SHIFT))
        r = U(min(r, U(r + q)) + out[j])
        out[j] = min(r, U(r - q))


@jit()
def convert_row(out: Array, v: Array, matrix: Array, q: Any, qi: Any) -> None:
    """Sum of rows of v with Montgomery constants; v has an even number of rows."""
    out[:] = U(0)
    i = 0
    while i + 4 <= v.shape[0]:
        _mac4(out, v[i], v[i + 1], v[i + 2], v[i + 3], matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3], q, qi)
        i += 4
    while i < v.shape[0]:
        _mac2(out, v[i], v[i + 1], matrix[i], matrix[i + 1], q, qi)
        i += 2


# -- tasks ----------------------------------------------------------------------------------------------------------


@jit(
    "void(uint32[:,:,::1],uint32[:,:,::1],int64[::1],uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[::1],int64,int64)"
)
def ntt(
    out: Array,
    x: Array,
    rows: Array,
    head: Array,
    head_v: Array,
    tail: Array,
    tail_v: Array,
    q: Array,
    lo: int,
    hi: int,
) -> None:
    """Transforms of limbs lo..hi of x (B, R, N)."""
    work = np.empty(x.shape[2], dtype=np.uint32)
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        p = rows[r]
        work[:] = x[b, r]
        ntt_row(out[b, r], work, head[p], head_v[p], tail[p], tail_v[p], q[p])


@jit(
    "void(uint32[:,:,::1],uint32[:,:,::1],int64[::1],int64[::1],int64[::1],uint32[::1],uint32[::1],"
    "uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[::1],int64,int64)"
)
def intt(
    out: Array, x: Array, source: Array, target: Array, rows: Array, w: Array, v: Array,
    head: Array, head_v: Array, tail: Array, tail_v: Array, q: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Inverse transforms: limb source[r] of x (B, R, N) to limb target[r] of out, times the constant (w[r], v[r])."""
    work = np.empty(x.shape[2], dtype=np.uint32)
    for task in range(lo, hi):
        b, r = task // rows.shape[0], task % rows.shape[0]
        p = rows[r]
        work[:] = x[b, source[r]]
        intt_row(out[b, target[r]], work, head[p], head_v[p], tail[p], tail_v[p], q[p], w[r], v[r])


@jit()
def _add_scaled(total: Array, x: Array, f: Any) -> None:
    f = L(U(f))
    for j in range(total.shape[0]):
        total[j] += L(x[j]) * f


@jit()
def _shift(out: Array, total: Array) -> None:
    for j in range(out.shape[0]):
        out[j] = U(total[j] >> FIXED_SHIFT)


@jit("void(uint32[:,:,::1],int64[::1],int64[::1],uint64[:,::1],int64,int64)")
def overflow(v: Array, starts: Array, counts: Array, fixed: Array, lo: int, hi: int) -> None:
    """The row e of each conversion, written after its sources; one task per (b, conversion)."""
    total = np.empty(v.shape[2], dtype=np.uint64)
    for task in range(lo, hi):
        b, c = task // starts.shape[0], task % starts.shape[0]
        total[:] = FIXED_HALF
        for i in range(counts[c]):
            _add_scaled(total, v[b, starts[c] + i], fixed[c, i])
        _shift(v[b, starts[c] + counts[c]], total)


@jit(
    "void(uint32[:,:,::1],uint32[:,::1],uint32[:,::1],int64[:,::1],uint32[:,::1],"
    "uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[::1],uint32[::1],int64,int64)"
)
def mod_up(
    out: Array, x: Array, v: Array, tasks: Array, matrix: Array,
    head: Array, head_v: Array, tail: Array, tail_v: Array, q: Array, qi: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """One limb of one digit per task: (digit, limb, prime, own limb or -1, first row of v, rows of v)."""
    work = np.empty(x.shape[1], dtype=np.uint32)
    for task in range(lo, hi):
        digit, limb, p, own, start, count = tasks[task]
        if own >= 0:
            out[digit, limb] = x[own]
        else:
            convert_row(work, v[start : start + count], matrix[task], q[p], qi[p])
            ntt_row(out[digit, limb], work, head[p], head_v[p], tail[p], tail_v[p], q[p])


@jit()
def _finish(out: Array, x: Array, w: Any, v: Any, q: Any) -> None:
    v = L(v)
    for j in range(x.shape[0]):
        t = U(U(x[j] * w) - U(U((L(x[j]) * v) >> SHIFT) * q))
        t = U(min(t, U(t - q)) - out[j])
        out[j] = min(t, U(t + q))


@jit(
    "void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,::1],int64[::1],int64[::1],uint32[:,::1],uint32[::1],uint32[::1],"
    "uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[::1],uint32[::1],int64,int64)"
)
def divide(
    out: Array, x: Array, v: Array, rows: Array, keep: Array, matrix: Array, lift: Array, lift_v: Array,
    head: Array, head_v: Array, tail: Array, tail_v: Array, q: Array, qi: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Output limbs of a division: x_keep * lift - NTT(remainder)."""
    work = np.empty(x.shape[2], dtype=np.uint32)
    for task in range(lo, hi):
        b, r = task // rows.shape[0], task % rows.shape[0]
        p = rows[r]
        convert_row(work, v[b], matrix[r], q[p], qi[p])
        ntt_row(out[b, r], work, head[p], head_v[p], tail[p], tail_v[p], q[p])
        _finish(out[b, r], x[b, max(keep[r], 0)], lift[r], lift_v[r], q[p])


@jit()
def _add_scaled_row(out: Array, x: Array, w: Any, v: Any, q: Any) -> None:
    v = L(v)
    for j in range(x.shape[0]):
        t = U(U(x[j] * w) - U(U((L(x[j]) * v) >> SHIFT) * q))
        t = U(min(t, U(t - q)) + out[j])
        out[j] = min(t, U(t - q))


@jit("void(uint32[:,:,::1],uint32[:,:,::1],uint32[::1],uint32[::1],int64[::1],uint32[::1],int64,int64)")
def add_lifted(out: Array, x: Array, w: Array, v: Array, rows: Array, q: Array, lo: int, hi: int) -> None:
    """Adds x (B, R, N) times the Shoup constants (w[r], v[r]) to the first limbs of out (B, E, N)."""
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        _add_scaled_row(out[b, r], x[b, r], w[r], v[r], q[rows[r]])


@jit(
    "void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,:,::1],int64[::1],int64[::1],uint32[::1],uint32[::1],int64,int64)"
)
def key_product(
    out: Array, digits: Array, key: Array, key_rows: Array, rows: Array, q: Array, qi: Array, lo: int, hi: int
) -> None:
    """Sum over digits of digits[j] * key[j]; both halves of one limb per task."""
    for r in range(lo, hi):
        p, k = rows[r], key_rows[r]
        for half in range(2):
            row = out[half, r]
            row[:] = U(0)
            j = 0
            while j + 4 <= digits.shape[0]:
                _dot4(
                    row, digits[j, r], digits[j + 1, r], digits[j + 2, r], digits[j + 3, r],
                    key[j, half, k], key[j + 1, half, k], key[j + 2, half, k], key[j + 3, half, k], q[p], qi[p],
                )  # fmt: skip
                j += 4
            while j + 2 <= digits.shape[0]:
                _dot2(row, digits[j, r], digits[j + 1, r], key[j, half, k], key[j + 1, half, k], q[p], qi[p])
                j += 2
            if j < digits.shape[0]:
                _dot1(row, digits[j, r], key[j, half, k], q[p], qi[p])


@jit(
    "void(uint32[:,:,::1],uint32[:,:,:,::1],int64[::1],uint32[:,:,::1],int64[::1],uint32[::1],uint32[::1],int64,int64)"
)
def multiply_accumulate(
    out: Array, values: Array, which: Array, plains: Array, rows: Array, q: Array, qi: Array, lo: int, hi: int
) -> None:
    """Sum over d of values[which[d]] * plains[d]; both halves of one limb per task."""
    for r in range(lo, hi):
        p = rows[r]
        for half in range(2):
            row = out[half, r]
            row[:] = U(0)
            d = 0
            while d + 4 <= which.shape[0]:
                _dot4(
                    row, values[which[d], half, r], values[which[d + 1], half, r],
                    values[which[d + 2], half, r], values[which[d + 3], half, r],
                    plains[d, r], plains[d + 1, r], plains[d + 2, r], plains[d + 3, r], q[p], qi[p],
                )  # fmt: skip
                d += 4
            while d < which.shape[0]:
                _dot1(row, values[which[d], half, r], plains[d, r], q[p], qi[p])
                d += 1


@jit("void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,::1],int64[::1],uint32[::1],uint32[::1],int64,int64)")
def tensor_add(out: Array, x: Array, y: Array, rows: Array, q: Array, qi: Array, lo: int, hi: int) -> None:
    """Adds (b b', b a' + a b', a a') / 2^32 to out, limb by limb."""
    for r in range(lo, hi):
        p = rows[r]
        _dot1(out[0, r], x[0, r], y[0, r], q[p], qi[p])
        _dot2(out[1, r], x[0, r], x[1, r], y[1, r], y[0, r], q[p], qi[p])
        _dot1(out[2, r], x[1, r], y[1, r], q[p], qi[p])


@jit(
    "void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,::1],"
    "uint32[:,::1],uint32[:,::1],uint32[:,::1],uint32[:,::1],int64[::1],uint32[::1],uint32[::1],int64,int64)"
)
def product_add4(
    out: Array, a: Array, b: Array, c: Array, d: Array, e: Array, f: Array, g: Array, i: Array,
    rows: Array, q: Array, qi: Array, lo: int, hi: int,
) -> None:  # fmt: skip
    """Adds a e + b f + c g + d i to out: limbs (B, R, N) times prepared limbs (R, N)."""
    for task in range(lo, hi):
        k, r = task // a.shape[1], task % a.shape[1]
        p = rows[r]
        _dot4(out[k, r], a[k, r], b[k, r], c[k, r], d[k, r], e[r], f[r], g[r], i[r], q[p], qi[p])


@jit("void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,::1],int64[::1],uint32[::1],uint32[::1],int64,int64)")
def product_add(out: Array, x: Array, y: Array, rows: Array, q: Array, qi: Array, lo: int, hi: int) -> None:
    """Adds limbs of x (B, R, N) times prepared limbs y (R, N) to out."""
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        p = rows[r]
        _dot1(out[b, r], x[b, r], y[r], q[p], qi[p])


@jit("void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,::1],int64[::1],uint32[::1],uint32[::1],int64,int64)")
def product(out: Array, x: Array, y: Array, rows: Array, q: Array, qi: Array, lo: int, hi: int) -> None:
    """Limbs of x (B, R, N) times prepared limbs y (R, N)."""
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        p = rows[r]
        out[b, r] = U(0)
        _dot1(out[b, r], x[b, r], y[r], q[p], qi[p])


@jit("void(uint32[:,:,::1],uint32[:,:,::1],uint32[::1],uint32[::1],int64[::1],uint32[::1],int64,int64)")
def scale(out: Array, x: Array, w: Array, v: Array, rows: Array, q: Array, lo: int, hi: int) -> None:
    """Limbs of x (B, R, N) times the Shoup constants (w[r], v[r])."""
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        scale_row(out[b, r], x[b, r], w[r], v[r], q[rows[r]])


@jit()
def _add(out: Array, x: Array, y: Array, q: Any) -> None:
    for j in range(out.shape[0]):
        s = U(x[j] + y[j])
        out[j] = min(s, U(s - q))


@jit()
def _sub(out: Array, x: Array, y: Array, q: Any) -> None:
    for j in range(out.shape[0]):
        s = U(x[j] - y[j])
        out[j] = min(s, U(s + q))


@jit("void(uint32[:,:,::1],uint32[:,:,::1],uint32[:,:,::1],int64[::1],uint32[::1],boolean,int64,int64)")
def add_or_sub(out: Array, x: Array, y: Array, rows: Array, q: Array, minus: bool, lo: int, hi: int) -> None:
    """Limb-wise x + y, or x - y."""
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        if minus:
            _sub(out[b, r], x[b, r], y[b, r], q[rows[r]])
        else:
            _add(out[b, r], x[b, r], y[b, r], q[rows[r]])


@jit()
def _add_constant(out: Array, x: Array, c: Any, q: Any) -> None:
    for j in range(out.shape[0]):
        s = U(x[j] + c)
        out[j] = min(s, U(s - q))


@jit("void(uint32[:,::1],uint32[:,::1],uint32[::1],int64[::1],uint32[::1],int64,int64)")
def add_constant(out: Array, x: Array, c: Array, rows: Array, q: Array, lo: int, hi: int) -> None:
    """Limbs of x (R, N) plus a constant each."""
    for r in range(lo, hi):
        _add_constant(out[r], x[r], c[r], q[rows[r]])


@jit("void(uint32[:,:,::1],uint32[:,:,::1],int32[::1],int64[::1],uint32[::1],int64,int64)")
def gather_add(out: Array, x: Array, index: Array, rows: Array, q: Array, lo: int, hi: int) -> None:
    """Adds limbs of x (B, R, N), permuted by one index, to out."""
    for task in range(lo, hi):
        b, r = task // x.shape[1], task % x.shape[1]
        p, source, row = q[rows[r]], x[b, r], out[b, r]
        for j in range(index.shape[0]):
            s = U(row[j] + source[np.uint32(index[j])])
            row[j] = min(s, U(s - p))


@jit("void(uint32[:,::1],uint32[:,::1],int32[::1],int64,int64)")
def gather(out: Array, x: Array, index: Array, lo: int, hi: int) -> None:
    """Permutes every limb by one index."""
    for task in range(lo, hi):
        source, row = x[task], out[task]
        for j in range(index.shape[0]):
            row[j] = source[np.uint32(index[j])]


@jit("void(uint32[:,::1],int64[::1],int64[::1],uint32[::1],int64,int64)")
def residues(out: Array, x: Array, rows: Array, q: Array, lo: int, hi: int) -> None:
    """Signed integers modulo the primes of rows lo..hi."""
    for r in range(lo, hi):
        p = np.int64(q[rows[r]])
        for j in range(x.shape[0]):
            out[r, j] = U(x[j] % p)
