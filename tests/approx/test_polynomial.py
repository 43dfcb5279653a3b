# SPDX-License-Identifier: Apache-2.0
"""Chebyshev series: value, least depth, and the number of products of two unknowns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev

from heatfhe.approx import Depth, evaluate
from heatfhe.approx.polynomial import depth, divide_by, plan
from heatfhe.errors import ConfigError
from tests.approx.values import Traced

# degree: levels, products of a general series, products of an odd one
TABLE = {
    3: (2, 2, 2),
    7: (3, 5, 5),
    8: (4, 4, 0),
    15: (4, 8, 8),
    27: (5, 11, 10),
    31: (5, 13, 12),
    59: (6, 16, 15),
    63: (6, 18, 17),
    119: (7, 24, 20),
    127: (7, 27, 23),
}


@pytest.mark.parametrize(("degree", "odd"), [(d, odd) for d in TABLE for odd in (False, True) if not odd or d % 2])
def test_products_and_levels_match_the_table(degree: int, odd: bool) -> None:
    levels, general, of_odd = TABLE[degree]
    products = of_odd if odd else general
    rng = np.random.default_rng(degree)
    c = rng.normal(size=degree + 1)
    if odd:
        c[0::2] = 0.0
    x = np.linspace(-1.0, 1.0, 33)
    y = evaluate(c, Traced(x), odd=odd)
    assert (y.tally["products"], y.spent) == (products, levels)
    assert plan(degree, odd).products == products
    np.testing.assert_allclose(y.value, chebyshev.chebval(x, c), atol=1e-11)


@pytest.mark.parametrize("odd", [False, True])
def test_every_degree_has_the_least_depth(odd: bool) -> None:
    for degree in range(1, 300, 2 if odd else 1):
        c = [0.0 if odd and k % 2 == 0 else 1.0 / (k + 1) for k in range(degree + 1)]
        assert evaluate(c, Depth(), odd=odd).spent == depth(degree) == int(np.ceil(np.log2(degree + 1)))


@settings(max_examples=60, deadline=None)
@given(degree=st.integers(0, 140), seed=st.integers(0, 2**31), odd=st.booleans(), gaps=st.booleans())
def test_values_equal_clenshaws(degree: int, seed: int, odd: bool, gaps: bool) -> None:
    rng = np.random.default_rng(seed)
    c = rng.normal(size=degree + 1)
    if gaps:
        c[rng.random(degree + 1) < 0.5] = 0.0
    if odd:
        c[0::2] = 0.0
    x = rng.uniform(-1.0, 1.0, 9)
    bound = 1e-13 * (degree + 1) ** 2 * (1.0 + np.abs(c).sum())
    assert np.abs(evaluate(c, x, odd=odd) - chebyshev.chebval(x, c)).max() <= bound


def test_the_mask_multiplies_every_coefficient_at_no_level() -> None:
    c, x, mask = [0.5, -1.0, 0.25, 2.0, 0.125], np.linspace(-1, 1, 6), np.array([0.0, 1.0, 0.0, 0.5, 1.0, 0.0])
    np.testing.assert_allclose(evaluate(c, x, mask=mask), mask * chebyshev.chebval(x, c), atol=1e-15)
    assert evaluate(c, x, mask=mask)[mask == 0.0].tolist() == [0.0, 0.0, 0.0]
    traced = evaluate(c, Traced(x), mask=mask)
    assert traced.spent == 3
    assert evaluate([3.0], x, mask=mask).tolist() == (3.0 * mask).tolist()
    assert evaluate([3.0], Depth(2), mask=mask).spent == 2


def test_division_by_a_chebyshev_polynomial() -> None:
    rng = np.random.default_rng(3)
    for g in (1, 2, 4, 8):
        for degree in range(g, 2 * g + 1):
            c = rng.normal(size=degree + 1)
            q, r = divide_by(list(c), g)
            back = chebyshev.chebadd(chebyshev.chebmul(q, [0.0] * g + [1.0]), r)
            np.testing.assert_allclose(back[: degree + 1], c, atol=1e-14)
            assert len(q) == degree - g + 1
            assert len(r) == g


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="at least one coefficient"):
        evaluate([], 0.5)
    with pytest.raises(ConfigError, match="holds nan"):
        evaluate([1.0, float("nan")], 0.5)
    with pytest.raises(ConfigError, match="even coefficient is not zero"):
        evaluate([1.0, 2.0], 0.5, odd=True)
