# SPDX-License-Identifier: Apache-2.0
"""GELU, SiLU and ReLU as x (g(x) + 1/2) with g one odd polynomial, or two composed ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import T
from heatfhe.approx.composition import fit_composition, odd_series, sample_points
from heatfhe.approx.polynomial import depth, evaluate, plan
from heatfhe.approx.remez import Array, fit_linear
from heatfhe.errors import ConfigError

FUNCTIONS = ("gelu_new", "gelu", "silu", "quick_gelu", "relu")
KINDS = ("single", "composition")
_SINGLES = (1, 3, 5, 7, 11, 15, 19, 23, 27, 31, 39, 47, 55, 59, 63, 79, 95, 111, 119, 127, 159, 191, 223, 255)
_PAIRS = ((7, 15), (15, 7), (15, 15), (31, 7), (31, 15), (15, 31), (31, 27), (31, 31))
_MOST_LEVELS = 11


def exact(function: str) -> Callable[[Any], Array]:
    """The function itself, for numpy arrays in float64."""
    half = odd_part(function)

    def f(x: Any) -> Array:
        x = np.asarray(x, dtype=np.float64)
        y: Array = x * (half(x) + 0.5)
        return y

    return f


def odd_part(function: str) -> Callable[[Array], Array]:
    """g with function(x) = x (g(x) + 1/2): odd, rising, within 1/2. That of ReLU jumps at 0, where x makes it small."""
    _check.one_of("an activation", function, FUNCTIONS)
    if function == "gelu_new":
        return lambda x: 0.5 * np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))
    if function == "silu":
        return lambda x: 0.5 * np.tanh(0.5 * x)
    if function == "quick_gelu":
        return lambda x: 0.5 * np.tanh(0.851 * x)
    if function == "relu":
        return lambda x: 0.5 * np.sign(x)
    erf = np.frompyfunc(math.erf, 1, 1)
    return lambda x: 0.5 * np.asarray(erf(np.asarray(x) / math.sqrt(2.0)), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationFit:
    """x (outer(inner(x / bound)) + 1/2) for |x| <= bound; inner is absent for a single polynomial.

    Coefficients are full Chebyshev series with zero even entries; `error` is the largest absolute error of the
    activation, measured on a dense grid.
    """

    function: str
    bound: float
    kind: str
    outer: tuple[float, ...]
    inner: tuple[float, ...] | None
    error: float

    def __post_init__(self) -> None:
        _check.one_of("an activation", self.function, FUNCTIONS)
        _check.one_of("an activation's kind", self.kind, KINDS)
        _check.positive("an activation's bound", self.bound)
        _check.finite("an activation", (*self.outer, *(self.inner or ()), self.error))
        if (self.kind == "composition") != (self.inner is not None):
            raise ConfigError(f"a {self.kind} activation has {'an' if self.inner is None else 'no'} inner polynomial")
        for part in (self.outer, self.inner or (0.0, 1.0)):
            if len(part) < 2 or len(part) % 2 or any(part[0::2]):
                raise ConfigError("an activation's polynomials are odd: an even number of coefficients, even ones zero")

    @property
    def levels(self) -> int:
        """Levels from x / bound to the result."""
        inner = 0 if self.inner is None else depth(len(self.inner) - 1)
        return inner + depth(len(self.outer) - 1) + 1

    @property
    def products(self) -> int:
        """Products of two unknowns."""
        inner = 0 if self.inner is None else plan(len(self.inner) - 1, True).products
        return inner + plan(len(self.outer) - 1, True).products + 1


def activation(u: T, fit: ActivationFit) -> T:
    """The activation of x = bound u; the bound is folded into the outer coefficients.

    Domain  -1 <= u <= 1; outside, the polynomials explode.
    Bound   absolute error fit.error; noise on the outer polynomial comes out times |x|.
    Depth   fit.levels: ceil(log2(d + 1)) per polynomial, and 1 for the product with x.
    Source  the paper, GELU; Moon et al. (THOR) for the composition.
    """
    inner = u if fit.inner is None else evaluate(fit.inner, u, odd=True)
    half: T = evaluate([fit.bound * c for c in fit.outer], inner, odd=True) + 0.5 * fit.bound
    y: T = u * half
    return y


def fit_activation(
    function: str, bound: float, *, tolerance: float = 1e-3, max_levels: int | None = None
) -> ActivationFit:
    """The fit that meets the tolerance in the fewest levels, and among those in the fewest products.

    Domain  |x| <= bound, bound > 0.
    Bound   fit.error <= tolerance; ConfigError, with the best error reached, when max_levels does not allow it.
    Depth   none: a fit.
    Source  single polynomials by Remez's exchange with weight |x|; compositions by fit_composition.
    """
    _check.one_of("an activation", function, FUNCTIONS)
    _check.positive("an activation's bound", bound)
    _check.tolerance(tolerance)
    return _fit(function, float(bound), float(tolerance), _MOST_LEVELS if max_levels is None else int(max_levels))


@lru_cache(maxsize=256)
def _fit(function: str, bound: float, tolerance: float, max_levels: int) -> ActivationFit:
    """Singles level by level: of equal depth, the largest errs less than any composition, which only saves products."""
    least = math.inf
    for levels in range(2, max_levels + 1):
        degrees = [d for d in _SINGLES if depth(d) + 1 == levels]
        single: ActivationFit | None = None
        if degrees:
            most = fit_single(function, bound, degrees[-1])
            least = min(least, most.error)
            if most.error > tolerance:
                continue
            tried = (fit_single(function, bound, d) for d in degrees)
            single = next(fit for fit in tried if fit.error <= tolerance)
        for inner, outer in _pairs(levels, math.inf if single is None else single.products):
            pair = fit_pair(
                function,
                bound,
                inner,
                outer,
                enough=0.9 * tolerance,
                hopeless=20.0 * tolerance,
                starts=2 if single else 5,
            )
            least = min(least, pair.error)
            if pair.error <= tolerance:
                return pair
        if single is not None:
            return single
    raise ConfigError(
        f"{function} on |x| <= {bound:g} reaches {least:.2g} in {max_levels} levels, not {tolerance:g}; "
        f"allow more levels (up to {_MOST_LEVELS}), a larger tolerance or a smaller bound"
    )


def _pairs(levels: int, most: float) -> list[tuple[int, int]]:
    """Degrees (inner, outer) of this many levels with fewer products than `most`, the fewest first."""
    cost = {(a, b): plan(a, True).products + plan(b, True).products + 1 for a, b in _PAIRS}
    return sorted(
        (ab for ab in _PAIRS if depth(ab[0]) + depth(ab[1]) + 1 == levels and cost[ab] < most), key=cost.__getitem__
    )


@lru_cache(maxsize=1024)
def fit_single(function: str, bound: float, degree: int) -> ActivationFit:
    """The odd polynomial of this degree with the least |x|-weighted error.

    Domain  |x| <= bound; odd degree.
    Bound   .error, measured on a dense grid.
    Depth   none: a fit.
    Source  Remez 1934; x T_1, x T_3, ... form a Haar system on (0, bound].
    """
    if degree < 1 or degree % 2 == 0:
        raise ConfigError(f"an activation's polynomial has odd degree, got {degree}")
    t = np.sin(np.linspace(0.0, 0.5 * np.pi, max(2001, 24 * degree) + 1))[1:]
    rows = bound * t[:, None] * chebyshev.chebvander(t, degree)[:, 1::2]
    odd, _ = fit_linear(rows, bound * t * odd_part(function)(bound * t), start=1.0 / (degree + 3))
    return _measured(function, bound, "single", _full(odd), None)


@lru_cache(maxsize=256)
def fit_pair(
    function: str,
    bound: float,
    inner: int,
    outer: int,
    enough: float = 0.0,
    hopeless: float = math.inf,
    starts: int = 5,
) -> ActivationFit:
    """Two composed odd polynomials of the degrees ``inner`` and ``outer``.

    Domain  |x| <= bound.
    Bound   .error, measured on a dense grid; a local optimum, the search ends early once under `enough`.
    Depth   none: a fit.
    Source  fit_composition.
    """
    x = sample_points(bound, inner + outer)
    f = odd_part(function)(x)
    first, second, _ = fit_composition(x, f, bound, inner, outer, enough=enough, hopeless=hopeless, starts=starts)
    return _measured(function, bound, "composition", _full(second), _full(first))


def _full(odd: Array) -> tuple[float, ...]:
    return tuple(float(v) for v in odd_series(odd))


def _measured(
    function: str, bound: float, kind: str, outer: tuple[float, ...], inner: tuple[float, ...] | None
) -> ActivationFit:
    """The fit with its error on 20000 points of [0, bound]; the error is even in x."""
    fit = ActivationFit(function=function, bound=bound, kind=kind, outer=outer, inner=inner, error=0.0)
    even = np.linspace(0.0, 1.0, 10001)
    t = np.unique(np.concatenate([even, np.sin(0.5 * np.pi * even), even**3]))
    error = float(np.abs(activation(t, fit) - exact(function)(bound * t)).max())
    return ActivationFit(function=function, bound=bound, kind=kind, outer=outer, inner=inner, error=error)
