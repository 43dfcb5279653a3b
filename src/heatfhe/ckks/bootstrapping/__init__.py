# SPDX-License-Identifier: Apache-2.0
"""Bootstrapping: raise the modulus, coefficients to slots, remove the overflow, with SlotsToCoeffs last or first."""

from __future__ import annotations

from typing import Union

from heatfhe.ckks.bootstrapping.spec import BootstrapSpec, check_period
from heatfhe.ckks.bootstrapping.stc_first import StcFirst
from heatfhe.ckks.bootstrapping.stc_last import StcLast
from heatfhe.ckks.evaluator import Evaluator

__all__ = ["BootstrapSpec", "Bootstrapper", "StcFirst", "StcLast", "check_period", "make_bootstrapper"]

Bootstrapper = Union[StcFirst, StcLast]


def make_bootstrapper(evaluator: Evaluator, spec: BootstrapSpec) -> Bootstrapper:
    """The bootstrapper of a recipe."""
    return StcFirst(evaluator, spec) if spec.stc_first else StcLast(evaluator, spec)
