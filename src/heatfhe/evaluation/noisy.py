# SPDX-License-Identifier: Apache-2.0
"""A circuit under injected refresh noise: what it costs in fidelity before any plan or ciphertext exists."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit, Tap
from heatfhe.evaluation.fidelity import Fidelity, fidelity
from heatfhe.stages import solved


def noise_tap(names: Set[str], sigma: float, rng: np.random.Generator) -> Tap:
    """A tap that adds Gaussian noise of standard deviation sigma to the named values (``stages.solved`` has all)."""

    def tap(name: str, value: NDArray[np.float64]) -> NDArray[np.float64]:
        return value + sigma * rng.standard_normal(value.shape) if name in names else value

    return tap


def under_noise(
    circuit: Circuit, windows: NDArray[np.int64], sigma: float, *, seed: int = 0, batch: int = 8
) -> Fidelity:
    """Teacher-forced logits of windows (W, P + 1) with noise at every site, against the circuit's own clear ones."""
    rng = np.random.default_rng(seed)
    tap = noise_tap(solved(circuit.stages), sigma, rng)
    clear, run = [], []
    for start in range(0, len(windows), batch):
        tokens = windows[start : start + batch, :-1]
        with np.errstate(over="ignore", invalid="ignore"):
            clear.append(circuit.run(tokens))
            run.append(circuit.run(tokens, tap=tap) if sigma else clear[-1])
    largest = circuit.calibration.magnitudes.get("logits", float(np.abs(np.concatenate(clear)).max()))
    return fidelity(np.concatenate(clear), np.concatenate(run), windows[:, 1:], largest=largest)
