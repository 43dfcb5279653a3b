# SPDX-License-Identifier: Apache-2.0
"""Softmax in two phases: accuracy over rows, the domains behind its counts, levels, masks and the one-pass identity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import (
    ReciprocalFit,
    SoftmaxFit,
    fit_exponential,
    reciprocal,
    smallest_deltas,
    softmax,
    softmax_solvers,
)
from heatfhe.errors import ConfigError
from heatfhe.files import plain, remade
from tests.approx.steps import softmax_at
from tests.approx.values import Traced
from tests.approx.worst_case import fit_softmax, init_domain, refine_domain, smallest_counts

# (n, M, delta_1, delta_2): window, kappa init and refine, plain (init, refine) and levels, the same relaxed
TABLE: dict[tuple[int, int, int, int], tuple[Any, ...]] = {
    (1024, 4, 1, 1): (2.0, 54.6, None, (7, 0), 13, (5, 0), 11),
    (1024, 4, 1, 2): (1.0, 7.39, 2.381, (4, 2), 15, (3, 2), 14),
    (1024, 8, 2, 1): (2.0, 2.98e3, None, (12, 0), 19, (8, 0), 15),
    (1024, 8, 1, 2): (2.0, 54.6, 14.15, (7, 5), 21, (5, 4), 18),
    (1024, 14, 4, 1): (1.75, 1.2e6, None, (21, 0), 29, (12, 0), 20),
    (1024, 14, 2, 2): (1.75, 1.1e3, 274.7, (11, 9), 30, (7, 6), 23),
    (1024, 20, 4, 2): (1.25, 2.2e4, 1024, (15, 11), 37, (9, 7), 27),
    (1024, 28, 4, 2): (1.75, 1.2e6, 1024, (21, 11), 43, (12, 7), 30),
    (1024, 40, 4, 4): (1.25, 2.2e4, 1024, (15, 11), 51, (9, 7), 37),
    (1024, 40, 8, 2): (1.25, 4.85e8, 1024, (30, 11), 53, (16, 7), 35),
    (1024, 60, 4, 4): (1.875, 3.27e6, 1024, (22, 11), 58, (13, 7), 41),
    (1024, 60, 8, 2): (1.875, 1.07e13, 1024, (44, 11), 67, (23, 7), 42),
    (128, 14, 2, 2): (1.75, 1.1e3, 128, (11, 8), 29, (7, 5), 22),
    (128, 20, 4, 2): (1.25, 2.2e4, 128, (15, 8), 34, (9, 5), 25),
    (128, 28, 4, 2): (1.75, 1.2e6, 128, (21, 8), 40, (12, 5), 28),
    (128, 40, 4, 4): (1.25, 2.2e4, 128, (15, 8), 45, (9, 5), 33),
    (128, 60, 4, 4): (1.875, 3.27e6, 128, (22, 8), 52, (13, 5), 37),
}
# M = 14, n = 1024, (2, 2): init count, smallest S r1, refine kappa, refine count plain, relaxed
JOINT = (
    (0, 0.007255, 2.072e7, 25, 14),
    (1, 0.01446, 1.314e6, 21, 12),
    (2, 0.02871, 3.333e5, 19, 11),
    (3, 0.05659, 8.577e4, 17, 10),
    (4, 0.11, 2.271e4, 15, 9),
    (5, 0.2079, 6357.0, 13, 8),
    (6, 0.3725, 1979.0, 12, 7),
    (7, 0.6063, 747.3, 10, 7),
    (8, 0.845, 384.7, 9, 6),
    (9, 0.976, 288.4, 9, 6),
    (10, 0.9994, 275.0, 9, 6),
    (11, 1.0, 274.7, 9, 6),
)
ONE_PASS = {  # (K1, K2): S1 r1, r1^2 S2, error of r2, output
    (0, 2): (1.48742708, 0.49165622, 6.886e-01, 0.6867232286),
    (0, 4): (1.48742708, 0.49165622, 2.249e-01, 1.7095701850),
    (0, 8): (1.48742708, 0.49165622, 4.283e-11, 2.2056065750),
    (1, 2): (0.76241484, 0.12917333, 2.470e-03, 2.2001588205),
    (1, 4): (0.76241484, 0.12917333, 3.722e-11, 2.2056065750),
    (1, 8): (0.76241484, 0.12917333, 0.0, 2.2056065751),
    (2, 2): (0.94355329, 0.19784407, 3.283e-06, 2.2055993341),
    (2, 4): (0.94355329, 0.19784407, 0.0, 2.2056065751),
    (2, 8): (0.94355329, 0.19784407, 0.0, 2.2056065751),
    (4, 2): (0.99998985, 0.22221908, 6.393e-05, 2.2054655607),
    (4, 4): (0.99998985, 0.22221908, 0.0, 2.2056065751),
    (4, 8): (0.99998985, 0.22221908, 0.0, 2.2056065751),
    (8, 2): (1.00000000, 0.22222359, 6.859e-05, 2.2054552978),
    (8, 4): (1.00000000, 0.22222359, 0.0, 2.2056065751),
    (8, 8): (1.00000000, 0.22222359, 0.0, 2.2056065751),
}


def _exact(scores: np.ndarray[Any, Any], mask: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    if mask is not None:
        e = e * mask
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _rows(v: Any) -> Any:
    return v.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("case", TABLE)
def test_domains_counts_and_levels_match_the_table(case: tuple[int, int, int, int]) -> None:
    n, width, delta_1, delta_2 = case
    window, kappa_init, kappa_refine, *by_solver = TABLE[case]
    for solver, counts, levels in (("plain", *by_solver[:2]), ("relaxed", *by_solver[2:])):
        fit = fit_softmax(-3.0, width - 3.0, row_length=n, deltas=(delta_1, delta_2), solver=solver)
        assert fit.exponential.half_width == pytest.approx(window)
        assert fit.init.hi / fit.init.lo == pytest.approx(kappa_init, rel=6e-3)
        found = [fit.init.smallest_count(1e-4), 0]
        if fit.refine is not None:
            assert fit.refine.hi / fit.refine.lo == pytest.approx(kappa_refine, rel=1e-3)
            found[1] = fit.refine.smallest_count(1e-4)
        assert tuple(found) == counts
        assert fit.levels(*counts, wide=True) == levels
        assert fit.levels(*counts) == levels + 1 + fit.passes


def test_a_loose_first_reciprocal_only_widens_the_next_domain() -> None:
    plain = fit_softmax(-7.0, 7.0, row_length=1024, deltas=(2, 2))
    for count, least, kappa, refine, relaxed in JOINT:
        lo, hi = refine_domain(14.0, 2, 1024, plain.init, count)
        assert 1.0 - plain.init.error(count) == pytest.approx(least, rel=1e-3)
        assert hi / lo == pytest.approx(kappa, rel=1e-3)
        assert ReciprocalFit(lo=lo, hi=hi).smallest_count(1e-4) == refine
        assert ReciprocalFit(lo=lo, hi=hi, solver="relaxed").smallest_count(1e-4) == relaxed
    assert sum(smallest_counts(plain, 1e-4, 1024)) == 17
    assert smallest_deltas(14.0) == (2, 2)
    assert smallest_deltas(28.0) == (4, 2)
    assert smallest_deltas(14.0, delta_2=1) == (4, 1)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from(["uniform", "gaussian", "peaked", "two-level", "constant-low", "constant-high"]),
    lo=st.floats(-40.0, 10.0),
    width=st.sampled_from([3.0, 8.0, 14.0, 20.0, 28.0]),
    n=st.integers(2, 128),
    solver=st.sampled_from(["plain", "relaxed"]),
    wide=st.booleans(),
    joint=st.booleans(),
)
def test_calibrated_counts_reach_the_exact_softmax(
    seed: int, shape: str, lo: float, width: float, n: int, solver: str, wide: bool, joint: bool
) -> None:
    rng = np.random.default_rng(seed)
    unit = {
        "uniform": lambda: rng.uniform(0, 1, n),
        "gaussian": lambda: np.clip(rng.normal(0.5, 0.15, n), 0, 1),
        "peaked": lambda: (np.arange(n) == rng.integers(n)).astype(float),
        "two-level": lambda: rng.integers(0, 2, n).astype(float),
        "constant-low": lambda: np.zeros(n),
        "constant-high": lambda: np.ones(n),
    }[shape]()
    scores = lo + width * unit
    fit = fit_softmax(lo, lo + width, row_length=n, deltas=smallest_deltas(width, 3e-5), solver=solver)
    assert fit.refine is not None
    counts = fit.init.smallest_count(5e-5), fit.refine.smallest_count(5e-5)
    if joint:
        counts = smallest_counts(fit, 5e-5, n)
        fit = fit_softmax(
            lo, lo + width, row_length=n, deltas=(fit.delta_1, fit.delta_2), solver=solver, init_count=counts[0]
        )
    t = (scores - fit.midpoint) / (fit.width / 2)
    y = softmax_at(t, fit, counts, row_sum=_rows, row_length=float(n), wide=wide)
    exact = _exact(scores)
    assert np.abs(y / n - exact).max() <= 1e-4
    assert np.abs(y / n / exact - 1.0).max() <= 1.5e-4


def test_masked_rows_of_every_length_share_one_fit() -> None:
    rng = np.random.default_rng(11)
    n = 24
    scores = rng.uniform(-9.0, 5.0, (n, n))
    mask = np.tril(np.ones((n, n)))
    length = np.arange(1, n + 1, dtype=float)[:, None]
    fit = fit_softmax(-9.0, 5.0, row_length=n)
    assert fit.refine is not None
    counts = fit.init.smallest_count(1e-5), fit.refine.smallest_count(1e-5)
    t = np.where(mask > 0, (scores - fit.midpoint) / (fit.width / 2), 0.3)
    init, refine = softmax_solvers(fit, *counts, length)
    y = softmax(t, fit, row_sum=_rows, mask=mask, init=init, refine=refine)
    np.testing.assert_allclose(y.sum(axis=-1, keepdims=True), length, rtol=1e-4)
    np.testing.assert_allclose(y / length, _exact(scores, mask), atol=3e-5)
    assert (y[mask == 0.0] == 0.0).all()
    wide = softmax_at(t, fit, counts, row_sum=_rows, row_length=length, mask=mask, wide=True)
    np.testing.assert_allclose(wide, y, rtol=1e-10)


def test_a_common_error_cancels_and_a_differential_one_doubles() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=64)
    fit = fit_softmax(-32.0, 32.0, row_length=64, deltas=(8, 8))
    t = x * 4.0 / 32.0

    def passes(scale: Any) -> Any:
        return softmax(
            t,
            fit,
            row_sum=_rows,
            init=lambda s: scale * 64.0 / s,
            refine=lambda s: 64.0 / s,
            exponentiate=lambda u: np.exp(4.0 * u),
        )

    exact = passes(1.0)
    np.testing.assert_allclose(passes(1.05), exact, rtol=1e-13)
    noise = 1.0 + 1e-7 * rng.normal(size=64)
    off = passes(noise) / exact - 1.0
    weight = exact / exact.sum()
    ratio = (off - (weight * off).sum()).std() / (noise - 1.0).std()
    assert ratio == pytest.approx(8.0, rel=0.05)


@pytest.mark.parametrize("counts", ONE_PASS)
def test_one_sweep_equals_two_phases(counts: tuple[int, int]) -> None:
    """A r1^2 r2 with S1, S2 and A from one sweep over the row, as a training kernel does it."""
    scores = np.array([2.0, -1.0, 0.5, 3.0, -2.5, 1.0, 0.0, -3.0])
    values = np.array([1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 0.25, 4.0])
    e = np.exp(scores / 2)
    s1, s2, a = e.sum(), (e * e).sum(), (e * e * values).sum()
    assert (s1, s2, a) == pytest.approx((12.2488832029, 33.3413476294, 73.5378955533), rel=1e-10)
    first = ReciprocalFit(lo=8 * math.exp(-1.5), hi=8 * math.exp(1.5))
    second = ReciprocalFit(lo=(1 - first.error(counts[0])) ** 2 / 8, hi=1.0)
    r1 = reciprocal(s1, first, counts[0])
    r2 = reciprocal(r1 * r1 * s2, second, counts[1])
    seen, denominator, error, output = ONE_PASS[counts]
    assert s1 * r1 == pytest.approx(seen, abs=6e-9)
    assert r1 * r1 * s2 == pytest.approx(denominator, abs=6e-9)
    assert 1.0 - r1 * r1 * s2 * r2 == pytest.approx(error, rel=1e-3, abs=1e-14)
    assert a * r1 * r1 * r2 == pytest.approx(output, abs=6e-11)
    y = e * r1
    two_phase = ((y * y) * reciprocal((y * y).sum(), second, counts[1]) * values).sum()
    assert a * r1 * r1 * r2 == pytest.approx(two_phase, abs=2e-15 * 8)


def test_worst_case_domains_hold() -> None:
    rng = np.random.default_rng(2)
    for width, delta_2, n in ((14.0, 2, 64), (20.0, 4, 16), (6.0, 2, 512)):
        lo, hi = init_domain(width, delta_2)
        for _ in range(200):
            x = width * (rng.integers(0, 2, n) - 0.5) if rng.random() < 0.5 else rng.uniform(-width / 2, width / 2, n)
            e = np.exp(x / delta_2)
            assert lo * (1 - 1e-12) <= e.mean() <= hi * (1 + 1e-12)
            y = _exact(x / 2)  # entering the last pass
            z = n * (y * y).sum()
            ends = refine_domain(width, delta_2, n)
            assert ends[0] * (1 - 1e-12) <= z <= ends[1] * (1 + 1e-12)


def test_products_of_the_two_forms() -> None:
    fit = fit_softmax(-4.0, 4.0, row_length=8, deltas=(2, 2))
    t = np.linspace(-1, 1, 8)
    total = lambda v: Traced(np.full(8, v.value.sum()), v.spent, v.tally)  # noqa: E731
    scalar = softmax_at(Traced(t), fit, (3, 4), row_sum=total, row_length=8.0)
    wide = softmax_at(Traced(t), fit, (3, 4), row_sum=total, row_length=8.0, wide=True)
    assert (scalar.spent, wide.spent) == (fit.levels(3, 4), fit.levels(3, 4, wide=True))
    np.testing.assert_allclose(scalar.value, wide.value, rtol=1e-12)


def test_refusals_and_json() -> None:
    fit = fit_softmax(-4.0, 4.0, row_length=8, deltas=(2, 2))
    assert remade(SoftmaxFit, plain(fit)) == fit
    single = fit_softmax(-2.0, 2.0, row_length=8, deltas=(1, 1))
    assert remade(SoftmaxFit, plain(single)) == single
    assert (fit.midpoint, fit.width, fit.passes, single.passes) == (0.0, 8.0, 1, 0)
    for lo, hi in ((1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))):
        with pytest.raises(ConfigError, match="softmax needs a finite domain"):
            fit_softmax(lo, hi, row_length=8)
    with pytest.raises(ConfigError, match="delta_2 must be a power of two"):
        fit_softmax(-4.0, 4.0, row_length=8, deltas=(2, 3))
    with pytest.raises(ConfigError, match="half width"):
        SoftmaxFit(lo=-4, hi=4, delta_1=2, delta_2=1, exponential=fit_exponential(1.0, 8, 1), init=fit.init)
    with pytest.raises(ConfigError, match="squarings"):
        SoftmaxFit(lo=-4, hi=4, delta_1=4, delta_2=1, exponential=fit_exponential(1.0, 8, 1), init=fit.init)
    with pytest.raises(ConfigError, match="refine"):
        SoftmaxFit(lo=-4, hi=4, delta_1=2, delta_2=2, exponential=fit.exponential, init=fit.init)
    with pytest.raises(ConfigError, match="1 passes needs refine"):
        softmax(0.0, fit, row_sum=lambda s: s, init=lambda s: s)
    with pytest.raises(ConfigError, match="too wide"):
        smallest_deltas(1e9)
