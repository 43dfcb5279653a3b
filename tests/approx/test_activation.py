# SPDX-License-Identifier: Apache-2.0
"""GELU and SiLU: single polynomials and compositions against errors found elsewhere, and the choice between them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import ActivationFit, Depth, activation, fit_activation
from heatfhe.approx import exact_activation as exact
from heatfhe.approx.activation import FUNCTIONS, fit_pair, fit_single
from heatfhe.errors import ConfigError
from heatfhe.files import plain, remade
from tests.approx.values import Traced

# degree: largest error at bound 32 of gelu, gelu_new, silu (upper bounds of the true minimum, to two digits)
SINGLES = {
    59: (1.8e-02, 1.8e-02, 3.2e-03),
    63: (1.3e-02, 1.3e-02, 2.2e-03),
    79: (3.2e-03, 3.2e-03, 4.4e-04),
    95: (6.6e-04, 7.1e-04, 9.1e-05),
    111: (1.1e-04, 1.4e-04, 1.9e-05),
    119: (4.2e-05, 6.1e-05, 8.5e-06),
    127: (1.5e-05, 2.5e-05, 3.9e-06),
}
# degrees and bound: largest error of gelu, gelu_new, silu; each a local optimum, so reached within a factor
PAIRS = {
    (7, 7, 16.0): (8.3e-03, 8.1e-03, 5.6e-03),
    (7, 15, 16.0): (1.1e-05, 2.0e-05, 1.2e-04),
    (15, 15, 32.0): (6.9e-06, 1.5e-05, 9.9e-05),
}


def test_exact_functions() -> None:
    x = np.array([-4.0, -1.0, -0.1, 0.0, 0.5, 2.0, 10.0])
    assert exact("gelu_new")(x) == pytest.approx(
        [-0.000070246, -0.158808009, -0.046017249, 0.0, 0.345714010, 1.954597694, 10.0], abs=6e-10
    )
    assert exact("gelu")(x) == pytest.approx(
        [-0.000126685, -0.158655254, -0.046017216, 0.0, 0.345731231, 1.954499736, 10.0], abs=6e-10
    )
    assert exact("silu")(x) == pytest.approx([v / (1 + math.exp(-v)) for v in x], abs=1e-14)


def test_exact_functions_equal_torchs() -> None:
    torch = pytest.importorskip("torch")
    x = torch.linspace(-12, 12, 401, dtype=torch.float64)
    functional = torch.nn.functional
    theirs = {
        "gelu": functional.gelu(x),
        "gelu_new": functional.gelu(x, approximate="tanh"),
        "silu": functional.silu(x),
        "quick_gelu": x * torch.sigmoid(1.702 * x),
        "relu": functional.relu(x),
    }
    for name in FUNCTIONS:
        np.testing.assert_allclose(exact(name)(x.numpy()), theirs[name].numpy(), atol=1e-14)


@pytest.mark.parametrize("degree", SINGLES)
def test_single_polynomials_reach_the_table(degree: int) -> None:
    for function, expected in zip(("gelu", "gelu_new", "silu"), SINGLES[degree]):
        fit = fit_single(function, 32.0, degree)
        assert fit.error <= expected * 1.03
        assert fit.error >= expected * 0.9
        assert max(map(abs, fit.outer)) < 0.66


@pytest.mark.parametrize("case", PAIRS)
def test_compositions_reach_the_table(case: tuple[int, int, float]) -> None:
    inner, outer, bound = case
    for function, expected in zip(("gelu", "gelu_new", "silu"), PAIRS[case]):
        fit = fit_pair(function, bound, inner, outer, enough=1.2 * expected)
        assert fit.error <= expected * 1.6
        assert fit.inner is not None
        t = np.linspace(-1, 1, 20001)
        assert np.abs(np.polynomial.chebyshev.chebval(t, fit.inner)).max() <= 1.0 + 1e-9
        assert max(map(abs, (*fit.inner, *fit.outer))) < 2.0


@pytest.mark.parametrize("function", ["gelu", "gelu_new"])
def test_the_bounds_asked_of_gelu(function: str) -> None:
    """On +-32: 2e-3 in at most 8 levels, 1e-6 in at most 11, measured on 200001 points."""
    x = np.linspace(-32.0, 32.0, 200001)
    for tolerance, most in ((2e-3, 8), (1e-6, 11)):
        fit = fit_activation(function, 32.0, tolerance=tolerance)
        assert fit.levels <= most
        assert np.abs(activation(x / 32.0, fit) - exact(function)(x)).max() <= tolerance
        assert activation(Depth(), fit).spent == fit.levels


def test_the_composition_of_the_paper_is_eleven_levels() -> None:
    fit = fit_pair("gelu_new", 32.0, 31, 27, enough=1e-6)
    assert fit.levels == 11
    assert fit.error <= 1e-6
    traced = activation(Traced(np.linspace(-1, 1, 9)), fit)
    assert traced.spent == 11
    assert traced.tally["products"] == fit.products == 12 + 10 + 1


@settings(max_examples=12, deadline=None)
@given(
    function=st.sampled_from([f for f in FUNCTIONS if f != "relu"]),
    bound=st.sampled_from([3.0, 6.5, 11.0]),
    tolerance=st.sampled_from([1e-1, 1e-2, 1e-3]),
)
def test_the_choice_meets_its_tolerance_in_the_fewest_levels(function: str, bound: float, tolerance: float) -> None:
    fit = fit_activation(function, bound, tolerance=tolerance)
    x = np.linspace(-bound, bound, 30001)
    measured = np.abs(activation(x / bound, fit) - exact(function)(x)).max()
    assert measured <= fit.error * (1 + 1e-3) + 1e-14
    assert fit.error <= tolerance
    if fit.levels > 3:
        assert fit_single(function, bound, 2 ** (fit.levels - 2) - 1).error > tolerance
        with pytest.raises(ConfigError, match="allow more levels"):
            fit_activation(function, bound, tolerance=tolerance, max_levels=fit.levels - 1)


@pytest.mark.parametrize(("bound", "tolerance"), [(2.0, 1e-2), (8.0, 1e-2), (32.0, 5e-2)])
def test_relu_is_fitted_to_a_loose_tolerance(bound: float, tolerance: float) -> None:
    fit, x = fit_activation("relu", bound, tolerance=tolerance), np.linspace(-bound, bound, 30001)
    assert np.abs(activation(x / bound, fit) - np.maximum(x, 0.0)).max() <= fit.error * (1 + 1e-3) <= tolerance * 1.001


def test_relu_is_refused_with_the_error_it_reaches() -> None:
    """Its corner costs degree: the error of |x| falls as one over it, so a tighter tolerance has no fit."""
    with pytest.raises(ConfigError, match=r"relu on \|x\| <= 8 reaches 0\.0\d+ in 9 levels, not 0\.001; allow more"):
        fit_activation("relu", 8.0, tolerance=1e-3, max_levels=9)


def test_fewer_products_win_at_equal_levels() -> None:
    fit = fit_activation("silu", 8.0, tolerance=1e-3)
    same = [d for d in (19, 23, 27, 31) if fit_single("silu", 8.0, d).error <= 1e-3]
    assert fit.products <= min(fit_single("silu", 8.0, d).products for d in same)


def test_outside_the_bound_it_explodes() -> None:
    fit = fit_activation("gelu_new", 32.0, tolerance=2e-3)
    assert abs(activation(36.0 / 32.0, fit)) > 1e6


@pytest.mark.parametrize("bound", [0.0, -3.0, float("nan"), float("inf")])
def test_bad_bounds_are_refused(bound: float) -> None:
    with pytest.raises(ConfigError, match="activation's bound"):
        fit_activation("gelu", bound)


def test_other_refusals_and_json() -> None:
    with pytest.raises(ConfigError, match="'silu', 'quick_gelu', 'relu', got 'mish'"):
        fit_activation("mish", 4.0)
    with pytest.raises(ConfigError, match="odd degree, got 8"):
        fit_single("gelu", 4.0, 8)
    common: dict[str, Any] = {"function": "gelu", "bound": 4.0, "error": 0.1}
    with pytest.raises(ConfigError, match="are odd"):
        ActivationFit(kind="single", outer=(0.1, 1.0), inner=None, **common)
    with pytest.raises(ConfigError, match="inner polynomial"):
        ActivationFit(kind="composition", outer=(0.0, 1.0), inner=None, **common)
    for fit in (fit_single("gelu", 4.0, 11), fit_pair("silu", 16.0, 7, 7)):
        assert remade(ActivationFit, plain(fit)) == fit
