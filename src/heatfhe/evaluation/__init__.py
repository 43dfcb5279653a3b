# SPDX-License-Identifier: Apache-2.0
"""Evaluation: perplexity, fidelity, collapse and drift of circuits, clear or encrypted."""

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

__all__ = [
    "Fidelity",
    "cross_entropy",
    "diverged",
    "fidelity",
    "kl_divergence",
    "log_softmax",
    "noise_tap",
    "perplexity",
    "under_noise",
]
