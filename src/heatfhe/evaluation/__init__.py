# SPDX-License-Identifier: Apache-2.0
"""Evaluation: perplexity, fidelity, collapse and drift of circuits, clear or encrypted."""

from heatfhe.evaluation.compare import HEADERS as COMPARISON_HEADERS
from heatfhe.evaluation.compare import Row as ComparisonRow
from heatfhe.evaluation.compare import markdown as comparison_markdown
from heatfhe.evaluation.compare import measure as compare_circuit
from heatfhe.evaluation.compare import table_row as comparison_row
from heatfhe.evaluation.drift import SEEDS as DRIFT_SEEDS
from heatfhe.evaluation.drift import Drift, drift, sample_windows
from heatfhe.evaluation.encrypted import (
    Endpoint,
    Evaluation,
    FreeRun,
    decode_windows,
    evaluate,
    free_running,
    judge,
    unfinished,
)
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
from heatfhe.evaluation.spread import spread
from heatfhe.evaluation.stress import HEADERS as STRESS_HEADERS
from heatfhe.evaluation.stress import Stress, stress_circuit, stress_prepared, stress_rows, text_rows

__all__ = [
    "COMPARISON_HEADERS",
    "DRIFT_SEEDS",
    "STRESS_HEADERS",
    "ComparisonRow",
    "Drift",
    "Endpoint",
    "Evaluation",
    "Fidelity",
    "FreeRun",
    "Stress",
    "compare_circuit",
    "comparison_markdown",
    "comparison_row",
    "cross_entropy",
    "decode_windows",
    "diverged",
    "drift",
    "evaluate",
    "fidelity",
    "free_running",
    "judge",
    "kl_divergence",
    "log_softmax",
    "noise_tap",
    "perplexity",
    "sample_windows",
    "spread",
    "stress_circuit",
    "stress_prepared",
    "stress_rows",
    "text_rows",
    "under_noise",
    "unfinished",
]
