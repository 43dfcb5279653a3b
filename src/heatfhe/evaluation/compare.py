# SPDX-License-Identifier: Apache-2.0
"""One row per way to a circuit: iterations, levels, bootstraps, and quality in plaintext and under noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.ckks.params import Params
from heatfhe.engine import BootstrapNoise
from heatfhe.evaluation.drift import drift
from heatfhe.evaluation.noisy import under_noise
from heatfhe.planning import plan
from heatfhe.records import FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One circuit measured.

    ``levels`` are those its solvers spend. ``bootstraps`` are those of one token up to its logits, and the noise
    entered at each of them; None where no plan was asked for, and the noise entered at every site's input and output.
    """

    name: str
    iterations: dict[str, int]
    levels: int
    perplexity: float
    noisy_perplexity: float
    kl: float
    top1: float
    collapsed: int
    windows: int
    bootstraps: int | None = None

    @property
    def total(self) -> int:
        """Iterations per forward."""
        return sum(self.iterations.values())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form; a number that does not exist is null."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in plain.items()}


HEADERS = (
    *("circuit", "it/fwd"),
    *(f"{family.split('_')[0][:4]}-{FAMILIES[family].suffix[:6]}" for family in FAMILIES),
    *("levels", "bts", "ppl", "ppl noisy", "KL", "top-1 %", "collapsed"),
)


def solver_levels(iterations: dict[str, int]) -> int:
    """Levels the iterations spend: one per Goldschmidt step, two per Newton step."""
    return sum(FAMILIES[family].levels * count for family, count in iterations.items())


def measure(
    name: str,
    circuit: Circuit,
    windows: NDArray[np.int64],
    sigma: float,
    *,
    seed: int = 0,
    params: Params | None = None,
) -> Row:
    """Measure a circuit on held-out windows (W, positions + 1), clear and with noise of standard deviation sigma.

    With ``params`` the circuit is planned and the noise enters at every bootstrap of the plan, in every slot.
    """
    if params is None:
        found, bootstraps = under_noise(circuit, windows, sigma, seed=seed), None
    else:
        made = plan(circuit, params, programs=("logits",))
        drifted = drift(made, circuit, windows, noise=BootstrapNoise(sigma=sigma), seed=seed)
        found, bootstraps = drifted.fidelity, drifted.bootstraps
    iterations = circuit.calibration.iterations()
    return Row(
        name=name,
        iterations=iterations,
        levels=solver_levels(iterations),
        perplexity=found.clear_perplexity,
        noisy_perplexity=found.perplexity,
        kl=found.kl,
        top1=found.top1,
        collapsed=found.collapsed,
        windows=found.windows,
        bootstraps=bootstraps,
    )


def table_row(row: Row) -> tuple[Any, ...]:
    """A row as the table prints it."""
    return (
        *(row.name, row.total, *row.iterations.values(), row.levels, "-" if row.bootstraps is None else row.bootstraps),
        *(f"{row.perplexity:.3f}", f"{row.noisy_perplexity:.3f}", f"{row.kl:.2e}"),
        *(f"{100 * row.top1:.1f}", f"{row.collapsed}/{row.windows}"),
    )
