# SPDX-License-Identifier: Apache-2.0
"""Drift: without noise nothing drifts, with noise it does, and the same seed gives the same curve."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.errors import ConfigError
from heatfhe.evaluation.drift import drift, sample_windows
from heatfhe.planning import Plan, plan
from heatfhe.planning.params import preset
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(tiny_circuit(), clear_params(64), programs=("logits",), placement="greedy")


def test_no_noise_is_no_drift(made: Plan) -> None:
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 4, 9, seed=1)
    found = drift(made, circuit, windows, noise=BootstrapNoise())
    assert found.fidelity.kl < 1e-15
    assert found.fidelity.top1 == 1.0
    assert found.fidelity.collapsed == 0


def test_noise_costs_fidelity_and_repeats_with_its_seed(made: Plan) -> None:
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 8, 9, seed=1)
    small, large = (drift(made, circuit, windows, noise=BootstrapNoise(sigma=s), seed=3) for s in (1e-5, 1e-3))
    assert 0 < small.fidelity.kl < large.fidelity.kl
    again = drift(made, circuit, windows, noise=BootstrapNoise(sigma=1e-3), seed=3)
    assert again == large
    assert len(large.fidelity.kl_by_position) == 8
    assert large.as_json()["collapsed_by_position"] == list(large.collapsed_by_position)


def test_destroyed_runs_are_counted_as_collapsed(made: Plan) -> None:
    circuit = tiny_circuit()
    found = drift(made, circuit, sample_windows(circuit, 3, 9), noise=BootstrapNoise(sigma=30.0))
    assert found.fidelity.collapsed == 3
    assert max(found.collapsed_by_position) == 1.0


def test_windows_are_tokens_of_the_circuit_and_repeat(made: Plan) -> None:
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 5, 17, seed=2)
    assert windows.shape == (5, 17)
    assert windows.min() >= 0
    assert windows.max() < 64
    assert np.array_equal(windows, sample_windows(circuit, 5, 17, seed=2))
    with pytest.raises(ConfigError, match="does not fit a context"):
        sample_windows(circuit, 1, 18)
    with pytest.raises(ConfigError, match="positions \\+ 1"):
        drift(made, circuit, windows[0], noise=BootstrapNoise())


def test_quarters_show_where_a_curve_rises(made: Plan) -> None:
    circuit = tiny_circuit()
    found = drift(made, circuit, sample_windows(circuit, 2, 9), noise=BootstrapNoise(sigma=1e-4))
    curve = tuple(1e-3 * 10**k for k in range(8))
    moved = replace(found, fidelity=replace(found.fidelity, kl_by_position=curve))
    assert moved.quarters() == pytest.approx([5.5e-3, 5.5e-1, 5.5e1, 5.5e3])
    gone = replace(found, fidelity=replace(found.fidelity, kl_by_position=(float("nan"),) * 8))
    assert all(np.isnan(q) for q in gone.quarters())


def test_a_measured_table_is_injected_by_size_and_period(made: Plan) -> None:
    """A bias on numbers that fill all slots, as a real refresh has it, reaches the logits; one sigma misses it."""
    circuit = tiny_circuit()
    windows = sample_windows(circuit, 4, 9, seed=1)

    def table(bias: float) -> NoiseTable:
        sizes = {1.0: 1e-7, 16.0: 1.6e-6}
        periods = {1: PeriodNoise(1e-7, bias), 64: PeriodNoise(1e-7, 0.0)}
        return NoiseTable(
            name="made up", engine="clear", params=made.params.name, hardware="none", samples=1,
            sigma=sizes, constant=sizes, largest=sizes, periods=periods,
        )  # fmt: skip

    straight, bent = (drift(made, circuit, windows, noise=table(b).noise(), sigma=1e-7) for b in (0.0, -1e-3))
    plain = drift(made, circuit, windows, noise=BootstrapNoise(sigma=1e-7))
    assert straight.fidelity.kl < 100 * plain.fidelity.kl
    assert bent.fidelity.kl > 100 * straight.fidelity.kl
    with pytest.raises(ConfigError, match="pass sigma"):
        drift(made, circuit, windows, noise=table(0.0).noise())


@pytest.mark.slow
def test_the_default_model_drifts_calibrated_and_stays_flat_after_heat() -> None:
    """The paper's picture, on the embedded circuits: 16 windows of 128 positions, noise at every bootstrap of the plan.

    Flat is no rise from the first quarter of the positions to the last; drifting is a rise by half or more.
    """
    circuits = {kind: Circuit.load(default_circuit(kind)) for kind in ("heat", "calibrated")}
    params = preset("insecure-native-12")
    windows = sample_windows(circuits["heat"], 16, 129, seed=0)
    plans = {kind: plan(c, params, programs=("logits",)) for kind, c in circuits.items()}
    found = {
        (kind, sigma): drift(plans[kind], circuits[kind], windows, noise=BootstrapNoise(sigma=sigma))
        for kind in circuits
        for sigma in (1e-5, 1.7e-4)
    }
    heat, calibrated = (found[kind, 1e-5].quarters() for kind in ("heat", "calibrated"))
    assert heat[3] <= heat[0]
    assert calibrated[3] >= 1.5 * calibrated[0]
    assert calibrated[3] > 5 * heat[3]
    loud, lost = found["heat", 1.7e-4], found["calibrated", 1.7e-4]  # the paper's own noise
    assert loud.quarters()[3] <= loud.quarters()[0]
    assert loud.fidelity.collapsed == 0
    assert lost.fidelity.collapsed > 8
