# SPDX-License-Identifier: Apache-2.0
"""Norms around an inverse square root equal the exact ones to its tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import fit_inverse_sqrt, inverse_sqrt, rms_norm
from tests.approx.steps import layer_norm


def _squares(v: Any) -> Any:
    return (v * v).sum(axis=-1, keepdims=True)


def _mean(v: Any) -> Any:
    return v.mean(axis=-1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.floats(0.2, 5.0),
    form=st.sampled_from(["quotient", "partial"]),
    centred=st.booleans(),
)
def test_norms_equal_the_exact_ones(seed: int, size: float, form: str, centred: bool) -> None:
    rng = np.random.default_rng(seed)
    x = size * rng.normal(size=(4, 96)) + rng.normal()
    width, eps = 96, 1e-5  # 1 / sqrt(s / d + eps) = sqrt(d) / sqrt(s + d eps): nothing is divided by the width
    inner = x - _mean(x) if centred else x
    fit = fit_inverse_sqrt(width * (0.01 + eps), width * (100.0 + eps), form=form)
    counts = fit.smallest_counts(1e-5)

    def root(z: Any) -> Any:
        return inverse_sqrt(z, fit, *counts, gain=width**0.5)

    if centred:
        y = layer_norm(x, mean=_mean, sum_of_squares=_squares, inverse_root=root, shift=width * eps)
    else:
        y = rms_norm(x, sum_of_squares=_squares, inverse_root=root, shift=width * eps)
    exact = inner / np.sqrt((inner**2).mean(axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, exact, rtol=2e-5, atol=1e-12)


def test_a_mean_free_stream_makes_layer_norm_an_rms_norm() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 32))
    x = x - _mean(x)
    fit = fit_inverse_sqrt(1.0, 200.0)

    def root(z: Any) -> Any:
        return inverse_sqrt(z, fit, 6, 2)

    a = layer_norm(x, mean=_mean, sum_of_squares=_squares, inverse_root=root)
    b = rms_norm(x, sum_of_squares=_squares, inverse_root=root)
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_padding_stays_zero_with_a_masked_mean() -> None:
    mask = np.array([1.0] * 6 + [0.0] * 2)
    x = np.arange(8.0) * mask
    fit = fit_inverse_sqrt(1.0, 100.0)
    y = layer_norm(
        x,
        mean=lambda v: v.sum() * (mask / 6),
        sum_of_squares=_squares,
        inverse_root=lambda z: inverse_sqrt(z, fit, 8, 3),
    )
    assert y[6:].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(y[:6], (np.arange(6.0) - 2.5) / np.sqrt(17.5), rtol=1e-6)
