# SPDX-License-Identifier: Apache-2.0
"""A row of the comparison: counts by family, levels, bootstraps of a price given, and numbers that survive JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise
from heatfhe.evaluation import under_noise
from heatfhe.evaluation.compare import HEADERS, measure, solver_levels, table_row
from heatfhe.evaluation.drift import drift, sample_windows
from heatfhe.planning import plan
from heatfhe.planning.params import preset
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
WINDOWS = sample_windows(CIRCUIT, 3, 9, seed=1)


def test_a_row_says_what_the_circuit_is() -> None:
    row = measure("tiny", CIRCUIT, WINDOWS, 1e-4, seed=5)
    counts = CIRCUIT.calibration.counts()
    assert row.total == sum(counts.values())  # one refinement pass at delta_2 = 2
    newton = sum(n for name, n in counts.items() if name.endswith("/newton"))
    assert row.levels == solver_levels(row.iterations) == row.total + newton  # a Newton step spends two
    assert row.bootstraps is None
    found = under_noise(CIRCUIT, WINDOWS, 1e-4, seed=5)
    assert (row.kl, row.top1, row.collapsed, row.windows) == (found.kl, found.top1, found.collapsed, found.windows)
    assert (row.perplexity, row.noisy_perplexity) == (found.clear_perplexity, found.perplexity)


def test_with_params_the_noise_enters_at_the_plans_bootstraps() -> None:
    params = preset("insecure-openfhe-11")
    row = measure("tiny", CIRCUIT, WINDOWS, 1e-5, seed=5, params=params)
    made = plan(CIRCUIT, params, programs=("logits",))
    found = drift(made, CIRCUIT, WINDOWS, noise=BootstrapNoise(sigma=1e-5), seed=5)
    assert row.bootstraps == len(made.program("logits").bootstraps()) > 0
    assert (row.kl, row.top1) == (found.fidelity.kl, found.fidelity.top1)
    assert 0 < row.kl != measure("tiny", CIRCUIT, WINDOWS, 1e-5, seed=5).kl


def test_rows_fit_their_table_and_json() -> None:
    row = measure("tiny", CIRCUIT, WINDOWS, 1e-4)
    shown = table_row(row)
    assert len(shown) == len(HEADERS)
    assert shown[HEADERS.index("bts")] == "-"
    assert shown[HEADERS.index("it/fwd")] == row.total
    assert json.loads(json.dumps(row.as_json(), allow_nan=False))["iterations"] == row.iterations


def test_a_collapsed_circuit_has_a_row_too() -> None:
    row = measure("wild", CIRCUIT, WINDOWS, 1e3)
    assert row.collapsed == row.windows == 3
    assert row.as_json()["noisy_perplexity"] is None
    assert "nan" in table_row(row)


def test_fewer_iterations_show() -> None:
    shallow: Circuit = replace(
        CIRCUIT, calibration=CIRCUIT.calibration.with_counts(dict.fromkeys(CIRCUIT.calibration.counts(), 1))
    )
    deep, low = (measure(n, c, WINDOWS, 1e-5) for n, c in (("deep", CIRCUIT), ("low", shallow)))
    assert low.total < deep.total
    assert low.levels < deep.levels
