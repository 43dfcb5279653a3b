# SPDX-License-Identifier: Apache-2.0
"""Counts moved to the stairs of a plan: never fewer in all, never dearer, and the best there is where softmaxes are
independent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import pytest

from heatfhe.errors import ConfigError
from heatfhe.planning import IterationPrices, preset
from heatfhe.planning.stairs import Bounds, Token, changed, cheapest, moved, onto_stairs
from heatfhe.records import Calibration
from tests.tiny import tiny_circuit

CALIBRATION = tiny_circuit(layers=3, tolerance=1e-4).calibration
NAMES = tuple(CALIBRATION.softmaxes)
BOUNDS = {site: (1, 12) for name in NAMES for site in (f"{name}/init", f"{name}/refine")}


def total(counts: Mapping[str, int], name: str) -> int:
    return counts[f"{name}/init"] + counts[f"{name}/refine"]


def staircase(seed: int) -> Callable[[Sequence[Mapping[str, int]]], list[Token]]:
    """Tokens of which every softmax pays a bootstrap for each started flight of stairs, and a little per iteration."""
    rng = np.random.default_rng(seed)
    flights = {name: (int(rng.integers(2, 6)), int(rng.integers(0, 6))) for name in NAMES}

    def tokens(wanted: Sequence[Mapping[str, int]]) -> list[Token]:
        found = []
        for counts in wanted:
            stairs = sum(-(-(total(counts, n) + shift) // height) for n, (height, shift) in flights.items())
            found.append(Token(seconds=stairs + 0.01 * sum(total(counts, n) for n in NAMES), bootstraps=stairs))
        return found

    return tokens


def at(seed: int) -> Calibration:
    rng = np.random.default_rng([seed, 1])
    return CALIBRATION.with_counts({site: int(rng.integers(4, 9)) for site in BOUNDS} | _norms())


def _norms() -> dict[str, int]:
    return {site: count for site, count in CALIBRATION.counts().items() if site not in BOUNDS}


@pytest.mark.parametrize("by", [-5, -1, 0, 3])
def test_a_softmax_moves_by_as_many_and_levels_its_two_counts(by: int) -> None:
    counts = at(0).counts() | {f"{NAMES[0]}/init": 8, f"{NAMES[0]}/refine": 4}
    found = moved(counts, NAMES[0], by, BOUNDS)
    assert found is not None
    assert total(found, NAMES[0]) == 12 + by
    assert {k: v for k, v in found.items() if not k.startswith(NAMES[0])} == {
        k: v for k, v in counts.items() if not k.startswith(NAMES[0])
    }
    assert abs(found[f"{NAMES[0]}/init"] - found[f"{NAMES[0]}/refine"]) <= 4
    assert moved(counts, NAMES[0], -11, BOUNDS) is None
    assert moved(counts, NAMES[0], 13, BOUNDS) is None
    with pytest.raises(ConfigError, match=rf"{NAMES[0]}: counts of 8 and 4 cannot change by -11"):
        changed(counts, {NAMES[0]: -11}, BOUNDS)
    tight: Bounds = {**BOUNDS, f"{NAMES[0]}/init": (8, 8)}
    assert moved(counts, NAMES[0], -3, tight) == counts | {f"{NAMES[0]}/refine": 1}


@pytest.mark.parametrize("seed", range(5))
def test_the_cheapest_changes_of_every_sum_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices = {name: {by: (float(rng.integers(0, 9)), float(rng.integers(0, 3))) for by in (-2, -1, 0, 1)}
              for name in "abcd"}  # fmt: skip
    found = cheapest(prices)
    best: dict[int, tuple[float, float]] = {}
    for moves in product((-2, -1, 0, 1), repeat=4):
        each = [prices[name][by] for name, by in zip(prices, moves)]
        price = (sum(p for p, _ in each), sum(p for _, p in each))
        best[sum(moves)] = min(best.get(sum(moves), price), price)
    assert {by: price for by, (price, _) in found.items()} == best
    assert all(sum(moves.values()) == by for by, (_, moves) in found.items())


@pytest.mark.parametrize("seed", range(12))
def test_no_iteration_is_lost_and_no_second_is_added(seed: int) -> None:
    calibration, tokens, reach = at(seed), staircase(seed), 1 + seed % 3
    before = calibration.counts()
    found = onto_stairs(calibration, tokens, reach, BOUNDS)
    assert sum(found.values()) >= sum(before.values())
    assert all(abs(total(found, n) - total(before, n)) <= reach for n in NAMES)
    assert all(BOUNDS[site][0] <= found[site] <= BOUNDS[site][1] for site in BOUNDS)
    assert {site: found[site] for site in _norms()} == _norms()
    now, then = tokens([before, found])
    if found == before:
        best = min(
            tokens([made])[0].seconds
            for moves in product(range(-1, 2), repeat=len(NAMES))
            if sum(moves) >= 0
            and (made := changed(before, dict(zip(NAMES, moves)), BOUNDS))
        )
        assert now.seconds - best < 0.5 * now.seconds / now.bootstraps  # nothing worth a move was left
    else:
        assert then.bootstraps < now.bootstraps
        assert now.seconds - then.seconds >= 0.5 * now.seconds / now.bootstraps


def test_on_some_stairs_something_is_saved_and_on_some_nothing() -> None:
    kept = [onto_stairs(at(seed), staircase(seed), 2, BOUNDS) == at(seed).counts() for seed in range(12)]
    assert 0 < sum(kept) < 12


def test_prices_of_plans_move_counts_where_a_plan_is_cheaper() -> None:
    """The embedded circuit hands one iteration over and saves one refresh of thirty."""
    from heatfhe.circuit import Circuit
    from heatfhe.cli.model_source import circuit_folder

    circuit = Circuit.load(circuit_folder("default"))
    prices = IterationPrices(
        stages=circuit.stages, shape=circuit.shape, params=preset("insecure-openfhe-12"), context=128
    )
    calibration = circuit.calibration
    bounds = {site: (4, 15) for name in calibration.softmaxes for site in (f"{name}/init", f"{name}/refine")}
    found = prices.on_stairs(calibration, 1, bounds)
    moved_counts = calibration.with_counts(found)
    assert sum(found.values()) == sum(calibration.counts().values())
    assert (prices.bootstraps(calibration), prices.bootstraps(moved_counts)) == (30, 29)
    assert prices.seconds(moved_counts) < 0.985 * prices.seconds(calibration)
