# SPDX-License-Identifier: Apache-2.0
"""The composition's fit: scaling the inner polynomial changes nothing, and the descent ends below its start."""

from __future__ import annotations

import numpy as np
from numpy.polynomial import chebyshev

from heatfhe.approx.composition import _odd_basis, _rescale, _start, fit_composition, sample_points


def test_rescaling_keeps_the_composition() -> None:
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 1.0, 301)
    basis = _odd_basis(t, 7)
    inner, outer = rng.normal(size=4), rng.normal(size=3)
    new_inner, new_outer = _rescale(basis, inner, outer)

    def composed(a: object, b: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        full = np.zeros(6)
        full[1::2] = b
        return np.asarray(chebyshev.chebval(basis @ a, full))

    np.testing.assert_allclose(composed(new_inner, new_outer), composed(inner, outer), atol=1e-10)
    assert np.abs(basis @ new_inner).max() <= 1.0


def test_the_descent_improves_on_its_start_and_stops_when_told() -> None:
    bound = 12.0
    x = sample_points(bound, 14)
    f = 0.5 * np.tanh(0.5 * x)
    inner, outer = _start(x, f, bound, 7, 7, 0.32)
    start = np.abs(x * (_odd_basis(_odd_basis(x / bound, 7) @ inner, 7) @ outer - f)).max()
    _, _, full = fit_composition(x, f, bound, 7, 7, starts=1)
    _, _, early = fit_composition(x, f, bound, 7, 7, starts=1, enough=0.5 * (start + full))
    assert full < early < start


def test_points_are_dense_at_both_ends() -> None:
    x = sample_points(32.0, 30)
    assert x[0] > 0.0
    assert x[-1] == 32.0
    gaps = np.diff(x)
    assert gaps[:20].max() < 0.1 * gaps.max()
    assert gaps[-20:].max() < 0.3 * gaps.max()
