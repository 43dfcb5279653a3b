# SPDX-License-Identifier: Apache-2.0
"""The OpenFHE engine's parameter sets; the planner, which lists them beside the others, holds the data."""

from __future__ import annotations

from heatfhe.planning.openfhe_sets import (
    PRESETS,
    bootstrap_budget,
    bootstrap_correction,
    make_params,
    openfhe_params,
    special_primes,
)

__all__ = [
    "PRESETS",
    "bootstrap_budget",
    "bootstrap_correction",
    "make_params",
    "openfhe_params",
    "special_primes",
]
