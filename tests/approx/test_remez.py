# SPDX-License-Identifier: Apache-2.0
"""The exchange algorithms: equioscillation, known minima, and agreement with a linear programme."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from heatfhe.approx.remez import alternation, fit_linear
from heatfhe.errors import ConfigError

GRID = np.cos(np.linspace(np.pi, 0.0, 2001))


@pytest.mark.parametrize("degree", [1, 2, 5, 9])
def test_the_best_fit_of_the_next_power_is_chebyshevs(degree: int) -> None:
    """x^(n+1) less its best fit of degree n is T_(n+1) / 2^n."""
    _, error = fit_linear(chebyshev.chebvander(GRID, degree), GRID ** (degree + 1))
    assert error == pytest.approx(2.0**-degree, rel=1e-5)


def test_the_residual_alternates_at_one_height() -> None:
    rows, wanted = chebyshev.chebvander(GRID, 6), np.exp(GRID) * np.sin(3 * GRID)
    c, error = fit_linear(rows, wanted)
    residual = rows @ c - wanted
    peaks = alternation(residual, 8)
    assert peaks is not None
    assert (np.diff(np.sign(residual[peaks])) != 0).all()
    np.testing.assert_allclose(np.abs(residual[peaks]), error, rtol=1e-4)


def test_it_agrees_with_a_linear_programme() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    grid = np.cos(np.linspace(np.pi, 0.0, 301))
    rows, wanted = chebyshev.chebvander(grid, 4), 1.0 / (1.3 + grid)
    _, error = fit_linear(rows, wanted)
    column = np.ones((len(grid), 1))
    bound = optimize.linprog(
        [0.0] * 5 + [1.0],
        A_ub=np.block([[rows, -column], [-rows, -column]]),
        b_ub=np.concatenate([wanted, -wanted]),
        bounds=[(None, None)] * 6,
    )
    assert error == pytest.approx(bound.fun, rel=1e-5)


def test_alternation_keeps_the_largest_in_order() -> None:
    residual = np.array([1.0, 3.0, -2.0, 0.1, -0.1, 4.0, -5.0, 0.5])
    assert alternation(residual, 4).tolist() == [1, 2, 5, 6]  # type: ignore[union-attr]
    assert alternation(residual, 3).tolist() == [2, 5, 6]  # type: ignore[union-attr]
    assert alternation(np.array([1.0, 2.0, 3.0]), 2) is None


def test_a_coarse_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match="denser grid than 4 points"):
        fit_linear(chebyshev.chebvander(np.linspace(-1, 1, 4), 5), np.ones(4))
