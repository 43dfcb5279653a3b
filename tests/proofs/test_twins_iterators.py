# SPDX-License-Identifier: Apache-2.0
"""Numeric twins of proofs/Iterators.v: reciprocal and inverse square root."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from heatfhe.approx import ReciprocalFit, divide, goldschmidt, newton, reciprocal
from tests.approx.steps import newton_step
from tests.proofs.bits import solver_error
from tests.proofs.twin import ROUND, domains, inside, shares, twin

counts = st.integers(0, 8)
rates = st.floats(0.05, 0.99)
scales = st.floats(1e-3, 1e3)
levels = st.sampled_from([2, 3])


def plain(domain: tuple[float, float]) -> ReciprocalFit:
    return ReciprocalFit(lo=domain[0], hi=domain[1])


def relaxed(domain: tuple[float, float]) -> ReciprocalFit:
    return ReciprocalFit(lo=domain[0], hi=domain[1], solver="relaxed")


@twin("Iterators.budget_positive", "Iterators.budget_decreasing")
@given(scale=scales, rate=rates, count=st.integers(0, 6))
def test_the_budget_is_positive_and_decreasing(scale: float, rate: float, count: int) -> None:
    assert 0.0 < solver_error(count + 1, scale=scale, rate=rate) < solver_error(count, scale=scale, rate=rate)


@twin("Iterators.budget_vanishes")
@given(scale=scales, rate=rates, tolerance=st.floats(1e-200, 1e-4))
def test_the_budget_vanishes(scale: float, rate: float, tolerance: float) -> None:
    enough = math.ceil(math.log2(max(1.0, math.log(tolerance / scale) / math.log(rate))))
    for count in range(enough, enough + 40):
        assert solver_error(count, scale=scale, rate=rate) <= tolerance * (1.0 + 1e-9)


@twin("Iterators.goldschmidt_error_squares")
@given(d=st.floats(0.02, 1.98), count=counts)
def test_goldschmidt_squares_its_error(d: float, count: int) -> None:
    assert abs(1.0 - d * goldschmidt(1.0, d, count) - (1.0 - d) ** (2**count)) <= ROUND


@twin("Iterators.goldschmidt_bound", "Iterators.goldschmidt_within_budget")
@given(domain=domains(), share=shares, count=counts)
def test_goldschmidt_meets_its_bound(domain: tuple[float, float], share: float, count: int) -> None:
    fit, d = plain(domain), inside(domain, share)
    error = abs(reciprocal(d, fit, count) - 1.0 / d)
    assert error <= (fit.seed_error ** (2**count) + ROUND) / d
    assert error <= solver_error(count, scale=1.0 / fit.lo, rate=fit.seed_error) + ROUND / d
    assert math.isclose(fit.error(count), fit.seed_error ** (2**count), rel_tol=1e-9)


@twin("Iterators.goldschmidt_one_sided")
@given(domain=domains(), share=shares, count=st.integers(1, 8))
def test_goldschmidt_never_overshoots_once_it_ran(domain: tuple[float, float], share: float, count: int) -> None:
    d = inside(domain, share)
    assert d * reciprocal(d, plain(domain), count) <= 1.0 + ROUND


@twin("Iterators.goldschmidt_quotient")
@given(domain=domains(), share=shares, num=st.floats(-10.0, 10.0), count=counts)
def test_the_numerator_rides_along(domain: tuple[float, float], share: float, num: float, count: int) -> None:
    fit, d = plain(domain), inside(domain, share)
    y = reciprocal(d, fit, count)
    assert abs(divide(num, d, fit, count) - num * y) <= ROUND * abs(num) / d


@twin("Iterators.seed_error_bound")
@given(domain=domains(), share=shares)
def test_the_seed_meets_its_bound(domain: tuple[float, float], share: float) -> None:
    fit, d = plain(domain), inside(domain, share)
    assert abs(1.0 - d * reciprocal(d, fit, 0)) <= fit.seed_error + ROUND


@twin("Iterators.seed_error_attained")
@given(domain=domains())
def test_the_seed_attains_its_bound_with_alternating_signs(domain: tuple[float, float]) -> None:
    fit = plain(domain)
    for d, sign in ((fit.lo, 1.0), (0.5 * (fit.lo + fit.hi), -1.0), (fit.hi, 1.0)):
        assert abs(1.0 - d * reciprocal(d, fit, 0) - sign * fit.seed_error) <= ROUND


@twin("Iterators.seed_is_minimax")
@given(domain=domains(), top=st.floats(-1.0, 3.0), slope=st.floats(-1.0, 3.0))
def test_no_linear_seed_does_better(domain: tuple[float, float], top: float, slope: float) -> None:
    fit = plain(domain)
    ends_and_middle = (fit.lo, 0.5 * (fit.lo + fit.hi), fit.hi)
    worst = max(abs(1.0 - d * (top * fit.alpha - slope * fit.beta * d)) for d in ends_and_middle)
    assert worst >= fit.seed_error - ROUND


@twin("Iterators.seed_error_chebyshev")
@given(domain=domains())
def test_the_seed_error_is_chebyshev(domain: tuple[float, float]) -> None:
    fit = plain(domain)
    x = (fit.hi + fit.lo) / (fit.hi - fit.lo)
    assert math.isclose(1.0 / fit.seed_error, 2.0 * x * x - 1.0, rel_tol=1e-9)


@twin("Iterators.seed_basin")
@given(domain=domains(1e3), share=st.floats(0.02, 0.98))
def test_the_iteration_converges_up_to_the_sum_of_the_ends(domain: tuple[float, float], share: float) -> None:
    fit = plain(domain)
    d = share * (fit.lo + fit.hi)
    assert abs(1.0 - d * reciprocal(d, fit, 0)) < 1.0
    assert abs(1.0 - d * reciprocal(d, fit, 24)) < 1e-9


@twin("Iterators.seed_outside_basin")
@given(domain=domains(1e2), beyond=st.floats(1.01, 1.5))
def test_the_iteration_diverges_above_it(domain: tuple[float, float], beyond: float) -> None:
    fit = plain(domain)
    d = beyond * (fit.lo + fit.hi)
    errors = [1.0 - d * reciprocal(d, fit, count) for count in range(4)]
    assert 1.0 < errors[0] < errors[1] < errors[2] < errors[3]


@twin("Iterators.relaxed_step_error", "Iterators.relaxed_bound")
@given(domain=domains(), share=shares, count=counts)
def test_relaxed_meets_its_bound(domain: tuple[float, float], share: float, count: int) -> None:
    fit, d = relaxed(domain), inside(domain, share)
    assert abs(1.0 - d * reciprocal(d, fit, count)) <= fit.error(count) + ROUND
    before, after = fit.errors(count + 1)[-2:]
    assert math.isclose(after, before**2 / (2.0 - before**2), rel_tol=1e-12)


@twin("Iterators.relaxed_no_worse")
@given(domain=domains(), count=counts)
def test_relaxed_is_no_worse_than_plain(domain: tuple[float, float], count: int) -> None:
    assert relaxed(domain).error(count) <= plain(domain).error(count)


@twin("Iterators.relaxed_interval_ratio")
@given(domain=domains(1e3), count=st.integers(0, 3))
def test_relaxed_ratios_recur(domain: tuple[float, float], count: int) -> None:
    before, after = ((1.0 + e) / (1.0 - e) for e in relaxed(domain).errors(count + 1)[-2:])
    assert math.isclose(after, (before + 1.0) ** 2 / (4.0 * before), rel_tol=1e-9)


@twin("Iterators.relaxed_error_chebyshev")
@given(domain=domains(1e3), count=counts)
def test_relaxed_errors_are_chebyshev(domain: tuple[float, float], count: int) -> None:
    fit = relaxed(domain)
    angle = 2.0**count * math.acosh(1.0 / fit.seed_error)
    if angle < 300.0:
        assert math.isclose(1.0 / fit.error(count), math.cosh(angle), rel_tol=1e-7)


@twin("Iterators.schedule_range")
@given(domain=domains(1e6), count=st.integers(0, 20))
def test_schedules_stay_between_one_and_two(domain: tuple[float, float], count: int) -> None:
    schedule = relaxed(domain).schedule(count)
    assert len(schedule) == count + 1
    assert schedule[-1] == 1.0
    assert all(1.0 <= s <= 2.0 for s in schedule)


@twin("Iterators.scaled_schedule")
@given(domain=domains(), share=shares, num=st.floats(-10.0, 10.0), count=counts)
def test_the_scaled_circuit_is_the_relaxed_iteration(
    domain: tuple[float, float], share: float, num: float, count: int
) -> None:
    fit, d = relaxed(domain), inside(domain, share)
    y = fit.alpha - fit.beta * d
    for e in fit.errors(count)[:-1]:
        y = 2.0 / (2.0 - e * e) * y * (2.0 - d * y)
    assert abs(divide(num, d, fit, count) - num * y) <= ROUND * abs(num) / d


@twin("Iterators.newton_error")
@given(z=scales, gain=scales, u=st.floats(-1.0, 2.0), level=levels)
def test_newton_leaves_the_stated_error(z: float, gain: float, u: float, level: int) -> None:
    e = 1.0 - u
    after = newton_step(z, u * gain / math.sqrt(z), gain, level) * math.sqrt(z) / gain
    assert abs((1.0 - after) - e * e * (3.0 - e) / 2.0) <= ROUND


@twin("Iterators.newton_bound")
@given(z=scales, gain=scales, e=shares, count=counts, level=levels)
def test_newton_meets_its_bound(z: float, gain: float, e: float, count: int, level: int) -> None:
    y = newton(z, (1.0 - e) * gain / math.sqrt(z), count, gain=gain, levels=level)
    error = 1.0 - y * math.sqrt(z) / gain
    assert error >= -ROUND
    assert error <= min(1.0, 2.0 / 3.0 * (1.5 * e) ** (2**count)) + ROUND


@twin("Iterators.newton_basin")
@given(z=scales, gain=scales, share=st.floats(0.001, 0.999), level=levels)
def test_newton_converges_in_its_basin(z: float, gain: float, share: float, level: int) -> None:
    y = share * math.sqrt(3.0) * gain / math.sqrt(z)
    first = 1.0 - newton(z, y, 1, gain=gain, levels=level) * math.sqrt(z) / gain
    assert -ROUND <= first < 1.0
    assert abs(1.0 - newton(z, y, 40, gain=gain, levels=level) * math.sqrt(z) / gain) < 1e-9


@twin("Iterators.newton_outside_basin")
@given(z=scales, gain=scales, u=st.floats(math.sqrt(3.0), 10.0), level=levels)
def test_newton_loses_the_sign_outside(z: float, gain: float, u: float, level: int) -> None:
    assert newton_step(z, u * gain / math.sqrt(z), gain, level) * math.sqrt(z) / gain <= ROUND
