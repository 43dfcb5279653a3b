# SPDX-License-Identifier: Apache-2.0
"""The factors by which a plan carries what goes into approximations, and comes out of them.

A refresh adds the same noise whatever it refreshes, so that noise of sigma on a value carried times f is sigma / f on
the value itself. Training under noise is given these factors by its caller: it knows no plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heatfhe.ckks import Params
from heatfhe.planning.scales import scales
from heatfhe.records import Calibration, SoftmaxCalibration
from heatfhe.stages import Activation, Attention, Norm, Shape, Stage

Factor = tuple[float, float]
"""(f, power): a value of a row of length n is carried times f * n^power."""


@dataclass(frozen=True, slots=True)
class Model:
    """What scales look at of a circuit."""

    stages: Sequence[Stage]
    shape: Shape
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Carried:
    """The factors under a calibration, by the names that ``stages.solved`` has, in plans for these parameters."""

    stages: Sequence[Stage]
    shape: Shape
    params: Params

    @property
    def name(self) -> str:
        """The parameter set's."""
        return self.params.name

    def __call__(self, calibration: Calibration) -> Mapping[str, Factor]:
        found = scales(Model(self.stages, self.shape, calibration), self.params.reach)
        out: dict[str, Factor] = {}
        for stage in self.stages:
            if isinstance(stage, Norm):
                fit = calibration.norms[stage.name].fit
                out[f"{stage.name}/z"] = (found.norms[stage.name].square, 0.0)
                out[f"{stage.name}/root"] = ((fit.lo * fit.hi) ** 0.25 / self.shape.width**0.5, 0.0)
            elif isinstance(stage, Attention):
                rows = _rows(calibration.softmaxes[stage.name], found.aim, self.shape.context)
                out |= {f"{stage.name}/{part}": factor for part, factor in rows.items()}
            elif isinstance(stage, Activation):
                out[f"{stage.name}/in"] = (1.0 / calibration.activations[stage.name].fit.bound, 0.0)
        return out


def _rows(c: SoftmaxCalibration, aim: float, context: int) -> dict[str, Factor]:
    """Of a softmax, as ``programs.attention`` carries it; the reciprocal is the last one: what others add cancels."""
    last, least = c.met(1)
    gain = (last.hi / aim) ** 0.5  # times the root of the row's length
    back = max(1, math.ceil(gain * context**0.5 / least / aim))
    return {
        "scores": (2.0 / c.fit.width, 0.0),
        "sum": (aim / c.fit.init.hi, -1.0),
        "sum2": (aim / last.hi, -1.0),
        "inverse": (gain / back, 0.5),
    }
