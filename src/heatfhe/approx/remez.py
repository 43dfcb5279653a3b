# SPDX-License-Identifier: Apache-2.0
"""Exchange algorithms for best uniform fits: linear ones, and the (3, 1) rational of an inverse square root."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError

Array: TypeAlias = NDArray[np.floating[Any]]


def fit_linear(rows: Array, wanted: Array, *, start: float = 0.0, turns: int = 60) -> tuple[Array, float]:
    """Coefficients c that minimise max |rows c - wanted|, one row per grid point, and that maximum.

    Domain  the columns form a Haar system on the grid, whose points ascend and are dense, spaced like Chebyshev's: the
            first guess of the extrema is even in their index, from a fraction `start` of it on.
    Bound   the exchange stops when the largest error is within 1e-6 of the levelled one, or at rounding; the value
            returned is the largest error seen on the grid for the coefficients returned.
    Depth   none: a fit.
    Source  Remez 1934.
    """
    size = rows.shape[1]
    points = np.unique(np.rint(np.linspace(start, 1.0, size + 1) * (len(wanted) - 1)).astype(int))
    if len(points) < size + 1:
        raise ConfigError(f"a fit of {size} coefficients needs a denser grid than {len(wanted)} points")
    signs = np.where(np.arange(size + 1) % 2, -1.0, 1.0)
    best, least = np.zeros(size), np.inf
    for _ in range(turns):
        solved = np.linalg.solve(np.column_stack([rows[points], signs]), wanted[points])
        residual = rows @ solved[:-1] - wanted
        top = float(np.abs(residual).max())
        if top < least:
            best, least = solved[:-1], top
        if top <= abs(solved[-1]) * (1.0 + 1e-6):
            break
        moved = alternation(residual, size + 1)
        if moved is None or np.array_equal(moved, points):
            break
        points = moved
    return best, least


def alternation(residual: Array, size: int) -> Array | None:
    """Indices of `size` extrema of alternating sign, the largest kept; None if the error alternates too little."""
    sign = np.where(residual >= 0.0, 1, -1)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(sign)) + 1, [len(residual)]])
    size_of = np.abs(residual)
    peaks = [int(a + np.argmax(size_of[a:b])) for a, b in pairwise(starts)]
    if len(peaks) < size:
        return None
    while len(peaks) > size:
        if len(peaks) == size + 1:  # drop an end: the inner ones must keep alternating
            peaks.pop(0 if size_of[peaks[0]] < size_of[peaks[-1]] else -1)
            continue
        least = int(np.argmin(size_of[peaks]))
        if least in (0, len(peaks) - 1):
            peaks.pop(least)
        else:  # an inner extremum leaves with its smaller neighbour
            other = least - 1 if size_of[peaks[least - 1]] < size_of[peaks[least + 1]] else least + 1
            for i in sorted((least, other), reverse=True):
                peaks.pop(i)
    return np.array(peaks)


@lru_cache(maxsize=512)
def rational_inverse_sqrt(kappa: float) -> tuple[tuple[float, ...], float, float]:
    """p0..p3 and c with P(t) / (t + c) the best relative fit of 1 / sqrt(t) on [1, kappa], and its error.

    Domain  1.2 <= kappa <= 1e9 (the error approaches rounding below, 1 above).
    Bound   the exchange stops within 2e-6 of the levelled error; the error returned was measured on its grid.
    Depth   none: a fit.
    Source  Remez 1934; continuation in kappa, a 2x2 pencil for the levelled error.
    """
    path = np.geomspace(min(2.0, kappa), kappa, max(1, int(np.ceil(4.5 * np.log10(max(kappa / 2.0, 1.0)))) + 1))
    where = np.array([0.0, 0.1, 0.36, 0.67, 0.91, 1.0])
    for at in path:
        coefficients, c, error, where = _rational(float(at), where)
    return tuple(float(v) for v in coefficients), float(c), float(error)


def _rational(kappa: float, where: Array) -> tuple[Array, float, float, Array]:
    """One fit at one kappa, started from extrema at these log-positions."""
    at = np.linspace(0.0, 1.0, 4001)
    t = kappa**at
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    best: tuple[Array, float, float, Array] | None = None
    for _ in range(40):
        solved = _levelled(kappa**where, kappa, signs)
        if solved is None:
            break
        coefficients, c, level = solved
        residual = np.sqrt(t) * np.polynomial.polynomial.polyval(t, coefficients) / (t + c) - 1.0
        top = float(np.abs(residual).max())
        if best is None or top < best[2]:
            best = coefficients, c, top, where
        if top <= abs(level) * (1.0 + 2e-6):
            break
        peaks = alternation(residual, 6)
        if peaks is None:
            break
        where = _refine(at, residual, peaks)
    if best is None:
        raise ConfigError(f"no pole-free rational seed of 1/sqrt on a domain of ratio {kappa:g}; narrow the domain")
    return best


def _levelled(t: Array, kappa: float, signs: Array) -> tuple[Array, float, float] | None:
    """P, c and the levelled error through six points of alternating sign; None where every solution has a pole."""
    w = np.sqrt(t)[:, None] * (t[:, None] / kappa) ** np.arange(4)
    b = np.column_stack([np.ones(6), t / kappa])
    left = np.linalg.qr(w / np.abs(w).max(axis=0), mode="complete")[0][:, 4:].T
    a0, a1 = left @ b, left @ (signs[:, None] * b)
    det = [
        np.linalg.det(a1),
        a0[0, 0] * a1[1, 1] + a1[0, 0] * a0[1, 1] - a0[0, 1] * a1[1, 0] - a1[0, 1] * a0[1, 0],
        np.linalg.det(a0),
    ]
    found: tuple[Array, float, float] | None = None
    for root in np.roots(det):
        if abs(root.imag) > 1e-9 * max(1.0, abs(root)):
            continue
        e = float(root.real)
        q = np.linalg.svd(a0 + e * a1)[2][-1]
        if q[1] == 0.0 or (q[0] + q[1] / kappa) * (q[0] + q[1]) <= 0.0:
            continue
        if found is None or abs(e) < abs(found[2]):
            right = (1.0 + e * signs) * (b @ q)
            p = np.linalg.lstsq(w, right, rcond=None)[0]
            lead = q[1] / kappa
            found = p / kappa ** np.arange(4) / lead, float(q[0] / lead), e
    return found


def _refine(at: Array, residual: Array, peaks: Array) -> Array:
    """Positions of the extrema, the inner ones moved to the top of the parabola through their neighbours."""
    moved: Array = at[peaks].copy()
    for i, k in enumerate(peaks):
        if 0 < k < len(at) - 1:
            left, mid, right = residual[k - 1], residual[k], residual[k + 1]
            bend = left - 2.0 * mid + right
            if bend != 0.0:
                moved[i] += 0.5 * (left - right) / bend * (at[1] - at[0])
    return moved
