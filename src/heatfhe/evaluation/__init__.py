# SPDX-License-Identifier: Apache-2.0
"""Evaluation: perplexity, fidelity, collapse and drift of circuits, clear or encrypted."""

from typing import TYPE_CHECKING

from heatfhe.doors import lazy_names
from heatfhe.evaluation.by_value import ByValue, RowError, ValueDrift, drift_by_value
from heatfhe.evaluation.compare import HEADERS as COMPARISON_HEADERS
from heatfhe.evaluation.compare import Row as ComparisonRow
from heatfhe.evaluation.compare import markdown as comparison_markdown
from heatfhe.evaluation.compare import measure as compare_circuit
from heatfhe.evaluation.compare import plaintext_row
from heatfhe.evaluation.compare import summary as comparison_summary
from heatfhe.evaluation.compare import table_row as comparison_row
from heatfhe.evaluation.drift import SEEDS as DRIFT_SEEDS
from heatfhe.evaluation.drift import Drift, clear_logits, drift, sample_windows
from heatfhe.evaluation.encrypted import Endpoint, Evaluation, decode_windows, evaluate, judge, unfinished
from heatfhe.evaluation.fidelity import (
    Fidelity,
    cross_entropy,
    diverged,
    fidelity,
    kl_divergence,
    log_softmax,
    perplexity,
)
from heatfhe.evaluation.free import NEAR_TIE, FreeRun, FreeStep, free_running, free_runs
from heatfhe.evaluation.noisy import noise_tap, under_noise
from heatfhe.evaluation.scorers import (
    CircuitScorer,
    Likelihood,
    PlanScorer,
    PreparedScorer,
    Scorer,
    TextScore,
    likelihoods,
    text_score,
)
from heatfhe.evaluation.spread import spread
from heatfhe.evaluation.stress import HEADERS as STRESS_HEADERS
from heatfhe.evaluation.stress import (
    Stress,
    hard_of_circuit,
    hard_of_prepared,
    stress_circuit,
    stress_prepared,
    stress_rows,
    text_rows,
)
from heatfhe.evaluation.values import Refreshed, chosen_values, refreshed_values

# The harness is an extra: only for those who use it.
if TYPE_CHECKING:
    from heatfhe.evaluation.tasks import TaskModel
else:
    __getattr__ = lazy_names(__name__, {"TaskModel": "tasks.TaskModel"})

__all__ = [
    "COMPARISON_HEADERS",
    "DRIFT_SEEDS",
    "NEAR_TIE",
    "STRESS_HEADERS",
    "ByValue",
    "CircuitScorer",
    "ComparisonRow",
    "Drift",
    "Endpoint",
    "Evaluation",
    "Fidelity",
    "FreeRun",
    "FreeStep",
    "Likelihood",
    "PlanScorer",
    "PreparedScorer",
    "Refreshed",
    "RowError",
    "Scorer",
    "Stress",
    "TaskModel",
    "TextScore",
    "ValueDrift",
    "chosen_values",
    "clear_logits",
    "compare_circuit",
    "comparison_markdown",
    "comparison_row",
    "comparison_summary",
    "cross_entropy",
    "decode_windows",
    "diverged",
    "drift",
    "drift_by_value",
    "evaluate",
    "fidelity",
    "free_running",
    "free_runs",
    "hard_of_circuit",
    "hard_of_prepared",
    "judge",
    "kl_divergence",
    "likelihoods",
    "log_softmax",
    "noise_tap",
    "perplexity",
    "plaintext_row",
    "refreshed_values",
    "sample_windows",
    "spread",
    "stress_circuit",
    "stress_prepared",
    "stress_rows",
    "text_rows",
    "text_score",
    "under_noise",
    "unfinished",
]
