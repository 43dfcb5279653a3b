# SPDX-License-Identifier: Apache-2.0
"""Numeric twins of proofs/Network.v: small networks of the project's solvers against the bounds of bits.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heatfhe.approx import InverseSqrtFit, ReciprocalFit, fit_inverse_sqrt, inverse_sqrt, reciprocal, rms_norm
from tests.approx.steps import layer_norm
from tests.proofs.bits import (
    fidelity_bound,
    loss_gap_bound,
    matched_bits,
    quantiser_step,
    solver_error,
    trajectory_bound,
    uniform_loss_gap_bound,
)
from tests.proofs.twin import ROUND, twin

seeds = st.integers(0, 2**32 - 1)
Array = np.ndarray
Layer = Callable[[Array], Array]


def run(layers: Sequence[Layer], h: Array) -> Array:
    for layer in layers:
        h = layer(h)
    return h


def distance(x: Array, y: Array) -> float:
    return float(np.max(np.abs(x - y)))


def quantise(w: Array, lo: float, width: float, bits: int) -> Array:
    step = quantiser_step(bits, width)
    return lo + step * np.clip(np.floor((w - lo) / step + 0.5), 0, 2.0**bits - 1)


@dataclass
class Network:
    """h -> 1/(W h), layer by layer: rows are positive and sum to about 2, so that [0.5, 1] maps into itself.

    The solver's domain is [0.5, 4], where 1/x has slope at most 4; it leaves room for the perturbed activations.
    """

    seed: int
    counts: Sequence[int]
    dimension: int = 6
    fit: ReciprocalFit = field(default_factory=lambda: ReciprocalFit(lo=0.5, hi=4.0))
    slope: float = 4.0
    bound: float = 2.0
    loss_slope: float = 3.0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        shape = (len(self.counts), self.dimension, self.dimension)
        raw = rng.uniform(0.1, 1.0, shape)
        self.weights = raw / raw.sum(axis=-1, keepdims=True) * rng.uniform(1.9, 2.1, (*shape[:2], 1))
        self.start = rng.uniform(0.5, 1.0, self.dimension)
        self.goal = rng.uniform(0.0, 1.0, self.dimension)

    @property
    def rho(self) -> float:
        return self.slope * float(np.abs(self.weights).sum(axis=-1).max())

    @property
    def solver(self) -> dict[str, float]:
        return {"scale": 1.0 / self.fit.lo, "rate": self.fit.seed_error}

    def inside(self, u: Array) -> Array:
        assert self.fit.lo <= u.min()
        assert u.max() <= self.fit.hi
        return u

    def exact(self) -> list[Layer]:
        return [lambda h, w=w: 1.0 / self.inside(w @ h) for w in self.weights]

    def approximate(self) -> list[Layer]:
        pairs = zip(self.weights, self.counts)
        return [lambda h, w=w, n=n: reciprocal(self.inside(w @ h), self.fit, n) for w, n in pairs]

    def quantised(self) -> list[Layer]:
        layers: list[Layer] = []
        for w, count in zip(self.weights, self.counts):
            lo, width = float(w.min()), float(np.ptp(self.weights)) + 0.1
            layer_bound = {"slope": self.slope, "dimension": self.dimension, "activation_bound": self.bound}
            bits = matched_bits(count, **self.solver, width=width, **layer_bound)
            rounded = quantise(w, lo, width, bits)

            def layer(h: Array, w: Array = w, q: Array = rounded) -> Array:
                assert np.abs(h).max() <= self.bound
                self.inside(w @ h)
                return 1.0 / self.inside(q @ h)

            layers.append(layer)
        return layers

    def loss(self, h: Array) -> float:
        return self.loss_slope * distance(h, self.goal)


# Two iterations keep every activation in the domain; past five the bound is below float64's rounding.
site_count = st.integers(2, 5)
site_counts = st.lists(site_count, min_size=1, max_size=4)


@twin("Network.trajectory_bound", "Network.trajectory_bound_sites")
@given(errors=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), rho=st.floats(0.0, 3.0), slack=st.floats(0.0, 1.0))
def test_a_recurrence_stays_under_the_trajectory_bound(errors: list[float], rho: float, slack: float) -> None:
    drift = worst = 0.0
    for error in errors:
        drift, worst = slack * (rho * drift + error), rho * worst + error
    bound = trajectory_bound(errors, rho)
    assert drift <= bound * (1.0 + ROUND)
    assert math.isclose(worst, bound, rel_tol=ROUND)                       # attained
    sites = len(errors)
    assert math.isclose(bound, sum(rho ** (sites - 1 - l) * e for l, e in enumerate(errors)), rel_tol=1e-9)
    one = trajectory_bound([errors[0]] * sites, rho)
    assert math.isclose(one, errors[0] * sum(rho**j for j in range(sites)), rel_tol=1e-9)


@twin("Network.layer_lipschitz")
@given(seed=seeds)
def test_a_layer_is_lipschitz(seed: int) -> None:
    net = Network(seed, [4])
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0.5, 1.0, (2, net.dimension))
    layer = net.exact()[0]
    assert distance(layer(x), layer(y)) <= net.rho * distance(x, y) * (1.0 + ROUND)


@twin("Network.activation_perturbation")
@given(seed=seeds, bits=st.integers(4, 16))
def test_rounded_weights_perturb_an_activation_within_bounds(seed: int, bits: int) -> None:
    net = Network(seed, [4])
    w, h = net.weights[0], net.start
    lo, width = float(w.min()), float(np.ptp(w))
    moved = distance(1.0 / net.inside(w @ h), 1.0 / net.inside(quantise(w, lo, width, bits) @ h))
    half_step = quantiser_step(bits, width) / 2.0
    assert moved <= net.slope * half_step * net.dimension * float(np.abs(h).max()) * (1.0 + ROUND)


@twin("Network.fidelity")
@given(seed=seeds, counts=site_counts)
def test_the_solver_network_stays_near_the_exact_one(seed: int, counts: list[int]) -> None:
    net = Network(seed, counts)
    gap = abs(net.loss(run(net.approximate(), net.start)) - net.loss(run(net.exact(), net.start)))
    assert gap <= fidelity_bound(counts, **net.solver, rho=net.rho, loss_slope=net.loss_slope) + ROUND


@twin("Network.mixed_precision")
@given(seed=seeds, counts=site_counts)
def test_the_solver_network_stays_near_the_mixed_precision_one(seed: int, counts: list[int]) -> None:
    net = Network(seed, counts)
    gap = abs(net.loss(run(net.approximate(), net.start)) - net.loss(run(net.quantised(), net.start)))
    assert gap <= loss_gap_bound(counts, **net.solver, rho=net.rho, loss_slope=net.loss_slope) + ROUND


@twin("Network.matched_precision")
@given(seed=seeds, count=site_count, layers=st.integers(1, 4))
def test_one_count_gives_theorem_two(seed: int, count: int, layers: int) -> None:
    net = Network(seed, [count] * layers)
    gap = abs(net.loss(run(net.approximate(), net.start)) - net.loss(run(net.quantised(), net.start)))
    bound = uniform_loss_gap_bound(count, layers, **net.solver, rho=net.rho, loss_slope=net.loss_slope)
    assert gap <= bound + ROUND
    powers = sum(net.rho**j for j in range(layers))
    assert math.isclose(bound, 2.0 * net.loss_slope * solver_error(count, **net.solver) * powers, rel_tol=1e-9)


@twin("Network.matched_precision_vanishes")
@given(scale=st.floats(0.1, 10.0), rate=st.floats(0.1, 0.95), rho=st.floats(0.0, 5.0), layers=st.integers(1, 12))
def test_the_bound_of_theorem_two_vanishes(scale: float, rate: float, rho: float, layers: int) -> None:
    bounds = [
        uniform_loss_gap_bound(count, layers, scale=scale, rate=rate, rho=rho, loss_slope=1.0) for count in range(12)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 1e-30


# Blocks that are not entry-wise: W, then an RMS norm. On ||x|| >= m the norm is (d/m)-Lipschitz in the maximum norm:
# ||x/|x| - y/|y||| <= 2 ||x - y|| / (|x| + |y|) (Dunkl and Williams 1964), and ||.||_2 <= sqrt(d) ||.||_max.
DIMENSION = 4
NORM: InverseSqrtFit = fit_inverse_sqrt(0.25, 64.0)


def normalise(x: Array, goldschmidt_count: int | None, newton_count: int) -> Array:
    def root(z: Array) -> Array:
        assert NORM.lo <= z <= NORM.hi
        if goldschmidt_count is None:
            return math.sqrt(DIMENSION) / np.sqrt(z)
        return inverse_sqrt(z, NORM, goldschmidt_count, newton_count, gain=math.sqrt(DIMENSION))

    return rms_norm(x, sum_of_squares=lambda v: np.sum(v * v), inverse_root=root)


@dataclass
class Blocks:
    """Layers h -> norm(W h) with W near the identity, which keeps the sum of squares inside the domain."""

    seed: int
    counts: Sequence[tuple[int, int]]
    loss_slope: float = 2.0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.weights = np.eye(DIMENSION) + rng.uniform(-0.05, 0.05, (len(self.counts), DIMENSION, DIMENSION))
        self.start = rng.choice([-1.0, 1.0], DIMENSION) * rng.uniform(0.5, 1.5, DIMENSION)
        self.goal = rng.normal(size=DIMENSION)

    @property
    def rho(self) -> float:
        return float(np.abs(self.weights).sum(axis=-1).max()) * DIMENSION / math.sqrt(NORM.lo)

    @property
    def errors(self) -> list[float]:
        return [NORM.error(*counts) * math.sqrt(DIMENSION) + ROUND for counts in self.counts]

    def layers(self, exact: bool = False) -> list[Layer]:
        pairs = zip(self.weights, self.counts)
        return [lambda h, w=w, g=g, n=n: normalise(w @ h, None if exact else g, n) for w, (g, n) in pairs]

    def loss(self, h: Array) -> float:
        return self.loss_slope * distance(h, self.goal)


norm_counts = st.lists(st.tuples(st.integers(4, 7), st.integers(1, 3)), min_size=1, max_size=4)


@twin("Network.block_deviation", "Network.block_fidelity")
@given(seed=seeds, counts=norm_counts)
def test_norm_blocks_stay_near_the_exact_ones(seed: int, counts: list[tuple[int, int]]) -> None:
    net = Blocks(seed, counts)
    exact, solved = run(net.layers(exact=True), net.start), run(net.layers(), net.start)
    bound = trajectory_bound(net.errors, net.rho)
    assert distance(exact, solved) <= bound
    assert abs(net.loss(exact) - net.loss(solved)) <= net.loss_slope * bound


@twin("Network.block_matched_precision")
@given(seed=seeds, counts=norm_counts)
def test_two_perturbed_block_networks_stay_near_each_other(seed: int, counts: list[tuple[int, int]]) -> None:
    net = Blocks(seed, counts)
    rng = np.random.default_rng(seed + 1)
    solved = run(net.layers(), net.start)
    noisy = net.start
    for layer, error in zip(net.layers(exact=True), net.errors):
        noisy = layer(noisy) + error * rng.uniform(-1.0, 1.0, DIMENSION)
    assert abs(net.loss(solved) - net.loss(noisy)) <= 2.0 * net.loss_slope * trajectory_bound(net.errors, net.rho)


@twin("Network.margin_keeps_top1")
@given(seed=seeds, error=st.floats(1e-6, 1.0))
def test_a_margin_keeps_the_top_choice(seed: int, error: float) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=50)
    best = int(np.argmax(logits))
    logits[best] = np.max(np.delete(logits, best)) + 2.0 * error * (1.0 + 1e-6)
    assert int(np.argmax(logits + rng.uniform(-error, error, 50))) == best
    worst = np.full(50, error)
    worst[best] = -error
    assert int(np.argmax(logits + worst)) == best


@twin("Network.norm_block_error")
@given(seed=seeds, goldschmidt_count=st.integers(2, 7), newton_count=st.integers(0, 3))
def test_a_norm_block_errs_like_its_inverse_root(seed: int, goldschmidt_count: int, newton_count: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.4, 2.0) * rng.choice([-1.0, 1.0], DIMENSION) * rng.uniform(0.8, 1.2, DIMENSION)
    gamma, beta = rng.normal(size=(2, DIMENSION))
    centred = x - x.mean()
    v = float(np.sum(centred * centred))
    assume(NORM.lo <= v <= NORM.hi)                      # not a near-constant row
    solved = layer_norm(
        x, mean=np.mean, sum_of_squares=lambda u: np.sum(u * u),
        inverse_root=lambda z: inverse_sqrt(z, NORM, goldschmidt_count, newton_count),
    )
    e = NORM.error(goldschmidt_count, newton_count) + 1e-6     # it is measured on a grid
    gap = np.abs((gamma * solved + beta) - (gamma * centred / math.sqrt(v) + beta))
    assert np.all(gap <= e * np.abs(gamma * centred) / math.sqrt(v) + ROUND)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_bounds_are_not_vacuous(count: int) -> None:
    """The worst of many networks comes within a factor of the single-layer bound: a lost factor would show."""
    worst = 0.0
    for seed in range(200):
        net = Network(seed, [count])
        net.weights = net.weights / net.weights.sum(axis=-1, keepdims=True) * 2.0
        net.start = np.full(net.dimension, np.random.default_rng(seed).uniform(0.25, 0.5))
        drift = distance(run(net.approximate(), net.start), run(net.exact(), net.start))
        worst = max(worst, drift / trajectory_bound([solver_error(count, **net.solver)], net.rho))
    assert 0.5 < worst <= 1.0 + 1e-6
