# SPDX-License-Identifier: Apache-2.0
"""e^x on a symmetric interval: a polynomial of least relative error, then squarings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import Plain, T
from heatfhe.approx.polynomial import depth, evaluate
from heatfhe.approx.remez import fit_linear
from heatfhe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialFit:
    """A Chebyshev series of e^(w t) on -1 <= t <= 1 (w = half_width) that is then squared `squarings` times.

    `error` is the largest relative error of the series; `final_error` that of the result.
    """

    half_width: float
    degree: int
    coefficients: tuple[float, ...]
    squarings: int
    error: float

    def __post_init__(self) -> None:
        _check.positive("an exponential's half width", self.half_width)
        _check.count("an exponential's degree", self.degree, floor=1)
        _check.count("squarings", self.squarings)
        _check.finite("an exponential", (*self.coefficients, self.error))
        if len(self.coefficients) != self.degree + 1:
            raise ConfigError(
                f"degree {self.degree} takes {self.degree + 1} coefficients, got {len(self.coefficients)}"
            )
        if not 0.0 <= self.error < 1.0:
            raise ConfigError(f"an exponential with relative error {self.error:g} may turn negative; narrow it")

    @property
    def final_error(self) -> float:
        """Largest relative error after the squarings: (1 + error)^(2^squarings) - 1."""
        return float((1.0 + self.error) ** (1 << self.squarings) - 1.0)

    @property
    def levels(self) -> int:
        """Levels from t to the result."""
        return depth(self.degree) + self.squarings


@lru_cache(maxsize=1024)
def fit_exponential(half_width: float, degree: int = 8, squarings: int = 0) -> ExponentialFit:
    """The polynomial with the least relative error against e^u on |u| <= half_width.

    Domain  half_width > 0, up to where the least relative error reaches 1 (about 9.5 at degree 8).
    Bound   .error: the levelled relative error, 5.04e-6 at half_width 2 and degree 8.
    Depth   none: a fit.
    Source  Remez 1934 with weight e^-u: squarings double a relative error each, whatever the size of the value.
    """
    _check.positive("an exponential's half width", half_width)
    _check.count("an exponential's degree", degree, floor=1)
    grid = np.cos(np.linspace(np.pi, 0.0, 4001))
    rows = chebyshev.chebvander(grid, degree) * np.exp(-half_width * grid)[:, None]
    coefficients, error = fit_linear(rows, np.ones_like(grid))
    return ExponentialFit(
        half_width=half_width,
        degree=degree,
        coefficients=tuple(float(v) for v in coefficients),
        squarings=squarings,
        error=error,
    )


def exponential(t: T, fit: ExponentialFit, *, mask: Plain | None = None) -> T:
    """e^(w 2^squarings t), zero where the mask is.

    Domain  -1 <= t <= 1 (also where the mask is zero: the polynomial explodes outside).
    Bound   relative error fit.final_error; a mask of other values comes out raised to 2^squarings.
    Depth   ceil(log2(degree + 1)) + squarings: 4 + squarings at degree 8. The mask costs none.
    Source  the paper, Softmax; the mask rides in the coefficients.
    """
    y = evaluate(fit.coefficients, t, mask=mask)
    for _ in range(fit.squarings):
        y = y * y
    return y
