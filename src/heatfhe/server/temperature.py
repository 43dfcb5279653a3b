# SPDX-License-Identifier: Apache-2.0
"""Up to which temperature a circuit's argmax schedule holds: measured on the model's own logits plus noise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import ArgmaxSchedule
from heatfhe.circuit import Cache, Circuit, embed, forward

Rows = NDArray[np.float64]
TEMPERATURES = (2.0, 1.5, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2)
LARGEST = 1.5  # what a plan allows an entry to reach between rounds
_TEXTS, _TOKENS, _DRAWS = 4, 12, 32


def largest_temperature(circuit: Circuit, *, cut: float, noise_bound: float, seed: int = 0) -> float:
    """The highest of TEMPERATURES at which every sampled row stays inside the schedule's domains; 0 if none does.

    Rows are the logits of texts that the circuit samples from itself, each with many draws of noise: temperature times
    Gumbel, cut at ``cut``. A plan allows the noise a magnitude of ``noise_bound``.

    Domain  a circuit with an argmax schedule.
    Bound   measured on 4 texts of 12 tokens and 32 draws each: all variances in their rounds' domains, all entries
            within 1.5, the last sum in its domain. Rarer rows may leave them; the client then sees an implausible row.
    Depth   0: computed once, in the clear, from public things.
    Source  ours.
    """
    if circuit.calibration.argmax is None:
        return 0.0
    rng = np.random.default_rng(seed)
    logits = _own_logits(circuit, rng)
    for temperature in TEMPERATURES:
        if temperature * cut > noise_bound:
            continue
        noise = np.clip(rng.gumbel(size=(_DRAWS, *logits.shape)), -cut, cut) * temperature
        if holds(circuit.calibration.argmax.schedule, (logits + noise).reshape(-1, logits.shape[-1])):
            return temperature
    return 0.0


def holds(schedule: ArgmaxSchedule, rows: Rows) -> bool:
    """Whether rows of logits stay inside every domain of an argmax schedule."""
    x = rows
    for r in schedule.rounds:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        if not (r.lo <= float(variance.min()) and float(variance.max()) <= r.hi):
            return False
        x = (centred / (r.divisor * np.sqrt(variance)) + r.shift) ** r.power
        if float(np.abs(x).max()) > LARGEST:
            return False
    if schedule.final is None:
        return True
    total = x.sum(axis=-1)
    return bool(schedule.final.lo <= total.min() and total.max() <= schedule.final.hi)


def _own_logits(circuit: Circuit, rng: np.random.Generator) -> Rows:
    """Rows of logits along texts sampled at temperature one."""
    out = []
    for _ in range(_TEXTS):
        cache, token = Cache(), int(rng.integers(circuit.shape.vocabulary))
        for position in range(min(_TOKENS, circuit.shape.context)):
            row = forward(circuit, embed(circuit, np.array([token]), position), cache)[-1]
            out.append(row)
            chances = np.exp(row - row.max())
            token = int(rng.choice(chances.size, p=chances / chances.sum()))
    rows = np.stack(out)
    return rows if math.isfinite(float(np.abs(rows).max())) else np.full_like(rows, np.inf)
