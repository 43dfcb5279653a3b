# SPDX-License-Identifier: Apache-2.0
"""Halting: learned distributions over counts, their prior, the back-off of its target, and expected solvers. torch."""

from heatfhe.halting.backoff import BackOff, Target
from heatfhe.halting.distribution import GAMMA, log_probabilities, mode, probabilities, ramp
from heatfhe.halting.prior import kl, log_prior
from heatfhe.halting.solvers import (
    expected_divide,
    expected_goldschmidt,
    expected_newton,
    expected_reciprocal,
    gpu_kernels,
    shared,
)
from heatfhe.halting.table import HaltingTable

__all__ = [
    "GAMMA",
    "BackOff",
    "HaltingTable",
    "Target",
    "expected_divide",
    "expected_goldschmidt",
    "expected_newton",
    "expected_reciprocal",
    "gpu_kernels",
    "kl",
    "log_prior",
    "log_probabilities",
    "mode",
    "probabilities",
    "ramp",
    "shared",
]
