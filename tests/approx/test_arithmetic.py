# SPDX-License-Identifier: Apache-2.0
"""Depth counts levels and refuses to be looked at; every solver runs over it, torch and a bare tracer alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heatfhe.approx import (
    ArgmaxRound,
    ArgmaxSchedule,
    ChordSeed,
    Depth,
    ReciprocalFit,
    activation,
    chord_inverse_sqrt,
    cutmax,
    divide,
    evaluate,
    exponential,
    fit_activation,
    fit_exponential,
    fit_inverse_sqrt,
    goldschmidt,
    inverse_sqrt,
    reciprocal,
    rms_norm,
)
from heatfhe.errors import ObliviousError
from tests.approx.steps import layer_norm, newton_step, softmax_at
from tests.approx.values import Traced
from tests.approx.worst_case import fit_softmax

RECIPROCAL = ReciprocalFit(lo=0.5, hi=3.0)
RELAXED = ReciprocalFit(lo=0.5, hi=3.0, solver="relaxed")
QUOTIENT = fit_inverse_sqrt(0.5, 3.0)
PARTIAL = fit_inverse_sqrt(0.5, 3.0, form="partial")
EXPONENTIAL = fit_exponential(1.5, 8, 2)
SOFTMAX = fit_softmax(-4.0, 4.0, row_length=8, deltas=(2, 2))
GELU = fit_activation("gelu_new", 4.0, tolerance=1e-3)
SCHEDULE = ArgmaxSchedule(
    rounds=(
        ArgmaxRound(power=3, divisor=3.0, seed=ChordSeed(lo=0.1, hi=4.0), newton_count=2, shift=0.01),
        ArgmaxRound(power=7, divisor=3.0, seed=fit_inverse_sqrt(1e-3, 1.0), newton_count=1, goldschmidt_count=3),
    ),
    final=ReciprocalFit(lo=0.1, hi=2.0),
    final_count=3,
)


def _same(v: Any) -> Any:
    return v + v - v


def _square(v: Any) -> Any:
    return v * v


def _mean(v: Any) -> Any:
    return v * 0.125


CASES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "goldschmidt": (lambda x: goldschmidt(x, x, 5), 5),
    "reciprocal seed alone": (lambda x: reciprocal(x, RECIPROCAL, 0), 1),
    "reciprocal": (lambda x: reciprocal(x, RECIPROCAL, 4), 2 + 4),
    "reciprocal scaled": (lambda x: reciprocal(x, RECIPROCAL, 4, scale=0.9, gain=3.0), 2 + 4),
    "reciprocal relaxed": (lambda x: reciprocal(x, RELAXED, 3, scale=0.9), 2 + 3),
    "divide": (lambda x: divide(x, x, RECIPROCAL, 4, scale=0.9), 2 + 4),
    "divide, numerator one deeper": (lambda x: divide(x * 0.5, x, RECIPROCAL, 4), 2 + 4),
    "divide seed alone": (lambda x: divide(x, x, RECIPROCAL, 0), 2),
    "newton, 2 levels": (lambda x: newton_step(x, x * 0.5, 1.5, 2), 1 + 2),
    "newton, 3 levels": (lambda x: newton_step(x, x * 0.5, 1.5, 3), 1 + 3),
    "quotient": (lambda x: inverse_sqrt(x, QUOTIENT, 4, 0, gain=2.0), 3 + 4),
    "quotient and newton": (lambda x: inverse_sqrt(x, QUOTIENT, 4, 3), 3 + 4 + 6),
    "quotient and newton at 3": (lambda x: inverse_sqrt(x, QUOTIENT, 4, 3, newton_levels=3), 3 + 4 + 9),
    "partial": (lambda x: inverse_sqrt(x, PARTIAL, 4, 0, gain=2.0), 2 + 4),
    "partial without iterations": (lambda x: inverse_sqrt(x, PARTIAL, 0, 0), 2),
    "partial and newton": (lambda x: inverse_sqrt(x, PARTIAL, 4, 2), 2 + 4 + 4),
    "chord": (lambda x: chord_inverse_sqrt(x, ChordSeed(lo=0.5, hi=3.0), 2), 1 + 4),
    "exponential": (lambda x: exponential(x, EXPONENTIAL, mask=0.5), 4 + 2),
    "softmax": (
        lambda x: softmax_at(x, SOFTMAX, (3, 4), row_sum=_same, row_length=8.0, mask=1.0),
        (4 + 1) + (2 + 3) + 1 + (1 + (2 + 4) + 1),
    ),
    "softmax, wide": (
        lambda x: softmax_at(x, SOFTMAX, (3, 4), row_sum=_same, row_length=8.0, wide=True),
        (4 + 1) + (2 + 3) + (1 + 2 + 4),
    ),
    "rms norm": (
        lambda x: rms_norm(x, sum_of_squares=_square, inverse_root=lambda z: inverse_sqrt(z, PARTIAL, 4, 1), shift=0.1),
        1 + (2 + 4 + 2) + 1,
    ),
    "layer norm": (
        lambda x: layer_norm(
            x,
            mean=_mean,
            sum_of_squares=_square,
            inverse_root=lambda z: inverse_sqrt(z, QUOTIENT, 4, 1, newton_levels=3),
        ),
        1 + 1 + (3 + 4 + 3) + 1,
    ),
    "gelu": (lambda x: activation(x, GELU), GELU.levels),
    "cutmax": (lambda x: cutmax(x, SCHEDULE, mean=_mean, size=8, total=_same), SCHEDULE.levels),
    "cutmax without a sum": (lambda x: cutmax(x, SCHEDULE, mean=_mean, size=8), SCHEDULE.levels + 2 + 1),
    "series of degree 59": (lambda x: evaluate([1.0 / (1 + k) for k in range(60)], x, mask=0.5), 6),
}


@pytest.mark.parametrize("name", CASES)
def test_depth_is_what_the_docstring_states(name: str) -> None:
    function, levels = CASES[name]
    assert function(Depth()).spent == levels
    assert function(Depth(5)).spent == levels + 5


def _inputs(name: str) -> np.ndarray[Any, Any]:
    if name in ("exponential", "gelu", "series of degree 59"):
        return np.array([-0.9, -0.2, 0.1, 0.7, 0.95])
    return np.array([0.55, 0.7, 0.9, 0.95])


@pytest.mark.parametrize("name", CASES)
def test_floats_arrays_and_tracers_agree(name: str) -> None:
    function, levels = CASES[name]
    x = _inputs(name)
    expected = function(x)
    traced = function(Traced(x))
    np.testing.assert_allclose([function(float(v)) for v in x], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(traced.value, expected, rtol=1e-9, atol=1e-12)
    assert traced.spent == levels


@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_in_both_precisions_and_has_gradients(name: str) -> None:
    torch = pytest.importorskip("torch")
    function, _ = CASES[name]
    x = _inputs(name)
    expected = function(x)
    double = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = function(double)
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-9, atol=1e-12)
    y.sum().backward()
    step = 1e-6
    slopes = (function(x + step) - function(x - step)) / (2 * step)
    np.testing.assert_allclose(double.grad.numpy(), slopes, rtol=1e-4, atol=1e-6)
    single = function(torch.tensor(x, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    "look",
    [
        lambda d: bool(d),
        lambda d: d > 0,
        lambda d: d <= d,
        lambda d: d == 1.0,
        lambda d: d != 1.0,
        lambda d: abs(d),
        lambda d: float(d),
        lambda d: d / 2.0,
        lambda d: d**2,
        lambda d: hash(d),
        lambda d: list(d),
        lambda d: max(d, 0.0),
        lambda d: np.asarray(d),
    ],
)
def test_depth_refuses_to_be_looked_at(look: Callable[[Depth], object]) -> None:
    with pytest.raises(ObliviousError, match="looked at its data"):
        look(Depth())


def test_depth_beside_numpy_stays_a_depth() -> None:
    vector = np.ones(4)
    assert (vector * Depth(2)).spent == 3
    assert (vector + Depth(2)).spent == 2
    assert (vector - Depth(2)).spent == 2
