# SPDX-License-Identifier: Apache-2.0
"""The fit of an odd function by two composed odd polynomials, by Levenberg and Marquardt in a rising p-norm."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import chebyshev

from heatfhe.approx.remez import Array

_SLOPES = (0.32, 0.22, 0.16, 0.10, 0.5)  # of the first guess of the inner polynomial, per unit of x
_ROOM = 1.0 - 1e-6  # largest |inner|: the outer series must not be left by rounding


def sample_points(bound: float, degrees: int) -> Array:
    """Points of (0, bound], dense at both ends, enough to hold a composition of this sum of degrees."""
    size = 150 + 10 * degrees
    even = (np.arange(size) + 0.5) / size
    near_zero = bound * even**2.5
    near_end = bound * np.sin(0.5 * np.pi * even)
    return np.unique(np.concatenate([near_zero, near_end, [bound]]))


def fit_composition(
    x: Array,
    f: Array,
    bound: float,
    inner_degree: int,
    outer_degree: int,
    *,
    enough: float = 0.0,
    hopeless: float = math.inf,
    starts: int = 5,
) -> tuple[Array, Array, float]:
    """Odd Chebyshev coefficients of P1 and P2 that make x (P2(P1(x / bound)) - f) small, and its largest value on x.

    Domain  x ascends in (0, bound]; f is odd, bounded by 1/2 and rising.
    Bound   the largest residual on x is returned; a local optimum, the best of `starts`. Ends early once a start
            is under `enough` or two of them meet, and gives one up while it is above `hopeless` after 40 turns.
    Depth   none: a fit.
    Source  Moon et al. (THOR) for the composition; Levenberg 1944, Marquardt 1963; p from 2 to 40 by reweighting.
    """
    best: tuple[Array, Array, float] | None = None
    ends: list[float] = []
    for slope in _SLOPES[:starts]:
        inner, outer = _start(x, f, bound, inner_degree, outer_degree, slope)
        found = _descend(x, f, bound, inner, outer, enough, hopeless)
        if best is None or found[2] < best[2]:
            best = found
        agreed = any(abs(found[2] - other) <= 0.02 * found[2] for other in ends)
        ends.append(found[2])
        if best[2] <= enough or (agreed and found[2] <= best[2]):
            break
    assert best is not None
    inner, outer = _rescale(_odd_basis(np.linspace(0.0, 1.0, 20001), inner_degree), best[0], best[1])
    return inner, outer, best[2]


def _odd_basis(u: Array, degree: int) -> Array:
    return chebyshev.chebvander(u, degree)[:, 1::2]


def odd_series(odd_coefficients: Array) -> Array:
    """The Chebyshev series whose odd coefficients are these and whose even ones are zero."""
    series = np.zeros(2 * len(odd_coefficients))
    series[1::2] = odd_coefficients
    return series


def _odd_slopes(u: Array, odd_coefficients: Array) -> Array:
    slopes: Array = chebyshev.chebval(u, chebyshev.chebder(odd_series(odd_coefficients)))
    return slopes


def _start(x: Array, f: Array, bound: float, inner_degree: int, outer_degree: int, slope: float) -> tuple[Array, Array]:
    basis = _odd_basis(x / bound, inner_degree)
    inner = np.linalg.lstsq(basis, np.tanh(slope * x), rcond=None)[0]
    inner = inner / np.abs(basis @ inner).max() * _ROOM
    weighted = x[:, None] * _odd_basis(basis @ inner, outer_degree)
    return inner, np.linalg.lstsq(weighted, x * f, rcond=None)[0]


def _descend(
    x: Array, f: Array, bound: float, inner: Array, outer: Array, enough: float, hopeless: float
) -> tuple[Array, Array, float]:
    """Damped least squares while p rises from 2 to 40; the best maximum seen on the way."""
    basis = _odd_basis(x / bound, 2 * len(inner) - 1)
    damping = 1e-3
    u = basis @ inner
    residual = x * (_odd_basis(u, 2 * len(outer) - 1) @ outer - f)
    best, better = (inner, outer, float(np.abs(residual).max())), 0
    for turn in range(300):
        p = min(40.0, 2.0 + 0.25 * max(0, turn - 20))
        size = np.abs(residual) + 1e-300
        weight = (size / size.max()) ** (0.5 * (p - 2.0)) + 1e-9
        jacobian = np.hstack(
            [(x * _odd_slopes(u, outer))[:, None] * basis, x[:, None] * _odd_basis(u, 2 * len(outer) - 1)]
        )
        a, b = jacobian * weight[:, None], residual * weight
        normal, right = a.T @ a, a.T @ b
        scale = np.sqrt(np.diag(normal)) + 1e-300
        normal = normal / np.outer(scale, scale)
        before = _norm(residual, p)
        for _ in range(8):
            move = np.linalg.solve(normal + damping * np.eye(len(scale)), right / scale) / scale
            tried = _rescale(basis, inner - move[: len(inner)], outer - move[len(inner) :])
            u_new = basis @ tried[0]
            residual_new = x * (_odd_basis(u_new, 2 * len(outer) - 1) @ tried[1] - f)
            if _norm(residual_new, p) <= before:
                damping = max(damping * 0.3, 1e-15)
                inner, outer = tried
                u, residual = u_new, residual_new
                break
            damping = min(damping * 4.0, 1e6)
        top = float(np.abs(residual).max())
        if top < best[2]:
            best, better = (inner, outer, top), turn
        if best[2] <= enough or turn - better > 60 or (turn >= 40 and best[2] > hopeless):
            break
    return best


def _norm(residual: Array, p: float) -> float:
    top = float(np.abs(residual).max())
    return top * float(np.mean((np.abs(residual) / top) ** p)) ** (1.0 / p) if top > 0.0 else 0.0


def _rescale(basis: Array, inner: Array, outer: Array) -> tuple[Array, Array]:
    """The same composition with the inner polynomial's largest value just under 1: u -> m u put into the outer one."""
    m = float(np.abs(basis @ inner).max()) / _ROOM
    degree = 2 * len(outer) - 1
    nodes = chebyshev.chebpts1(degree + 1)
    moved = chebyshev.chebfit(nodes, chebyshev.chebval(m * nodes, odd_series(outer)), degree)
    return inner / m, moved[1::2]
