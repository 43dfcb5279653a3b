# SPDX-License-Identifier: Apache-2.0
"""Iterations as bits, against real quantisers and random Lipschitz networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import ReciprocalFit, reciprocal
from heatfhe.errors import ConfigError
from tests.proofs.bits import (
    effective_bits,
    fidelity_bound,
    loss_gap_bound,
    matched_bits,
    quantiser_step,
    solver_error,
    trajectory_bound,
    uniform_loss_gap_bound,
)

Array = np.ndarray[Any, Any]
ROUNDING = 1e-13


def _quantise(w: Array, bits: int, half: float) -> Array:
    """Round to the nearest of 2^bits values spread evenly over [-half, half]."""
    step = quantiser_step(bits, 2 * half)
    return np.asarray(np.clip(np.rint((w + half) / step), 0, 2**bits - 1) * step - half)


@settings(max_examples=200)
@given(count=st.integers(0, 5), scale=st.floats(1e-3, 1e3), rate=st.floats(0.01, 0.99), width=st.floats(1e-3, 1e3))
def test_effective_bits_solve_the_error_equation(count: int, scale: float, rate: float, width: float) -> None:
    error = solver_error(count, scale=scale, rate=rate)
    assert error == pytest.approx(scale * rate ** (2**count), rel=1e-12)
    b = effective_bits(count, scale=scale, rate=rate, width=width)
    assert math.log1p(width / (2 * error)) / math.log(2) == pytest.approx(b, rel=1e-9)
    if b < 45:
        assert width / (2**b - 1) / 2 == pytest.approx(error, rel=1e-3)


@given(rate=st.floats(0.05, 0.95), width=st.floats(0.1, 10.0), scale=st.floats(0.1, 10.0))
def test_each_iteration_doubles_the_bits(rate: float, width: float, scale: float) -> None:
    b = [effective_bits(n, scale=scale, rate=rate, width=width) for n in (20, 21, 40)]
    assert b[1] / b[0] == pytest.approx(2.0, rel=1e-3)
    assert b[2] / 2**40 == pytest.approx(math.log2(1 / rate), rel=1e-6)


def test_known_values() -> None:
    assert effective_bits(0, scale=1.0, rate=0.5, width=1.0) == pytest.approx(1.0)
    assert effective_bits(2, scale=1.0, rate=0.5, width=2.0) == pytest.approx(math.log2(17.0))
    assert quantiser_step(8, 255.0) == 1.0
    assert trajectory_bound([1.0, 1.0, 1.0], 2.0) == 7.0
    assert trajectory_bound([4.0, 2.0, 1.0], 0.5) == 3.0
    assert uniform_loss_gap_bound(1, 3, scale=1.0, rate=0.5, rho=2.0, loss_slope=3.0) == 2 * 3 * 0.25 * 7


def test_a_reciprocal_site_is_such_a_solver() -> None:
    """On [lo, hi] the plain solver's absolute error obeys scale = 1 / lo, rate = the seed's error."""
    fit = ReciprocalFit(lo=1.0, hi=10.0)
    d = np.geomspace(1.0, 10.0, 1001)
    for n in range(5):
        worst = np.abs(reciprocal(d, fit, n) - 1 / d).max()
        assert worst <= solver_error(n, scale=1.0, rate=fit.seed_error) * (1 + 1e-9)
        bits = math.ceil(effective_bits(n, scale=1.0, rate=fit.seed_error, width=1.0))
        rounded = _quantise(1 / d, bits, 1.0)
        assert np.abs(rounded - 1 / d).max() <= 2 * solver_error(n, scale=1.0, rate=fit.seed_error)


@settings(max_examples=100)
@given(
    count=st.integers(0, 4),
    rate=st.floats(0.1, 0.9),
    scale=st.floats(0.01, 10.0),
    width=st.floats(0.01, 10.0),
    slope=st.floats(0.1, 3.0),
    dimension=st.integers(1, 512),
    bound=st.floats(0.1, 20.0),
)
def test_matched_bits_are_the_least(
    count: int, rate: float, scale: float, width: float, slope: float, dimension: int, bound: float
) -> None:
    b = matched_bits(
        count, scale=scale, rate=rate, width=width, slope=slope, dimension=dimension, activation_bound=bound
    )
    error = solver_error(count, scale=scale, rate=rate)

    def layer(bits: int) -> float:
        return slope * quantiser_step(bits, width) / 2 * dimension * bound

    assert b >= 1
    assert layer(b) <= error * (1 + 1e-9)
    if b > 1:
        assert layer(b - 1) > error * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    rate=st.floats(0.2, 0.8),
    scale=st.floats(0.01, 0.3),
    dimension=st.integers(2, 12),
    row_norm=st.floats(0.3, 1.6),
)
def test_the_theorem_on_random_networks_with_real_quantisers(
    seed: int, counts: list[int], rate: float, scale: float, dimension: int, row_norm: float
) -> None:
    """Exact, solver and quantised networks at the same weights: both drifts and both loss gaps obey their bounds."""
    rng = np.random.default_rng(seed)
    weights = []
    for _ in counts:
        w = rng.normal(size=(dimension, dimension))
        weights.append(w / np.abs(w).sum(axis=1, keepdims=True) * row_norm)
    f: Callable[[Array], Array] = np.tanh  # slope 1, so rho = row_norm, and |h| <= 1
    h0 = rng.uniform(-1.0, 1.0, dimension)
    bits = [
        matched_bits(
            n, scale=scale, rate=rate, width=2 * row_norm, slope=1.0, dimension=dimension, activation_bound=1.0
        )
        for n in counts
    ]
    exact = solver = rounded = h0
    for w, n, b in zip(weights, counts, bits):
        error = solver_error(n, scale=scale, rate=rate)
        exact = f(w @ exact)
        solver = f(w @ solver) + error * rng.choice([-1.0, 1.0], dimension)
        rounded = f(_quantise(w, b, row_norm) @ rounded)
    errors = [solver_error(n, scale=scale, rate=rate) for n in counts]
    drift = trajectory_bound(errors, row_norm)
    assert np.abs(solver - exact).max() <= drift + ROUNDING
    assert np.abs(rounded - exact).max() <= drift + ROUNDING
    direction = rng.normal(size=dimension)
    slope = np.abs(direction).sum()

    def loss(h: Array) -> float:
        return float(direction @ h)

    common = {"scale": scale, "rate": rate, "rho": row_norm, "loss_slope": slope}
    assert abs(loss(solver) - loss(exact)) <= fidelity_bound(counts, **common) + ROUNDING
    assert abs(loss(solver) - loss(rounded)) <= loss_gap_bound(counts, **common) + ROUNDING
    uniform = uniform_loss_gap_bound(2, len(counts), **common)
    series = sum(row_norm**j for j in range(len(counts)))
    assert uniform == pytest.approx(2 * slope * scale * rate**4 * series, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    dimension=st.integers(2, 12),
    row_norm=st.floats(0.1, 0.8),
)
def test_the_theorem_with_a_real_solver(seed: int, counts: list[int], dimension: int, row_norm: float) -> None:
    """Layers 1 / (2 + W h) by Goldschmidt's iteration on [1, 3]: slope 1, scale 1, rate the seed's error."""
    rng = np.random.default_rng(seed)
    fit = ReciprocalFit(lo=1.0, hi=3.0)
    h0 = rng.uniform(-1.0, 1.0, dimension)
    exact = solver = rounded = h0
    for n in counts:
        w = rng.normal(size=(dimension, dimension))
        w = w / np.abs(w).sum(axis=1, keepdims=True) * row_norm
        b = matched_bits(
            n, scale=1.0, rate=fit.seed_error, width=2 * row_norm, slope=1.0, dimension=dimension, activation_bound=1.0
        )
        exact = 1.0 / (2.0 + w @ exact)
        assert np.abs(w @ solver).max() <= 1.0  # the theorem's hypothesis on the solver's inputs
        solver = np.asarray(reciprocal(2.0 + w @ solver, fit, n))
        rounded = 1.0 / (2.0 + np.clip(_quantise(w, b, row_norm) @ rounded, -1.0, 1.0))
    common = {"scale": 1.0, "rate": fit.seed_error, "rho": row_norm, "loss_slope": 1.0}
    assert np.abs(solver - exact).max() <= fidelity_bound(counts, **common) + ROUNDING
    assert np.abs(solver - rounded).max() <= loss_gap_bound(counts, **common) + ROUNDING


def test_the_bound_is_attained() -> None:
    """A linear network whose errors all point one way reaches the trajectory bound: it cannot be lowered."""
    rho, errors = 1.3, [0.5, 0.25, 0.125]
    drift = 0.0
    for e in errors:
        drift = rho * drift + e
    assert trajectory_bound(errors, rho) == drift


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="rate lies strictly between 0 and 1, got 1"):
        solver_error(1, scale=1.0, rate=1.0)
    with pytest.raises(ConfigError, match="scale must be finite and above 0, got 0"):
        effective_bits(1, scale=0.0, rate=0.5, width=1.0)
    with pytest.raises(ConfigError, match="range must be finite"):
        quantiser_step(4, float("nan"))
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        quantiser_step(0, 1.0)
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        trajectory_bound([0.1, -1.0], 1.0)
    with pytest.raises(ConfigError, match="Lipschitz"):
        trajectory_bound([0.1], float("inf"))
    assert solver_error(80, scale=1.0, rate=0.999999) == 0.0
