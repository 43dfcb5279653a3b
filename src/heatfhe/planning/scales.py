# SPDX-License-Identifier: Apache-2.0
"""The sizes values are carried at: constants that fold into plaintexts, so that magnitudes suit a bootstrap.

A value may be multiplied by an integer for free; to make it smaller, the factor must be folded into a plaintext that
multiplies it anyway. Everything here follows from the circuit's calibration and the reach of a bootstrap alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from heatfhe.approx import gumbel_bound
from heatfhe.errors import PlanError
from heatfhe.records import Calibration
from heatfhe.stages import Activation, Attention, Gate, Norm, Shape, Stage

MARGIN = 1.25  # over magnitudes observed on calibration data
FULL = 0.9  # of a reach that a value may fill
LOUD = 4.0  # times as large a tight stream is carried than a refresh takes its sum of squares
SUM_OF_SQUARES = 512.0  # a round's sum of squares may leave the aim this far: a spread of logits must stay visible


class Calibrated(Protocol):
    """A circuit, or what there is of it before its weights are final."""

    @property
    def stages(self) -> Sequence[Stage]: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def calibration(self) -> Calibration: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NormScale:
    """How one norm is computed: z carried times ``square``, the root with ``gain``, the result times ``result``.

    ``square_times`` and ``result_times`` are the free integers used on the way.
    """

    square: float
    square_times: int
    gain: float
    result: float
    result_times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Factors by which values are carried: a value named v is held as v * factor.

    ``values`` are those that attentions, activations and gates write, and those that gates multiply by.
    """

    aim: float
    residual: float
    norms: Mapping[str, NormScale]
    values: Mapping[str, float]
    logits: float


def magnitude(circuit: Calibrated, name: str) -> float:
    """Largest magnitude a named value may have: what calibration saw, and a margin."""
    found = circuit.calibration.magnitudes.get(name)
    if found is None:
        raise PlanError(f"{name}: the calibration holds no magnitude for it; calibrate the circuit again")
    return MARGIN * found


def noise_bound(circuit: Calibrated) -> float:
    """Largest noise that a sampling program adds to a logit: that of the temperature its argmax was calibrated for."""
    argmax, logits = circuit.calibration.argmax, magnitude(circuit, "logits")
    return max(logits, 0.0 if argmax is None else argmax.temperature * gumbel_bound(circuit.shape.vocabulary))


def faint_sums(circuit: Calibrated, noise: float) -> dict[str, float]:
    """Sums of softmax rows that can be smaller, beside the end of their domain, than what a refresh errs by.

    By site, the least such share. A sum is carried so that the end of its domain is at most one; where it may be no
    larger than the noise, its sign is chance, and a reciprocal of a negative number diverges.
    """
    found = {}
    for name, c in circuit.calibration.softmaxes.items():
        for part, number in (("init", 0), ("refine", 1)) if c.fit.passes else (("init", 0),):
            fit, least = c.met(number)
            if least / fit.hi < noise:
                found[f"{name}/{part}"] = least / fit.hi
    return found


def blurred_ties(circuit: Calibrated, noise: float) -> float:
    """How far, relative to the least variance that an argmax meets, a refresh of that variance errs: 0 without argmax.

    Each word's slot has a copy of the variance with an error of its own, unless a plan with a precision adds the copies
    up (``programs.vocabulary``), and the later powers multiply what differs between two words by about 200.
    """
    argmax = circuit.calibration.argmax
    return 0.0 if argmax is None else noise * max(r.hi / r.lo for r in argmax.schedule.rounds)


@lru_cache(maxsize=64)
def _aim(reach: float) -> float:
    """The size values are brought to: about one, larger where the reach is wide."""
    return 0.9 * max(1.0, reach / 16.0) if reach >= 1.0 else 0.9 * reach


def scales(circuit: Calibrated, reach: float, *, tight: bool = False, loud: float | None = None) -> Scales:
    """Every factor of a circuit's programs for bootstraps with this reach.

    The residual stream is carried so that the largest sum of its squares is aim, or, ``tight``, ``loud`` (LOUD if not
    given) times as large as if that sum filled the reach. It is a thirtieth of the sum's root in each of a thousand
    slots, and a projection adds the roundings of all copies of a slot to it: with 32 copies as much as a refresh does.
    A refresh takes it as it is; of the sums those of the widest norms are divided first, for a level.
    """
    aim, c = _aim(reach), circuit.calibration
    first = circuit.stages[0].writes
    norms = [s for s in circuit.stages if isinstance(s, Norm)]
    widest = max([c.norms[s.name].fit.hi for s in norms if s.reads != first] or [1.0])
    fill = (LOUD if loud is None else loud) ** 2 * FULL * reach if tight else aim
    residual = math.sqrt(fill / widest)
    logits = 1.0
    if c.argmax is not None:
        spread = circuit.shape.vocabulary * c.argmax.schedule.rounds[0].hi
        logits = min(aim / magnitude(circuit, "logits"), math.sqrt(SUM_OF_SQUARES * aim / spread))
    return Scales(
        aim=aim,
        residual=residual,
        norms={s.name: _norm(circuit, s, 1.0 if s.reads == first else residual, aim) for s in norms},
        values=_values(circuit, aim),
        logits=logits,
    )


def _values(circuit: Calibrated, aim: float) -> dict[str, float]:
    out: dict[str, float] = {}
    for stage in circuit.stages:
        if isinstance(stage, Attention):
            out[stage.writes] = aim / magnitude(circuit, stage.writes)
        elif isinstance(stage, Activation):
            out[stage.writes] = 1.0 / circuit.calibration.activations[stage.name].fit.bound
        elif isinstance(stage, Gate):
            out[stage.by] = aim / magnitude(circuit, stage.by)
            out[stage.writes] = out.get(stage.reads, 1.0) * out[stage.by]
    return out


def _norm(circuit: Calibrated, stage: Norm, carried: float, aim: float) -> NormScale:
    """The norm of a stream held as x * carried: z = times * sum (x carried)^2, y = gain / sqrt(z), x carried * y."""
    fit = circuit.calibration.norms[stage.name].fit
    times = max(1, math.floor(aim / (fit.hi * carried**2)))
    square = times * carried**2
    gain = (fit.lo * fit.hi) ** 0.25 * math.sqrt(square)  # the root ranges over [k^-1/4, k^1/4], k = hi / lo
    unit = gain / math.sqrt(times * circuit.shape.width)
    again = max(1, math.floor(aim / (unit * magnitude(circuit, stage.writes))))
    return NormScale(square=square, square_times=times, gain=gain, result=unit * again, result_times=again)
