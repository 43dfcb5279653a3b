# SPDX-License-Identifier: Apache-2.0
"""A row of the comparison: counts by family, levels, bootstraps of a price given, and numbers that survive JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise
from heatfhe.evaluation import under_noise
from heatfhe.evaluation.compare import HEADERS, Row, markdown, measure, plaintext_row, solver_levels, table_row
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
    found = drift(made, CIRCUIT, WINDOWS, noise=BootstrapNoise(sigma=1e-5), seeds=(5,))
    assert row.bootstraps == len(made.program("logits").bootstraps()) > 0
    assert row.transformer_seconds == made.program("logits").predicted_seconds
    whole = plan(CIRCUIT, params, programs=("generate",)).program("generate")
    assert (row.token_bootstraps, row.token_seconds) == (len(whole.bootstraps()), whole.predicted_seconds)
    assert row.token_bootstraps > row.bootstraps
    assert (row.kl, row.top1) == (found.fidelity.kl, found.fidelity.top1)
    assert 0 < row.kl != measure("tiny", CIRCUIT, WINDOWS, 1e-5, seed=5).kl


def test_rows_fit_their_table_and_json() -> None:
    row = measure("tiny", CIRCUIT, WINDOWS, 1e-4)
    shown = table_row(row)
    assert len(shown) == len(HEADERS)
    assert shown[HEADERS.index("bts")] == shown[HEADERS.index("stray")] == "-"
    assert shown[HEADERS.index("it/fwd")] == row.total
    assert Row.from_json(json.loads(json.dumps(row.as_json(), allow_nan=False))) == row


def test_odd_windows_and_the_parent_have_their_place() -> None:
    row = measure("tiny", CIRCUIT, WINDOWS, 1e-4, stressed=2)
    assert (row.stressed, table_row(row)[HEADERS.index("stray")]) == (10, f"{row.stray}/10")  # five kinds of two
    parent = plaintext_row("plaintext", 3.0, 4)
    assert Row.from_json(json.loads(json.dumps(parent.as_json(), allow_nan=False))).perplexity == 3.0
    assert table_row(parent)[HEADERS.index("top-1 %")] == "-"


def test_a_collapsed_circuit_has_a_row_too() -> None:
    row = measure("wild", CIRCUIT, WINDOWS, 1e3)
    assert row.collapsed == row.windows == 3
    assert row.as_json()["noisy_perplexity"] is None
    assert table_row(row)[HEADERS.index("ppl noisy")] == "-"
    assert (row.clear_lost, row.lost, row.positions) == (0, 24, 24)  # three windows of eight positions
    assert table_row(row)[HEADERS.index("lost")] == "0, 24/24"
    old = {k: v for k, v in row.as_json().items() if k not in ("positions", "clear_lost", "lost")}
    assert table_row(Row.from_json(old))[HEADERS.index("lost")] == "-"  # a row that was kept before they were counted


def test_fewer_iterations_show() -> None:
    shallow: Circuit = replace(
        CIRCUIT, calibration=CIRCUIT.calibration.with_counts(dict.fromkeys(CIRCUIT.calibration.counts(), 1))
    )
    deep, low = (measure(n, c, WINDOWS, 1e-5) for n, c in (("deep", CIRCUIT), ("low", shallow)))
    assert low.total < deep.total
    assert low.levels < deep.levels


def test_the_summary_is_over_seeds_with_ratios_to_calibration_and_control() -> None:
    def made(name: str, total: int, perplexity: float, **more: Any) -> Row:
        iterations = {"norm_goldschmidt": total, "norm_newton": 0, "softmax_init": 0, "softmax_refine": 0}
        facts: dict[str, Any] = {"levels": total, "noisy_perplexity": perplexity, "kl": 0.0, "top1": 1.0}
        return Row(name=name, iterations=iterations, perplexity=perplexity, collapsed=1, windows=4, **{**facts, **more})

    rows = [
        made("calibrated 1e-04 plain", 100, 3.0),
        *(made(f"heat plain seed {i}", 40 + i, 3.3 + i, noisy_perplexity=math.nan) for i in range(2)),
        *(made(f"control plain seed {i}", 110, 3.0 + i) for i in range(2)),
    ]
    head, rule, calibrated, heat, control = (line.split(" | ") for line in markdown(rows).splitlines())
    at = head.index
    assert len(calibrated) == len(heat) == len(control) == len(head) == len("".join(rule).split("|")) - 2
    assert heat[at("iterations")] == "40.5 (40 to 41)"
    assert heat[at("fewer than calibrated 1e-4, plain")] == "2.47 (2.439 to 2.5)"
    assert heat[at("to control, %")] == "8.75 (7.5 to 10)"  # each seed against its own control
    assert calibrated[at("to control, %")] == "-14.29"
    assert heat[at("under noise")] == "-"
    distilled = [made(f"control-distilled plain seed {i}", 105, 2.0 + i) for i in range(2)]
    head, _, _, heat, *_ = (line.split(" | ") for line in markdown([*rows, *distilled]).splitlines())
    assert heat[head.index("to control-distilled, %")] == "54.17 (43.33 to 65)"
    assert heat[-2] == "2/8"
    counted = [replace(row, positions=8, clear_lost=i, lost=2) for i, row in enumerate(rows)]
    assert [line.rpartition(" | ")[2].strip(" |") for line in markdown(counted).splitlines()[2:]] == [
        "0, 2/8", "3, 4/16", "7, 4/16",
    ]  # fmt: skip
