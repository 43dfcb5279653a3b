# SPDX-License-Identifier: Apache-2.0
"""Numeric twins of proofs/Softmax.v: two phases, their identity in one pass, and the reciprocals' domains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.approx import ReciprocalFit, SoftmaxFit, reciprocal, softmax, softmax_solvers
from tests.approx.worst_case import fit_softmax, init_domain, refine_domain
from tests.proofs.twin import ROUND, twin

Array = np.ndarray
WIDTH = 8.0
rows = st.lists(st.floats(-WIDTH / 2.0, WIDTH / 2.0), min_size=2, max_size=24).map(np.array)
deltas = st.sampled_from([1, 2, 4])
init_counts = st.integers(0, 8)


def fitted(delta_2: int, row_length: int) -> SoftmaxFit:
    return fit_softmax(-WIDTH / 2.0, WIDTH / 2.0, row_length=row_length, deltas=(2, delta_2))


def two_phases(x: Array, delta_2: int, **solvers: Any) -> Array:
    """The project's softmax, its exponential replaced by the exact one; exact reciprocals unless given."""
    fit, n = fitted(delta_2, len(x)), float(len(x))
    exact = {"init": lambda s: n / s, "refine": lambda s: n / s}
    y = softmax(
        x / (WIDTH / 2.0), fit, row_sum=np.sum,
        exponentiate=lambda t: np.exp(t * fit.width / (2.0 * delta_2)), **{**exact, **solvers},
    )
    return y / n


def exact_softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


@twin("Softmax.softmax_is_distribution", "Softmax.square_normalise_softmax", "Softmax.passes_softmax")
@given(x=rows, delta_2=deltas)
def test_two_phases_are_the_softmax(x: Array, delta_2: int) -> None:
    y = two_phases(x, delta_2)
    assert y.min() >= 0.0
    assert abs(y.sum() - 1.0) <= ROUND
    assert np.abs(y - exact_softmax(x)).max() <= ROUND
    gentle = exact_softmax(x / 2.0)
    assert np.abs(gentle**2 / np.sum(gentle**2) - y).max() <= ROUND


@twin("Softmax.common_factor_cancels")
@given(x=rows, factor=st.floats(0.2, 5.0), delta_2=st.sampled_from([2, 4]))
def test_a_wrong_first_reciprocal_cancels(x: Array, factor: float, delta_2: int) -> None:
    off = two_phases(x, delta_2, init=lambda s: factor * len(x) / s)
    assert np.abs(off - two_phases(x, delta_2)).max() <= ROUND


@twin("Softmax.single_pass_identity", "Softmax.single_pass_error")
@given(x=rows, seed=st.integers(0, 2**32 - 1), init_count=init_counts, refine_count=init_counts)
def test_one_sweep_is_the_two_phases(x: Array, seed: int, init_count: int, refine_count: int) -> None:
    fit, n, v = fitted(2, len(x)), float(len(x)), np.random.default_rng(seed).normal(size=len(x))
    init, refine = softmax_solvers(fit, init_count, refine_count, n)
    assert fit.refine is not None
    assert refine is not None
    e = np.exp(x / 2.0)
    s2, a = np.sum(e * e), np.sum(e * e * v)
    r1 = init(np.sum(e))
    r2 = refine(r1**2 * s2)
    out = two_phases(x, 2, init=init, refine=refine) @ v
    size = np.sum(np.abs(e * e * v)) * (r1**2 * abs(r2) / n + 1.0 / s2)
    assert abs(out - a * r1**2 * r2 / n) <= ROUND * size
    error = 1.0 - r1**2 * s2 * r2 / n                    # the last reciprocal's own, for rows of mean one
    assert abs(out - a / s2 * (1.0 - error)) <= ROUND * size
    if fit.refine.lo <= r1**2 * s2 / n <= fit.refine.hi:
        assert abs(out - a / s2) <= fit.refine.error(refine_count) * abs(a / s2) + ROUND * size


@twin("Softmax.sum_of_squares_range", "Softmax.mean_one_range")
@given(x=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40).map(np.array))
def test_the_sum_of_squares_of_a_distribution(x: Array) -> None:
    y = (x + 1e-9) / np.sum(x + 1e-9)
    n = len(y)
    assert 1.0 / n - ROUND <= np.sum(y * y) <= 1.0 + ROUND
    lo, hi = refine_domain(1e3, 2, n)                    # scores so wide that the row length decides
    assert (lo, hi) == (1.0, float(n))
    assert lo - ROUND <= np.mean((n * y) ** 2) <= hi * (1.0 + ROUND)


@twin("Softmax.sum_of_squares_ratio", "Softmax.sum_of_squares_cosh")
@given(x=rows, delta_2=st.sampled_from([2, 4]))
def test_the_spread_of_the_scores_bounds_the_sum_of_squares(x: Array, delta_2: int) -> None:
    y, n = exact_softmax(x / 2.0), len(x)                # what the last pass squares
    squares = n * np.sum(y * y)
    a, b = y.min(), y.max()
    assert squares <= (a + b) ** 2 / (4.0 * a * b) * (1.0 + ROUND)
    assert math.isclose((a + b) ** 2 / (4.0 * a * b), math.cosh(np.ptp(x) / 4.0) ** 2, rel_tol=1e-9)
    assert squares <= refine_domain(WIDTH, delta_2, 10**6)[1] * (1.0 + ROUND)


def test_two_level_rows_attain_that_bound() -> None:
    """Some entries at each end of the scores: the domain is as wide as it must be, and no wider."""
    n, widest = 4000, 0.0
    for high in range(1, n, 7):
        x = np.where(np.arange(n) < high, WIDTH / 2.0, -WIDTH / 2.0)
        widest = max(widest, n * float(np.sum(exact_softmax(x / 2.0) ** 2)))
    assert math.isclose(widest, refine_domain(WIDTH, 2, n)[1], rel_tol=1e-4)


def after_loose_init(x: Array, solver: str, init_count: int) -> tuple[float, float, float]:
    """The mean square of a row after its first normalisation at init_count, and the two ends promised for it."""
    lo, hi = init_domain(WIDTH, 2)
    init = ReciprocalFit(lo=lo, hi=hi, solver=solver)
    e = np.exp(x / 2.0)
    y = e * reciprocal(np.sum(e), init, init_count, scale=1.0 / len(x))
    return float(np.mean(y * y)), *refine_domain(WIDTH, 2, len(x), init, init_count)


@twin("Softmax.refine_domain")
@given(x=rows, solver=st.sampled_from(["plain", "relaxed", "below"]), init_count=init_counts)
def test_a_loose_first_reciprocal_leaves_the_row_in_the_widened_domain(x: Array, solver: str, init_count: int) -> None:
    square, lo, hi = after_loose_init(x, solver, init_count)
    assert lo - ROUND <= square <= hi * (1.0 + ROUND)
    constant, lo, _ = after_loose_init(np.full_like(x, WIDTH / 2.0), solver, init_count)
    if solver == "plain":
        assert abs(constant - lo) <= ROUND               # attained at an end of the first domain


@twin("Softmax.exponential_sum_range")
@given(x=rows, delta_2=deltas)
def test_the_mean_of_exponentials_lies_in_the_first_domain(x: Array, delta_2: int) -> None:
    lo, hi = init_domain(WIDTH, delta_2)
    assert lo * (1.0 - ROUND) <= np.mean(np.exp(x / delta_2)) <= hi * (1.0 + ROUND)
