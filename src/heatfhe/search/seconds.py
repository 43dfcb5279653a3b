# SPDX-License-Identifier: Apache-2.0
"""Candidates priced by a plan: the seconds it predicts for a token, bootstraps and all."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.ckks import Params
from heatfhe.errors import PlanError
from heatfhe.planning import ProgramName, plan
from heatfhe.search.space import Counts, Space

PROGRAMS = (ProgramName.LOGITS,)


class PlanSeconds:
    """The price of candidates as predicted seconds of a token up to its logits, one plan each.

    An iteration costs a bootstrap or next to nothing, whichever it is at that place: levels do not show it. All plans
    take the MLP's variant that is best for the circuit itself. A candidate that has no plan is infinitely dear.
    """

    def __init__(self, circuit: Circuit, params: Params, *, context: int | None = None) -> None:
        self._circuit, self._params, self._context = circuit, params, context
        self._space = Space.of(circuit)
        self._variant = str(plan(circuit, params, programs=PROGRAMS, context=context).notes["mlp"])

    def __call__(self, counts: Counts) -> NDArray[np.float64]:
        """Seconds of candidates (n, sites)."""
        return np.array([self._seconds(row) for row in counts.tolist()])

    def _seconds(self, row: list[int]) -> float:
        made = self._circuit.with_counts(self._space.named(row))
        try:
            found = plan(made, self._params, programs=PROGRAMS, context=self._context, mlp=self._variant)
        except PlanError:
            return math.inf
        return float(found.program(PROGRAMS[0]).predicted_seconds)
