# SPDX-License-Identifier: Apache-2.0
"""Prices of iterations: what lowering a count really saves in a plan, looked for some iterations ahead."""

from __future__ import annotations

import pytest

from heatfhe.circuit import Circuit
from heatfhe.planning import IterationPrices, plan
from heatfhe.planning import prices as prices_module
from heatfhe.planning.prices import AHEAD
from heatfhe.records import Calibration
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit

PARAMS = clear_params(64)


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return tiny_circuit(tolerance=1e-3)


@pytest.fixture(scope="module")
def prices(circuit: Circuit) -> IterationPrices:
    return IterationPrices(stages=circuit.stages, shape=circuit.shape, params=PARAMS, context=16)


def test_seconds_are_those_a_plan_predicts(circuit: Circuit, prices: IterationPrices) -> None:
    made = plan(circuit, PARAMS, programs=("logits",)).program("logits")
    # A plan adds drops and what is started by itself, which no placement counts.
    assert prices.seconds(circuit.calibration) == pytest.approx(made.predicted_seconds, rel=0.05)
    assert prices.seconds(circuit.calibration) <= made.predicted_seconds
    assert prices.bootstraps(circuit.calibration) == len(made.bootstraps())


def test_a_price_is_the_best_saving_some_iterations_ahead(circuit: Circuit, prices: IterationPrices) -> None:
    known, counts = circuit.calibration, circuit.calibration.counts()
    found, floors, now = prices(known), known.floors(), prices.seconds(known)
    assert set(found) == set(counts)

    def saved(name: str, by: int) -> float:
        return now - prices.seconds(known.with_counts({**counts, name: counts[name] - by}))

    for name, price in found.items():
        room = min(AHEAD, counts[name] - floors[name])
        wanted = max((saved(name, k) / k for k in range(1, room + 1)), default=-saved(name, -1))
        assert price == pytest.approx(max(0.0, wanted), abs=1e-12)
    stairs = sorted(found.values())
    assert stairs[-1] > 3 * stairs[0]  # a bootstrap, or next to nothing


def test_plans_are_remembered_by_counts_until_the_calibration_changes(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    whole = prices_module._planned

    def counted(prices: IterationPrices, mlp: str, calibration: Calibration) -> prices_module.Token:
        made.append(1)
        return whole(prices, mlp, calibration)

    monkeypatch.setattr(prices_module, "_planned", counted)
    fresh = IterationPrices(stages=circuit.stages, shape=circuit.shape, params=PARAMS, context=16)
    known = circuit.calibration
    fresh.seconds(known)
    once = len(made)
    fresh.seconds(known)
    assert len(made) == once
    other = tiny_circuit(tolerance=1e-5).calibration.with_counts(known.counts())
    fresh.seconds(other)
    assert len(made) > once
    assert fresh.name == "insecure-clear-64-8, paper-a100, context 16"
