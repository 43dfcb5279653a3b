# SPDX-License-Identifier: Apache-2.0
"""Slots kept as one cycle: every operation means what it does on all slots, bit for bit."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.engine import ClearEngine
from heatfhe.engine.arrays import Arrays
from heatfhe.engine.cycles import cycled, shortest, slotwise, stretched
from heatfhe.planning import Vector
from tests.planning.clear_run import clear_params

N = 64
PERIODS = st.integers(0, 6).map(lambda k: 1 << k)
SEEDS = st.integers(0, 1 << 32)


def cycle(seed: int, period: int, *rows: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*rows, period))


def whole(a: np.ndarray) -> np.ndarray:
    return np.tile(a, N // a.shape[-1])


@given(seed=SEEDS, p=PERIODS, q=PERIODS, op=st.sampled_from([operator.add, operator.sub, operator.mul]))
def test_operations_of_cycles(seed: int, p: int, q: int, op: Callable[[Any, Any], Any]) -> None:
    a, b = cycle(seed, p, 2, 3), cycle(seed + 1, q)
    for x, y in ((a, b), (b, a)):
        found = slotwise(op, x, y)
        assert found.shape[-1] == max(p, q)
        assert np.array_equal(whole(found), op(whole(x), whole(y)))


@given(seed=SEEDS, p=PERIODS, q=PERIODS)
def test_a_refreshed_cycle_is_the_mean_of_what_repeats(seed: int, p: int, q: int) -> None:
    a = cycle(seed, p, 2)
    found = cycled(a, q)
    assert found.shape == (2, q)
    if p <= q:
        assert np.array_equal(found, np.tile(a, q // p))
    else:
        assert np.allclose(found, a.reshape(2, p // q, q).mean(axis=1), rtol=0, atol=1e-15 * np.abs(a).max())
    assert np.array_equal(cycled(whole(a), p), a)  # equal cycles leave no error
    assert np.array_equal(stretched(a, N), whole(a))
    assert np.array_equal(shortest(whole(a)), shortest(a))
    assert np.array_equal(whole(shortest(whole(a))), whole(a))


@given(seed=SEEDS, periods=st.lists(st.tuples(PERIODS, PERIODS), min_size=1, max_size=5))
def test_sums_of_products(seed: int, periods: list[tuple[int, int]]) -> None:
    pairs = [(cycle(seed + i, p, 2), cycle(seed + 9 + i, q)) for i, (p, q) in enumerate(periods)]
    wanted = sum(whole(a) * whole(b) for a, b in pairs)
    assert np.allclose(whole(Arrays().dot(pairs)), wanted, rtol=0, atol=1e-13)
    assert Arrays().dot([*pairs, (pairs[0][0], 2.5)]).shape[-1] == max(max(pair) for pair in periods)


def test_a_solver_works_on_what_differs() -> None:
    """After a refresh of period 4 numbers are added, multiplied and rotated by fours; a mask of all slots ends that."""
    e = ClearEngine(clear_params(N))
    x = e.bootstrap(e.value(np.tile([1.0, 2.0, 3.0, 4.0], N // 4), 0), period=4, bound=4.0)
    y = e.multiply(e.add(x, e.rotate(x, 1)), x)
    assert y.cycle.shape == (4,)
    assert e.rotate(y, 8).cycle is y.cycle
    mask = Vector("mask", lambda: np.arange(N) / N)
    assert e.multiply_plain(y, mask).cycle.shape == (N,)
    assert e.add_plain(y, Vector("half", lambda: np.tile([1.0, 0.0], N // 2))).cycle.shape == (4,)
    assert np.array_equal(e.read(y), np.tile([3.0, 10.0, 21.0, 20.0], N // 4))
    assert e.dump(y) == e.dump(e.value(e.read(y), y.level))


@pytest.mark.parametrize("period", [1, 4, N])
def test_noise_of_a_refresh_is_drawn_for_one_cycle(period: int) -> None:
    seen: list[tuple[int, ...]] = []

    def noise(values: np.ndarray, bound: float, rng: np.random.Generator) -> np.ndarray:
        seen.append(values.shape)
        return np.ones_like(values)

    e = ClearEngine(clear_params(N), noise=noise, rng=np.random.default_rng(0))
    out = e.bootstrap(e.value(np.zeros((2, N)), 0), period=period, bound=1.0)
    assert seen == [(2, 1, period)]
    assert np.array_equal(out.cycle, np.ones((2, period)))
