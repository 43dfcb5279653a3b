# SPDX-License-Identifier: Apache-2.0
"""Drift: a plan's own bootstraps made noisy on the clear engine, and what that does to fidelity along a sequence.

Shapes: W windows, P positions. All windows run as one batch; the cache carries every error on to later positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Cache, Circuit, embed, forward
from heatfhe.engine import BootstrapNoise, ClearEngine, Noise, run
from heatfhe.errors import ConfigError
from heatfhe.evaluation.fidelity import Fidelity, diverged, fidelity, log_softmax
from heatfhe.planning import Plan, ProgramName
from heatfhe.progress import SILENT, Reporter

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Fidelity of one plan under noise at each of its bootstraps.

    ``collapsed_by_position`` is the share of windows that have diverged at each position; ``bootstraps`` how many one
    token runs; ``sigma`` the noise on one slot of a value of size one.
    """

    name: str
    bootstraps: int
    sigma: float
    seed: int
    fidelity: Fidelity
    collapsed_by_position: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        own = {k: getattr(self, k) for k in ("name", "bootstraps", "sigma", "seed")}
        return {
            **own,
            "fidelity": self.fidelity.as_json(),
            "collapsed_by_position": list(self.collapsed_by_position),
        }

    def quarters(self) -> tuple[float, ...]:
        """Median KL over each quarter of the positions: flat, or drifting."""
        curve = np.array(self.fidelity.kl_by_position)
        parts = [part[np.isfinite(part)] for part in np.array_split(curve, 4)]
        return tuple(float(np.median(part)) if part.size else float("nan") for part in parts)


def drift(
    plan: Plan,
    circuit: Circuit,
    windows: Tokens,
    *,
    noise: Noise,
    sigma: float | None = None,
    seed: int = 0,
    reporter: Reporter = SILENT,
) -> Drift:
    """Teacher-forced logits of windows (W, P + 1), noise at every bootstrap, against the circuit's own clear ones.

    ``noise`` is a BootstrapNoise, or what a table measured on a real engine gives; ``sigma`` is kept for show, and
    needed for the latter.
    """
    if sigma is None:
        if not isinstance(noise, BootstrapNoise):
            raise ConfigError("measured noise has no one standard deviation: pass sigma, the one to show")
        sigma = noise.sigma
    if windows.ndim != 2 or windows.shape[1] < 2:
        raise ConfigError(f"windows are (count, positions + 1) token ids, got {windows.shape}")
    tokens, targets = windows[:, :-1], windows[:, 1:]
    if tokens.shape[1] > plan.context:
        raise ConfigError(f"windows of {tokens.shape[1]} positions do not fit the plan's cache of {plan.context}")
    clear = circuit.run(tokens)
    engine = ClearEngine(plan.params, noise=noise, rng=np.random.default_rng(seed), strict=False)
    rows = (plan.packing.pack_residual(circuit.folded.token[column]) for column in tokens.T)
    inputs = ([engine.value(row)] for row in rows)
    found = []
    reporter.start(circuit.name, tokens.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        for position, logits in enumerate(run(plan, circuit, engine, inputs, program=ProgramName.LOGITS)):
            found.append(plan.packing.unpack_vocabulary([v.slots for v in logits]))
            reporter.advance(circuit.name, position=position)
    reporter.done(circuit.name)
    largest = circuit.calibration.magnitudes.get("logits", float(np.abs(clear).max()))
    decoded = np.stack(found, axis=1)
    return Drift(
        name=circuit.name,
        bootstraps=len(plan.program(ProgramName.LOGITS).bootstraps()),
        sigma=sigma,
        seed=seed,
        fidelity=fidelity(clear, decoded, targets, largest=largest),
        collapsed_by_position=tuple(float(v) for v in diverged(decoded, largest).mean(axis=0)),
    )


def sample_windows(circuit: Circuit, count: int, length: int, *, seed: int = 0, temperature: float = 1.0) -> Tokens:
    """Windows (count, length) drawn from the circuit itself, each from a random first token: no text is needed."""
    if not (count >= 1 and 1 <= length <= circuit.shape.context + 1):
        raise ConfigError(f"length {length} does not fit a context of {circuit.shape.context}, one token over allowed")
    rng = np.random.default_rng(seed)
    out = rng.integers(0, circuit.shape.vocabulary, size=(count, 1))
    cache = Cache()
    for position in range(length - 1):
        logits = forward(circuit, embed(circuit, out[:, -1:], position), cache)[:, -1]
        chances = np.exp(log_softmax(logits / temperature))
        edges = np.cumsum(chances, axis=-1)
        drawn = (rng.random((count, 1)) * edges[:, -1:] > edges).sum(axis=-1, keepdims=True)
        out = np.concatenate([out, np.minimum(drawn, circuit.shape.vocabulary - 1)], axis=1)
    return np.asarray(out, dtype=np.int64)
