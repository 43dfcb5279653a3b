# SPDX-License-Identifier: Apache-2.0
"""One row per way to a circuit: iterations, levels, bootstraps, and quality in plaintext and under noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.evaluation.noisy import under_noise
from heatfhe.records import FAMILIES

# The planner's price of a circuit, passed in: bootstraps per generated token.
Bootstraps = Callable[[Circuit], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One circuit measured. ``levels`` are those its solvers spend; ``bootstraps`` is None where no plan was asked for."""

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
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Iterations per forward."""
        return sum(self.iterations.values())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in plain.items()}


HEADERS = ("circuit", "it/fwd", *(f.split("_")[0][:4] + "-" + FAMILIES[f].suffix[:6] for f in FAMILIES), "levels", "bts", "ppl", "ppl noisy", "KL", "top-1 %", "collapsed")


def solver_levels(iterations: dict[str, int]) -> int:
    """Levels the iterations spend: one per Goldschmidt step, two per Newton step."""
    return sum(FAMILIES[family].levels * count for family, count in iterations.items())


def measure(
    name: str, circuit: Circuit, windows: NDArray[np.int64], sigma: float, *, seed: int = 0, bootstraps: Bootstraps | None = None
) -> Row:
    """Measure a circuit on held-out windows (W, context + 1), clear and with noise sigma at every site."""
    found = under_noise(circuit, windows, sigma, seed=seed)
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
        bootstraps=None if bootstraps is None else bootstraps(circuit),
    )


def table_row(row: Row) -> tuple[Any, ...]:
    """A row as the table prints it."""
    return (
        row.name, row.total, *row.iterations.values(), row.levels, "-" if row.bootstraps is None else row.bootstraps,
        f"{row.perplexity:.3f}", f"{row.noisy_perplexity:.3f}", f"{row.kl:.2e}", f"{100 * row.top1:.1f}", f"{row.collapsed}/{row.windows}",
    )  # fmt: skip
