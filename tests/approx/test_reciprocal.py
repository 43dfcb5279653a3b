# SPDX-License-Identifier: Apache-2.0
"""Goldschmidt's reciprocal: seeds, counts, schedules and test vectors, plain and relaxed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import ReciprocalFit, divide, goldschmidt, reciprocal
from heatfhe.errors import ConfigError
from heatfhe.files import plain, remade
from tests.approx.values import Traced

# kappa: seed error, (plain, relaxed) counts to 1e-1, 1e-2, 1e-3, 1e-4
COUNTS = {
    2.0: (0.058823529, (0, 0), (1, 1), (2, 2), (2, 2)),
    4.0: (0.2195122, (1, 1), (2, 2), (3, 2), (3, 3)),
    10.0: (0.50310559, (2, 2), (3, 3), (4, 3), (4, 3)),
    100.0: (0.92453542, (5, 3), (6, 4), (7, 5), (7, 5)),
    1e3: (0.99204772, (9, 5), (10, 6), (10, 6), (11, 7)),
    1e4: (0.99920048, (12, 7), (13, 8), (14, 8), (14, 8)),
    1e5: (0.99992, (15, 8), (16, 9), (17, 10), (17, 10)),
    1e6: (0.999992, (19, 10), (20, 11), (20, 11), (21, 12)),
}
# kappa: plain count and error, relaxed count and error, largest scale of the schedule
MEASURED = {
    2.0: (2, 1.1973e-05, 2, 1.5018e-06, 1.0009),
    4.0: (3, 5.3910e-06, 3, 4.6461e-08, 1.0123),
    10.0: (4, 1.6848e-05, 3, 5.6275e-05, 1.0728),
    100.0: (7, 4.3473e-05, 5, 5.2896e-06, 1.4481),
    1e3: (11, 7.9194e-08, 7, 1.8496e-07, 1.7764),
    1e4: (14, 2.0359e-06, 8, 7.1401e-05, 1.9231),
    1e5: (17, 2.7937e-05, 10, 4.7395e-06, 1.9750),
    1e6: (21, 5.1732e-08, 12, 1.5330e-07, 1.9920),
}
PLAIN = {  # domain [1, 10]: y_0 .. y_4
    1.0: (0.4968944099, 0.7468847652, 0.9359326779, 0.9958953782, 0.9999831521),
    2.0: (0.4472049689, 0.4944253694, 0.4999378470, 0.4999999923, 0.5000000000),
    5.5: (0.2732919255, 0.1357972300, 0.1701695778, 0.1810718870, 0.1818151186),
    10.0: (0.0496894410, 0.0746884765, 0.0935932678, 0.0995895378, 0.0999983152),
}
RELAXED = {  # domain [1, 10]: planned for 0 .. 3 iterations
    1.0: (0.4968944099, 0.8551047901, 0.9893913265, 0.9999437249),
    2.0: (0.4472049689, 0.5660652371, 0.4964825001, 0.5000033906),
    5.5: (0.2732919255, 0.1554735982, 0.1798893321, 0.1818079500),
    10.0: (0.0496894410, 0.0855104790, 0.0989391327, 0.0999943725),
}
OUTSIDE = {  # domain [1, 10]: |1 - d y|, plain at counts 2, 4, 6, 8, relaxed at 1, 2, 3, 4
    0.1: (8.003e-01, 4.103e-01, 2.833e-02, 6.444e-07, 8.793e-01, 7.708e-01, 5.942e-01, 3.530e-01),
    0.5: (2.985e-01, 7.935e-03, 0.0, 0.0, 4.806e-01, 2.228e-01, 4.958e-02, 2.459e-03),
    0.9: (9.040e-02, 6.677e-05, 0.0, 0.0, 1.993e-01, 2.954e-02, 8.166e-04, 6.653e-07),
    10.5: (2.985e-01, 7.935e-03, 0.0, 0.0, 4.806e-01, 2.228e-01, 4.958e-02, 2.459e-03),
    10.9: (8.003e-01, 4.103e-01, 2.833e-02, 6.444e-07, 8.793e-01, 7.708e-01, 5.942e-01, 3.530e-01),
    11.1: (1.240e00, 2.361e00, 3.106e01, 9.311e05, 1.130e00, 1.279e00, 1.637e00, 2.679e00),
    12.0: (6.493e00, 1.777e03, 9.974e12, 9.896e51, 2.772e00, 7.757e00, 6.018e01, 3.621e03),
}


def _fit(kappa: float, solver: str, lo: float = 1.0) -> ReciprocalFit:
    return ReciprocalFit(lo=lo, hi=lo * kappa, solver=solver)


@pytest.mark.parametrize("kappa", COUNTS)
def test_seed_and_counts_match_the_table(kappa: float) -> None:
    seed, *counts = COUNTS[kappa]
    for lo in (1.0, 0.037):
        plain, relaxed = _fit(kappa, "plain", lo), _fit(kappa, "relaxed", lo)
        assert plain.seed_error == pytest.approx(seed, rel=1e-7)
        found = [(plain.smallest_count(10.0**-k), relaxed.smallest_count(10.0**-k)) for k in (1, 2, 3, 4)]
        assert found == counts
        levels = [reciprocal(Traced(lo), fit, k).spent for fit, k in zip((plain, relaxed), counts[3])]
        assert levels == [2 + k for k in counts[3]]


@pytest.mark.parametrize("kappa", MEASURED)
def test_measured_errors_meet_the_prediction(kappa: float) -> None:
    count, error, relaxed_count, relaxed_error, scale = MEASURED[kappa]
    d = np.geomspace(1.0, kappa, 20001)
    for fit, k, e in ((_fit(kappa, "plain"), count, error), (_fit(kappa, "relaxed"), relaxed_count, relaxed_error)):
        measured = np.abs(1.0 - d * reciprocal(d, fit, k)).max()
        assert fit.error(k) == pytest.approx(e, rel=1e-4)
        assert measured == pytest.approx(e, rel=1e-4)
    relaxed = _fit(kappa, "relaxed")
    assert max(relaxed.schedule(relaxed_count)) == pytest.approx(scale, abs=6e-5)
    x = (kappa + 1.0) / (kappa - 1.0)
    chebyshev = math.cosh(2 ** (relaxed_count + 1) * math.acosh(x))
    assert relaxed.error(relaxed_count) == pytest.approx(1.0 / chebyshev, rel=1e-6)


def test_vectors() -> None:
    plain, relaxed = _fit(10.0, "plain"), _fit(10.0, "relaxed")
    assert plain.alpha == pytest.approx(88 / 161, rel=1e-15)
    assert plain.beta == pytest.approx(8 / 161, rel=1e-15)
    assert plain.seed_error == pytest.approx(81 / 161, rel=1e-15)
    for d, row in PLAIN.items():
        assert [reciprocal(d, plain, k) for k in range(5)] == pytest.approx(row, abs=6e-11)
    for d, row in RELAXED.items():
        assert [reciprocal(d, relaxed, k) for k in range(4)] == pytest.approx(row, abs=6e-11)
    assert relaxed.schedule(3) == pytest.approx((1.0728319022, 1.0053044858, 1.0000281372, 1.0), abs=6e-11)
    assert relaxed.error(3) == pytest.approx(5.627514e-05, rel=1e-6)
    half = ReciprocalFit(lo=0.5, hi=1.0)
    assert (half.alpha, half.beta, half.seed_error) == pytest.approx((48 / 17, 32 / 17, 1 / 17), rel=1e-14)


@pytest.mark.parametrize("d", OUTSIDE)
def test_outside_the_domain_small_is_harmless_and_large_diverges(d: float) -> None:
    row = OUTSIDE[d]
    plain, relaxed = _fit(10.0, "plain"), _fit(10.0, "relaxed")
    found = [abs(1.0 - d * reciprocal(d, plain, k)) for k in (2, 4, 6, 8)]
    found += [abs(1.0 - d * reciprocal(d, relaxed, k)) for k in (1, 2, 3, 4)]
    assert found == pytest.approx(row, rel=1e-3, abs=1e-8)


@settings(max_examples=200, deadline=None)
@given(
    lo=st.floats(1e-4, 1e3),
    log_kappa=st.floats(0.01, 6.0),
    where=st.floats(0.0, 1.0),
    count=st.integers(0, 12),
    solver=st.sampled_from(["plain", "relaxed", "below"]),
    scale=st.floats(0.01, 100.0),
    gain=st.floats(0.01, 100.0),
)
def test_the_stated_bound_holds_everywhere(
    lo: float, log_kappa: float, where: float, count: int, solver: str, scale: float, gain: float
) -> None:
    fit = ReciprocalFit(lo=lo, hi=lo * 10.0**log_kappa, solver=solver)
    d = lo * 10.0 ** (log_kappa * where) / scale
    y = reciprocal(d, fit, count, scale=scale, gain=gain)
    assert abs(1.0 - scale * d * y / gain) <= fit.error(count) * (1.0 + 1e-9) + 1e-12
    quotient = divide(3.7, d, fit, count, scale=scale)
    assert abs(1.0 - scale * d * quotient / 3.7) <= fit.error(count) * (1.0 + 1e-9) + 1e-12


@settings(max_examples=400, deadline=None)
@given(
    lo=st.floats(1e-4, 1e3),
    log_kappa=st.floats(0.01, 6.0),
    where=st.floats(0.0, 1.0),
    below=st.floats(1e-6, 1.0),
    count=st.integers(0, 24),
)
def test_from_below_never_exceeds_the_reciprocal_wherever_it_converges(
    lo: float, log_kappa: float, where: float, below: float, count: int
) -> None:
    fit = ReciprocalFit(lo=lo, hi=lo * 10.0**log_kappa, solver="below")
    relaxed = replace(fit, solver="relaxed")
    e = relaxed.error(count)
    inside = lo * 10.0 ** (log_kappa * where)
    share = inside * reciprocal(inside, fit, count)
    assert (1.0 - e) / (1.0 + e) * (1.0 - 1e-9) - 1e-12 <= share <= 1.0 + 1e-12
    assert share == pytest.approx(inside * reciprocal(inside, relaxed, count) / (1.0 + e), rel=1e-9)
    for d in (below * lo, (fit.lo + fit.hi) * (1.0 - 1e-9 * below), fit.hi + where * 0.999 * fit.lo):
        assert 0.0 < d * reciprocal(d, fit, count) <= 1.0 + 1e-12
    assert fit.largest(count) <= 1.0 / lo * (1.0 + 1e-12)


def test_from_below_is_attained_and_costs_no_level() -> None:
    """Without the division the relaxed result exceeds 1/d by exactly e; with it, it meets 1/d there."""
    d = np.geomspace(1.0, 100.0, 20001)
    for count in range(6):
        fit, relaxed = _fit(100.0, "below"), _fit(100.0, "relaxed")
        assert (d * reciprocal(d, relaxed, count)).max() == pytest.approx(1.0 + relaxed.error(count), abs=1e-6)
        assert (d * reciprocal(d, fit, count)).max() == pytest.approx(1.0, abs=1e-6)
        assert np.abs(1.0 - d * reciprocal(d, fit, count)).max() == pytest.approx(fit.error(count), rel=1e-6)
        if count == 1:  # the last re-centring left out: nothing but a plain iteration
            np.testing.assert_allclose(reciprocal(d, fit, 1), reciprocal(d, _fit(100.0, "plain"), 1), rtol=1e-13)
        low, high = reciprocal(Traced(3.0), fit, count), reciprocal(Traced(3.0), relaxed, count)
        assert (low.spent, low.tally) == (high.spent, high.tally)


@settings(deadline=None)
@given(d=st.floats(0.05, 1.95), count=st.integers(0, 8))
def test_goldschmidt_meets_its_stated_bound(d: float, count: int) -> None:
    error = abs(goldschmidt(1.0, d, count) * d - 1.0)
    assert error <= abs(1.0 - d) ** (2**count) + 1e-13


@given(
    share=st.floats(0.0, 1.0), kappa=st.floats(2.0, 1e9), count=st.integers(1, 24), ahead=st.integers(0, 24),
    solver=st.sampled_from(("plain", "relaxed", "below")), scale=st.floats(0.01, 100.0), gain=st.floats(1e-8, 1e3),
)  # fmt: skip
def test_a_numerator_carried_ahead_ends_at_the_same_bits(
    share: float, kappa: float, count: int, solver: str, ahead: int, scale: float, gain: float
) -> None:
    fit = ReciprocalFit(lo=1.0, hi=kappa, solver=solver)
    d, ahead = kappa**share / scale, min(ahead, count)
    other = gain if gain != scale else 2.0 * gain  # equal ones share their seed
    assert reciprocal(d, fit, count, scale=scale, gain=other, ahead=ahead) == reciprocal(
        d, fit, count, scale=scale, gain=other
    )


def test_a_planned_schedule_cut_short_is_off_by_its_scale() -> None:
    fit = _fit(100.0, "relaxed")
    s = fit.schedule(5)
    d = np.geomspace(1.0, 100.0, 101)
    seed = s[0] * (fit.alpha - fit.beta * d)
    for k in range(6):
        state = goldschmidt(seed, d * seed, k, s)
        assert np.abs(1.0 - d * state / s[k]).max() <= fit.error(k) * (1 + 1e-9)
    assert _fit(100.0, "plain").schedule(5) == (1.0,) * 6


def test_products_are_two_per_iteration_but_one_in_the_last() -> None:
    fit = _fit(10.0, "plain")
    assert reciprocal(Traced(3.0), fit, 4).tally == {"products": 1 + 4 + 3, "plain": 1}
    assert divide(Traced(1.0), Traced(3.0), fit, 4).value == pytest.approx(1 / 3, rel=1e-4)
    vector = np.array([1.0, 0.5])
    scaled = reciprocal(Traced(np.array([3.0, 6.0])), fit, 4, scale=vector)
    np.testing.assert_allclose(scaled.value, 1 / 3, rtol=2e-5)
    assert scaled.spent == 6


@pytest.mark.parametrize(
    ("lo", "hi", "match"),
    [
        (0.0, 1.0, r"above zero, got \[0, 1\]"),
        (-1.0, 1.0, r"above zero, got \[-1, 1\]"),
        (2.0, 2.0, r"lo < hi, got \[2, 2\]"),
        (3.0, 2.0, r"lo < hi, got \[3, 2\]"),
        (float("nan"), 1.0, r"lo < hi, got \[nan, 1\]"),
        (1.0, float("inf"), r"lo < hi, got \[1, inf\]"),
    ],
)
def test_bad_domains_are_refused_by_name(lo: float, hi: float, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ReciprocalFit(lo=lo, hi=hi)


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match="ahead for 0 to 3 iterations, not 4"):
        reciprocal(1.5, ReciprocalFit(lo=1.0, hi=2.0), 3, ahead=4)
    fit = _fit(10.0, "plain")
    with pytest.raises(ConfigError, match="'plain', 'relaxed', 'below', got 'fast'"):
        ReciprocalFit(lo=1.0, hi=2.0, solver="fast")
    for tolerance in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="strictly between 0 and 1"):
            fit.smallest_count(tolerance)
    with pytest.raises(ConfigError, match="at least 0, got -1"):
        fit.error(-1)
    with pytest.raises(ConfigError, match="too wide"):
        ReciprocalFit(lo=1.0, hi=1e40).smallest_count(1e-3)
    with pytest.raises(ConfigError, match=r"\[1e-80, 1e\+80\] is too wide .* a ratio of 1e\+150 at most"):
        ReciprocalFit(lo=1e-80, hi=1e80)
    assert ReciprocalFit(lo=1.0, hi=1e150).error(1) == 1.0  # no overflow up to there
    assert fit.smallest_count(0.9, floor=1) == 1


def test_json_round_trip() -> None:
    fit = ReciprocalFit(lo=0.1, hi=7.3, solver="relaxed")
    assert remade(ReciprocalFit, plain(fit)) == fit


@pytest.mark.parametrize("solver", ["plain", "relaxed"])
@pytest.mark.parametrize("kappa", [2.0, 100.0, 8.3e4])
def test_no_result_exceeds_the_largest(kappa: float, solver: str) -> None:
    fit = ReciprocalFit(lo=1.0, hi=kappa, solver=solver)
    d = np.geomspace(1e-6, kappa, 4001)  # under the domain, too: the iteration has no way to grow faster
    inside = d >= 1.0
    for count in range(10):
        y = reciprocal(d, fit, count)
        top = fit.largest(count)
        assert y[inside].max() <= top * (1 + 1e-12)
        assert y[inside].max() > top / 3  # and it is not idle
    assert fit.largest(0) == pytest.approx(min(fit.alpha, 1 + fit.seed_error))
    assert fit.largest(40) == pytest.approx(1.0)


@pytest.mark.parametrize("solver", ["plain", "relaxed", "below"])
@pytest.mark.parametrize("kappa", [1.5, 10.0, 1e3])
def test_what_lies_below_the_domain_is_bounded_by_the_least_of_it(kappa: float, solver: str) -> None:
    """A sum that falls below its domain makes a larger reciprocal than 1 / lo, and a plan must know how large."""
    fit = ReciprocalFit(lo=1.0, hi=kappa, solver=solver)
    exceeded = False
    for count in range(9):
        for least in (0.9, 0.3, 0.02):
            y = reciprocal(np.geomspace(least, kappa, 4001), fit, count)
            assert float(np.max(y)) <= fit.largest(count, least) * (1.0 + 1e-12)
            exceeded |= float(np.max(y)) > fit.largest(count) * 1.5
    assert exceeded


def test_few_iterations_stay_far_under_the_reciprocal_of_a_wide_domain() -> None:
    fit = ReciprocalFit(lo=1.0, hi=8.3e4)
    assert fit.largest(7) == pytest.approx(2.0**7 * fit.alpha)
    assert fit.largest(7) < 1 / 80


@settings(max_examples=100, deadline=None)
@given(
    kappa=st.floats(1.5, 1e4),
    count=st.integers(1, 12),
    place=st.floats(-1.0, 1.0),
    solver=st.sampled_from(["plain", "relaxed", "below"]),
)
def test_a_numerator_on_its_way_is_no_larger_than_stated(kappa: float, count: int, place: float, solver: str) -> None:
    """On the domain and, from minus one to zero, far below it."""
    fit = ReciprocalFit(lo=1.0, hi=kappa, solver=solver)
    d = kappa**place
    s = fit.schedule(count)
    first = s[0] * (fit.alpha - fit.beta * d)
    way = [goldschmidt(d * first, d * first, i, s) for i in range(count + 1)]
    assert max(way) <= fit.overshoot(count) * (1.0 + 1e-12)
    assert fit.overshoot(count) <= (2.0 if solver == "plain" else 4.0)
