# SPDX-License-Identifier: Apache-2.0
"""Evaluation: perplexity, fidelity, collapse and drift of circuits, clear or encrypted."""

from heatfhe.evaluation.by_value import ByValue, RowError, ValueDrift, drift_by_value
from heatfhe.evaluation.compare import HEADERS as COMPARISON_HEADERS
from heatfhe.evaluation.compare import Row as ComparisonRow
from heatfhe.evaluation.compare import markdown as comparison_markdown
from heatfhe.evaluation.compare import measure as compare_circuit
from heatfhe.evaluation.compare import plaintext_row
from heatfhe.evaluation.compare import summary as comparison_summary
from heatfhe.evaluation.compare import table_row as comparison_row
from heatfhe.evaluation.drift import SEEDS as DRIFT_SEEDS
from heatfhe.evaluation.drift import Drift, drift, sample_windows
from heatfhe.evaluation.encrypted import Endpoint, Evaluation, FreeRun, evaluate, free_running
from heatfhe.evaluation.fidelity import (
    Fidelity,
    cross_entropy,
    diverged,
    fidelity,
    kl_divergence,
    log_softmax,
    perplexity,
)
from heatfhe.evaluation.noisy import noise_tap, under_noise
from heatfhe.evaluation.stress import HEADERS as STRESS_HEADERS
from heatfhe.evaluation.stress import Stress, stress_circuit, stress_prepared, stress_rows, text_rows
from heatfhe.evaluation.values import Refreshed, chosen_values, refreshed_values

__all__ = [
    "COMPARISON_HEADERS",
    "DRIFT_SEEDS",
    "STRESS_HEADERS",
    "ByValue",
    "ComparisonRow",
    "Drift",
    "Endpoint",
    "Evaluation",
    "Fidelity",
    "FreeRun",
    "Refreshed",
    "RowError",
    "Stress",
    "ValueDrift",
    "chosen_values",
    "compare_circuit",
    "comparison_markdown",
    "comparison_row",
    "comparison_summary",
    "cross_entropy",
    "diverged",
    "drift",
    "drift_by_value",
    "evaluate",
    "fidelity",
    "free_running",
    "kl_divergence",
    "log_softmax",
    "noise_tap",
    "perplexity",
    "plaintext_row",
    "refreshed_values",
    "sample_windows",
    "stress_circuit",
    "stress_prepared",
    "stress_rows",
    "text_rows",
    "under_noise",
]
