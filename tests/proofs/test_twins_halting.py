# SPDX-License-Identifier: Apache-2.0
"""Numeric twins of proofs/Halting.v: the halting distribution, its ramp, its prior and its expected solver."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heatfhe.approx import ReciprocalFit, reciprocal
from tests.proofs.twin import ROUND, domains, inside, shares, twin

torch = pytest.importorskip("torch", reason="the halting distribution is a torch module")
halting = pytest.importorskip("heatfhe.halting")

torch.set_num_threads(1)
logits = st.lists(st.floats(-8.0, 8.0), min_size=1, max_size=13)
chances = st.floats(0.05, 0.98)


@st.composite
def sites(draw: st.DrawFn, least: int = 1) -> tuple[int, int]:
    """A floor and a largest count with at least `least` counts above the floor."""
    floor = draw(st.integers(0, 2))
    return floor, floor + draw(st.integers(least, 12))


def masses(values: list[float], floor: int = 0) -> list[float]:
    return halting.probabilities(torch.tensor(values, dtype=torch.float64), floor).tolist()


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@twin("Halting.mass_sums_to_one", "Halting.mass_nonneg")
@given(values=logits)
def test_masses_are_a_distribution(values: list[float]) -> None:
    p = masses(values)
    assert len(p) == len(values) + 1
    assert min(p) >= 0.0
    assert abs(sum(p) - 1.0) <= ROUND


@twin("Halting.mass_last_is_complement")
@given(values=logits)
def test_the_last_mass_is_the_product_and_the_complement(values: list[float]) -> None:
    p = masses(values)
    assert abs(p[-1] - (1.0 - sum(p[:-1]))) <= ROUND
    assert abs(p[-1] - math.prod(1.0 - sigmoid(v) for v in values)) <= ROUND


@twin("Halting.mass_log")
@given(values=logits)
def test_masses_in_log_space(values: list[float]) -> None:
    logs = halting.log_probabilities(torch.tensor(values, dtype=torch.float64)).tolist()
    for i, value in enumerate(values):
        expected = math.log(sigmoid(value)) + sum(math.log(sigmoid(-v)) for v in values[:i])
        assert math.isclose(logs[i], expected, rel_tol=1e-9, abs_tol=ROUND)
        assert abs(math.exp(logs[i]) - masses(values)[i]) <= ROUND


@twin("Halting.floor_mass_sums_to_one", "Halting.floor_mass_nonneg", "Halting.floor_mass_zero_below")
@given(values=logits, share=shares)
def test_masses_with_a_floor(values: list[float], share: float) -> None:
    floor = int(share * len(values))
    p = masses(values, floor)
    assert p[:floor] == [0.0] * floor
    assert min(p) >= 0.0
    assert abs(sum(p) - 1.0) <= ROUND
    assert max(abs(a - b) for a, b in zip(p[floor:], masses(values[floor:]) if floor < len(values) else [1.0])) <= ROUND


@twin("Halting.expected_error")
@given(domain=domains(1e2), share=shares, values=st.lists(st.floats(-4.0, 4.0), min_size=1, max_size=6))
def test_the_expected_solver_errs_by_the_mean_of_the_errors(
    domain: tuple[float, float], share: float, values: list[float]
) -> None:
    fit, d = ReciprocalFit(lo=domain[0], hi=domain[1]), inside(domain, share)
    p = halting.probabilities(torch.tensor(values, dtype=torch.float64))
    mixed = float(halting.expected_reciprocal(torch.tensor(d, dtype=torch.float64), fit, p))
    assert abs(mixed - 1.0 / d) <= sum(w * fit.error(i) for i, w in enumerate(p.tolist())) / d + ROUND / d
    states = [float(reciprocal(d, fit, i)) for i in range(len(values) + 1)]
    assert abs(mixed - sum(w * y for w, y in zip(p.tolist(), states))) <= ROUND / d


def ramp(floor: int, top: int, gamma: float) -> list[float]:
    return halting.probabilities(halting.ramp(top, floor, gamma), floor).tolist()


@twin("Halting.ramp_ratio")
@given(site=sites(2), gamma=st.floats(0.05, 2.0))
def test_neighbouring_masses_of_the_ramp(site: tuple[int, int], gamma: float) -> None:
    floor, top = site
    p = ramp(floor, top, gamma)
    for i in range(floor, top - 1):
        step = math.exp(gamma) / (1.0 + math.exp(gamma * (i + 1 - (top - 1))))
        assert math.isclose(p[i + 1], p[i] * step, rel_tol=1e-9)


@twin("Halting.ramp_ends_equal")
@given(site=sites(), gamma=st.floats(0.05, 2.0))
def test_the_two_deepest_masses_are_equal(site: tuple[int, int], gamma: float) -> None:
    floor, top = site
    p = ramp(floor, top, gamma)
    assert abs(p[top - 1] - p[top]) <= ROUND


@twin("Halting.ramp_monotone", "Halting.ramp_monotone_iff")
@given(site=sites(2), gamma=st.floats(0.05, 2.0))
def test_the_ramp_is_monotone_exactly_from_ln_2(site: tuple[int, int], gamma: float) -> None:
    assume(abs(gamma - math.log(2.0)) > 1e-6)
    floor, top = site
    p = ramp(floor, top, gamma)
    monotone = all(p[i] <= p[i + 1] + ROUND for i in range(floor, top))
    assert monotone == (gamma >= math.log(2.0))


@twin("Halting.default_slope")
def test_the_default_slope_is_steep_enough() -> None:
    assert halting.GAMMA == 0.7
    assert math.log(2.0) <= halting.GAMMA
    for top in range(1, 14):
        p = ramp(0, top, halting.GAMMA)
        assert all(p[i] <= p[i + 1] + ROUND for i in range(top))


def prior(w: int, floor: int, top: int, p: float, geometric: bool) -> list[float]:
    logs = halting.log_prior(w, floor, top, p, width=top, geometric_at_zero=geometric)
    return torch.exp(logs).tolist()


@twin("Halting.prior_mode")
@given(site=sites(), share=shares, p=chances)
def test_the_prior_peaks_at_its_target(site: tuple[int, int], share: float, p: float) -> None:
    floor, top = site
    w = round(share * (top - floor))
    law = prior(w, floor, top, p, geometric=False)
    assert law[:floor] == [0.0] * floor
    assert all(law[floor + w] > mass for i, mass in enumerate(law) if i != floor + w)
    r = 1.0 + (w + 0.5) * p / (1.0 - p)
    for k in range(top - floor):
        assert math.isclose(law[floor + k + 1], law[floor + k] * (1.0 - p) * (k + r) / (k + 1.0), rel_tol=1e-8)


@twin("Halting.geometric_law", "Halting.geometric_mode")
@given(site=sites(), p=chances)
def test_the_prior_at_zero_is_geometric(site: tuple[int, int], p: float) -> None:
    floor, top = site
    law = prior(0, floor, top, p, geometric=True)
    for k in range(top - floor + 1):
        assert math.isclose(law[floor + k], law[floor] * (1.0 - p) ** k, rel_tol=1e-8)
        assert k == 0 or law[floor + k] < law[floor]
