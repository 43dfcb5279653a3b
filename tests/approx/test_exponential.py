# SPDX-License-Identifier: Apache-2.0
"""The exponential: least relative error, its table, and what squarings do to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import ExponentialFit, exponential, fit_exponential
from heatfhe.errors import ConfigError
from heatfhe.files import plain, remade
from tests.approx.values import Traced

# half width: least relative error E at degree 8, relative error after squaring 1, 2, 3, 4 times
TABLE = {
    0.25: (4.158e-14, 8.30e-14, 1.66e-13, 3.32e-13, 6.64e-13),
    0.5: (2.091e-11, 4.18e-11, 8.36e-11, 1.67e-10, 3.35e-10),
    0.75: (7.981e-10, 1.60e-09, 3.19e-09, 6.38e-09, 1.28e-08),
    1.0: (1.052e-08, 2.10e-08, 4.21e-08, 8.42e-08, 1.68e-07),
    1.25: (7.743e-08, 1.55e-07, 3.10e-07, 6.19e-07, 1.24e-06),
    1.5: (3.934e-07, 7.87e-07, 1.57e-06, 3.15e-06, 6.29e-06),
    1.75: (1.546e-06, 3.09e-06, 6.19e-06, 1.24e-05, 2.47e-05),
    2.0: (5.036e-06, 1.01e-05, 2.01e-05, 4.03e-05, 8.06e-05),
    2.5: (3.565e-05, 7.13e-05, 1.43e-04, 2.85e-04, 5.71e-04),
    3.0: (1.728e-04, 3.46e-04, 6.91e-04, 1.38e-03, 2.77e-03),
    3.5: (6.425e-04, 1.29e-03, 2.57e-03, 5.15e-03, 1.03e-02),
    4.0: (1.961e-03, 3.93e-03, 7.87e-03, 1.58e-02, 3.18e-02),
    5.0: (1.186e-02, 2.39e-02, 4.83e-02, 9.89e-02, 2.08e-01),
    6.0: (4.724e-02, 9.67e-02, 2.03e-01, 4.47e-01, 1.09e00),
    7.0: (1.380e-01, 2.95e-01, 6.77e-01, 1.81e00, 6.92e00),
    8.0: (3.114e-01, 7.20e-01, 1.96e00, 7.75e00, 7.56e01),
}
TWO = (
    2.2795852982e00,
    3.1812736885e00,
    1.3778968090e00,
    4.2547959396e-01,
    1.0145609598e-01,
    1.9648563397e-02,
    3.1943571994e-03,
    4.3961617430e-04,
    4.4866387630e-05,
)


@pytest.mark.parametrize("half_width", TABLE)
def test_errors_match_the_table(half_width: float) -> None:
    error, *after = TABLE[half_width]
    rounding = 3e-15  # the first row is near the floor of doubles
    assert fit_exponential(half_width).error == pytest.approx(error, rel=1e-3, abs=rounding)
    for squarings, expected in enumerate(after, start=1):
        fit = fit_exponential(half_width, 8, squarings)
        assert fit.final_error == pytest.approx(expected, rel=6e-3, abs=rounding * 2**squarings)
        t = np.linspace(-1.0, 1.0, 20001)
        relative = exponential(t, fit) * np.exp(-half_width * 2**squarings * t) - 1.0
        assert np.abs(relative).max() <= fit.final_error * (1 + 1e-4) + 2e-14 * 2**squarings


def test_coefficients_at_half_width_two() -> None:
    fit = fit_exponential(2.0)
    assert fit.coefficients == pytest.approx(TWO, abs=1e-10)
    assert fit.error == pytest.approx(5.035838e-06, rel=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    half_width=st.floats(0.1, 5.0),
    degree=st.integers(3, 12),
    squarings=st.integers(0, 4),
    t=st.floats(-1.0, 1.0),
)
def test_the_bound_holds(half_width: float, degree: int, squarings: int, t: float) -> None:
    half_width = round(half_width, 2)
    try:
        fit = fit_exponential(half_width, degree, squarings)
    except ConfigError:  # so low a degree on so wide a window that it may turn negative
        assert degree < 6
        return
    relative = exponential(t, fit) * np.exp(-half_width * 2**squarings * t) - 1.0
    assert abs(relative) <= fit.final_error * (1 + 1e-3) + 1e-13 * 2**squarings


def test_the_mask_leaves_exact_zeros_and_costs_no_level() -> None:
    fit = fit_exponential(1.75, 8, 2)
    t, mask = np.linspace(-1, 1, 8), np.array([1.0, 0, 1, 1, 0, 0, 1, 1])
    y = exponential(Traced(t), fit, mask=mask)
    assert y.spent == fit.levels == 6
    assert y.tally["products"] == 4 + 2
    assert (y.value[mask == 0.0] == 0.0).all()
    np.testing.assert_allclose(y.value[mask == 1.0], np.exp(7.0 * t)[mask == 1.0], rtol=1e-5)


def test_refusals_and_json() -> None:
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="half width"):
            fit_exponential(bad)
    with pytest.raises(ConfigError, match="may turn negative"):
        fit_exponential(40.0)
    fit = fit_exponential(1.5, 8, 1)
    assert remade(ExponentialFit, plain(fit)) == fit
    with pytest.raises(ConfigError, match="takes 9 coefficients, got 8"):
        ExponentialFit(half_width=1.0, degree=8, coefficients=fit.coefficients[:8], squarings=0, error=0.1)
