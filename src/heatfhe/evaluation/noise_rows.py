# SPDX-License-Identifier: Apache-2.0
"""One conversation on the clear engine at several strengths of refresh noise at once, a row of its values for each.

Rows: R strengths, the first usually 0, so that the others have something to be compared with at the same plaintexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, run
from heatfhe.errors import ConfigError
from heatfhe.planning import Plan, ProgramName

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowNoise:
    """Gaussian noise of a bootstrap, a standard deviation for each row: of one slot, or of its bound if that is larger.

    So the native engine behaves: a value above one is halved until it is not, one below is refreshed as it is.
    """

    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sigmas or min(self.sigmas) < 0:
            raise ConfigError("a row's noise is a standard deviation of zero or more, one for each row")

    def __call__(self, values: Real, bound: float, rng: np.random.Generator) -> Real:
        if values.ndim != 2 or len(values) != len(self.sigmas):
            raise ConfigError(f"values of shape {values.shape} do not have the {len(self.sigmas)} rows of this noise")
        return np.array(self.sigmas)[:, None] * max(1.0, bound) * rng.standard_normal(values.shape)


@dataclass(frozen=True, slots=True)
class FreeRows:
    """Tokens chosen in each row (R, count), and how much of a word the largest entry of its one-hot row is."""

    tokens: NDArray[np.int64]
    leaders: Real


def noisy_engine(plan: Plan, sigmas: Sequence[float], *, seed: int = 0, cache_bytes: int = 1 << 30) -> ClearEngine:
    """The clear engine with these rows; it lets values leave their bounds, as an encrypted run does."""
    noise, rng = RowNoise(tuple(sigmas)), np.random.default_rng(seed)
    return ClearEngine(plan.params, noise=noise, rng=rng, strict=False, cache_bytes=cache_bytes)


def logit_rows(plan: Plan, circuit: Circuit, engine: ClearEngine, tokens: Sequence[int]) -> list[Real]:
    """Logits (R, V) after each of the tokens."""
    inputs = ([engine.value(_rows(plan, circuit, engine, token))] for token in tokens)
    answers = run(plan, circuit, engine, inputs, program=ProgramName.LOGITS)
    return [plan.packing.unpack_vocabulary([p.slots for p in parts]) for parts in answers]


def free_rows(plan: Plan, circuit: Circuit, engine: ClearEngine, prompt: Sequence[int], count: int) -> FreeRows:
    """Tokens generated after a prompt, each row fed back its own; the argmax runs as planned."""
    given = [[engine.value(_rows(plan, circuit, engine, t))] for t in prompt]
    tokens, leaders = [], []
    for parts in run(plan, circuit, engine, given, count=count):
        rows = plan.packing.unpack_vocabulary([p.slots for p in parts])
        tokens.append(rows.argmax(axis=-1))
        leaders.append(rows.max(axis=-1))
    return FreeRows(np.stack(tokens, axis=-1), np.stack(leaders, axis=-1))


def _rows(plan: Plan, circuit: Circuit, engine: ClearEngine, token: int) -> Real:
    if not isinstance(engine.noise, RowNoise):
        raise ConfigError("the engine has no rows of noise: make it with noisy_engine")
    return np.tile(plan.packing.pack_residual(circuit.folded.token[token]), (len(engine.noise.sigmas), 1))
