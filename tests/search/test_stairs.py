# SPDX-License-Identifier: Apache-2.0
"""Counts are rounded to where plans are cheaper, and no further than the loss allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from heatfhe.errors import ConfigError
from heatfhe.search import round_to_stairs

SITES = ("a", "b", "c")
FLOORS = dict.fromkeys(SITES, 1)


def stairs(wanted: Sequence[Mapping[str, int]]) -> list[float]:
    """A bootstrap of 1 for every four iterations of a and b together, and for every three of c; 0.01 an iteration."""
    return [
        math.ceil((c["a"] + c["b"]) / 4) + math.ceil(c["c"] / 3) + 0.01 * sum(c.values()) for c in wanted
    ]  # fmt: skip


def decay(wanted: Sequence[Mapping[str, int]]) -> list[float]:
    """A loss that each iteration halves at its site, at a twice as large as elsewhere."""
    return [2.0 * 2.0 ** -c["a"] + 2.0 ** -c["b"] + 2.0 ** -c["c"] for c in wanted]


def test_a_pair_is_lowered_where_no_site_alone_saves_anything() -> None:
    counts = {"a": 5, "b": 5, "c": 3}  # ten of a and b: one alone less is nine, still three bootstraps
    (start,) = stairs([counts])
    singles = [{**counts, name: counts[name] - 1} for name in ("a", "b")]
    assert all(price > start - 0.5 for price in stairs(singles))
    found = round_to_stairs(counts, FLOORS, price=stairs, loss=decay, limit=0.35, least=0.5, ahead=1)
    assert found.moves[0] == {"a": -1, "b": -1}
    assert found.price == pytest.approx(start - 1.02)


def test_what_costs_nothing_is_raised_again() -> None:
    counts = {"a": 3, "b": 2, "c": 2}  # five of a and b pay for eight; two of c for three
    found = round_to_stairs(counts, FLOORS, price=stairs, loss=decay, limit=1.0, least=0.5)
    assert found.counts["a"] + found.counts["b"] == 4  # a whole stair
    assert found.counts["c"] == 3
    assert found.loss < 1.0


def test_the_limit_is_kept_and_nothing_ends_dearer_over_many_seeds() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        counts = {name: int(rng.integers(1, 9)) for name in SITES}
        (start,), (loss,) = stairs([counts]), decay([counts])
        limit = loss * float(rng.uniform(1.0, 3.0))
        found = round_to_stairs(counts, FLOORS, price=stairs, loss=decay, limit=limit, least=0.5)
        assert found.loss <= limit
        assert found.price <= start + 1e-9
        assert all(found.counts[name] >= 1 for name in SITES)
        assert (stairs([found.counts])[0], decay([found.counts])[0]) == pytest.approx((found.price, found.loss))
        assert found.moves or found.counts == counts


@pytest.mark.parametrize("limit", [0.25, 0.4, 0.7])
def test_it_finds_the_cheapest_counts_where_these_can_be_tried_all(limit: float) -> None:
    """It is greedy: at 0.2 it would have to raise c before it may lower a and b, and stays where it is."""
    counts = {"a": 6, "b": 4, "c": 5}
    every = [dict(zip(SITES, row)) for row in product(range(1, 8), repeat=3)]
    best = min(price for price, loss in zip(stairs(every), decay(every)) if loss <= limit)
    found = round_to_stairs(counts, FLOORS, price=stairs, loss=decay, limit=limit, least=0.5)
    assert found.price <= best + 0.5  # bootstraps are equal; iterations within a stair are free


def test_a_loss_that_is_not_finite_is_never_taken() -> None:
    def lost(wanted: Sequence[Mapping[str, int]]) -> list[float]:
        return [math.inf if c["a"] < 4 else 0.0 for c in wanted]

    found = round_to_stairs({"a": 5, "b": 4, "c": 3}, FLOORS, price=stairs, loss=lost, limit=1.0, least=0.5)
    assert found.counts["a"] >= 4


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="none below its own"):
        round_to_stairs({"a": 0, "b": 1, "c": 1}, FLOORS, price=stairs, loss=decay, limit=1.0, least=0.5)
    with pytest.raises(ConfigError, match="above 0"):
        round_to_stairs(dict(FLOORS), FLOORS, price=stairs, loss=decay, limit=1.0, least=0.0)
