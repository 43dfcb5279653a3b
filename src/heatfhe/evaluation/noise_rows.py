# SPDX-License-Identifier: Apache-2.0
"""Conversations on the clear engine at several strengths of refresh noise at once, a row of its values for each.

Rows: R strengths, the first usually 0, so that the others have something to be compared with at the same plaintexts.
Texts: one, as a sequence of tokens, or W of equal length, (W, P), as one batch; results then have an axis W after R.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Union

import numpy as np
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Noise, OperationNoise, run
from heatfhe.errors import ConfigError
from heatfhe.planning import Plan, ProgramName

Real = NDArray[np.float64]
Texts = Union[Sequence[int], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class RowNoise:
    """Gaussian noise of a bootstrap, a standard deviation for each row: of one slot, or of its bound if that is larger.

    So the native engine behaves: a value above one is halved until it is not, one below is refreshed as it is.
    """

    reads: ClassVar[bool] = False
    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.sigmas or min(self.sigmas) < 0:
            raise ConfigError("a row's noise is a standard deviation of zero or more, one for each row")

    @property
    def rows(self) -> int:
        """A row for each."""
        return len(self.sigmas)

    def __call__(self, values: Real, bound: float, rng: np.random.Generator) -> Real:
        if values.ndim < 2 or len(values) != len(self.sigmas):
            raise ConfigError(f"values of shape {values.shape} do not have the {len(self.sigmas)} rows of this noise")
        sigmas = np.array(self.sigmas).reshape(-1, *(1,) * (values.ndim - 1))
        return np.asarray(sigmas * max(1.0, bound) * rng.standard_normal(values.shape))


@dataclass
class Chosen:
    """A noise at some of the values that a program refreshes, by their numbers, and at no other.

    It counts the refreshes it is asked for, which come in the same order at every token, and has random numbers of its
    own: what one row meets does not depend on which rows run beside it.
    """

    noise: Noise
    numbers: Collection[int]
    total: int
    seed: int | Sequence[int] = 0
    asked: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    @property
    def reads(self) -> bool:
        """Whether the noise looks at values."""
        return getattr(self.noise, "reads", True)

    def __call__(self, values: Real, bound: float, rng: np.random.Generator) -> Real:
        number, self.asked = self.asked % self.total, self.asked + 1
        return self.noise(values, bound, self.rng) if number in self.numbers else np.zeros_like(values)


@dataclass(frozen=True, slots=True)
class NoiseByRow:
    """Each row its own noise."""

    parts: tuple[Chosen, ...]

    @property
    def rows(self) -> int:
        """One for each noise."""
        return len(self.parts)

    @property
    def reads(self) -> bool:
        """Whether any of them looks at values."""
        return any(part.reads for part in self.parts)

    def __call__(self, values: Real, bound: float, rng: np.random.Generator) -> Real:
        return np.stack([part(row, bound, rng) for part, row in zip(self.parts, values, strict=True)])


@dataclass(frozen=True, slots=True)
class FreeRows:
    """Tokens chosen in each row (R, [W,] count), and how much of a word the largest entry of its one-hot row is."""

    tokens: NDArray[np.int64]
    leaders: Real


def noisy_engine(
    plan: Plan,
    sigmas: Sequence[float],
    *,
    rounding: Sequence[float] = (),
    seed: int = 0,
    cache_bytes: int | None = None,
    device: str = "cpu",
) -> ClearEngine:
    """The clear engine with these rows; it lets values leave their bounds, as an encrypted run does.

    ``rounding`` says by how much the errors of products, rotations and plaintexts are multiplied in each row: 1 is what
    the plan's parameters make, 0 none. Without it only refreshes err.
    """
    if rounding and len(rounding) != len(sigmas):
        raise ConfigError(f"{len(sigmas)} rows of noise with {len(rounding)} strengths of rounding; give one for each")
    operations = OperationNoise(params=plan.params, seed=seed, strengths=tuple(rounding)) if rounding else None
    return ClearEngine(
        plan.params, noise=RowNoise(tuple(sigmas)), rng=np.random.default_rng(seed), strict=False,
        cache_bytes=cache_bytes, device=device, rounding=operations,
    )  # fmt: skip


def logit_rows(plan: Plan, circuit: Circuit, engine: ClearEngine, tokens: Texts) -> list[Real]:
    """Logits (R, [W,] V) after each of the tokens."""
    answers = run(plan, circuit, engine, row_inputs(plan, circuit, engine, tokens), program=ProgramName.LOGITS)
    return [plan.packing.unpack_vocabulary([engine.read(p) for p in parts]) for parts in answers]


def free_rows(plan: Plan, circuit: Circuit, engine: ClearEngine, prompt: Texts, count: int) -> FreeRows:
    """Tokens generated after a prompt, each row fed back its own; the argmax runs as planned."""
    tokens, leaders = [], []
    for parts in run(plan, circuit, engine, row_inputs(plan, circuit, engine, prompt), count=count):
        rows = plan.packing.unpack_vocabulary([engine.read(p) for p in parts])
        tokens.append(rows.argmax(axis=-1))
        leaders.append(rows.max(axis=-1))
    return FreeRows(np.stack(tokens, axis=-1), np.stack(leaders, axis=-1))


def row_inputs(plan: Plan, circuit: Circuit, engine: ClearEngine, texts: Texts) -> Iterator[list[Any]]:
    """The inputs of each token, the same in every row of the engine's noise."""
    rows = getattr(engine.noise, "rows", None)
    if rows is None:
        raise ConfigError("the engine has no rows of noise: make it with noisy_engine")
    for column in np.asarray(texts).T:
        slots = plan.packing.pack_residual(circuit.folded.token[column])
        yield [engine.value(np.broadcast_to(slots, (rows, *slots.shape)))]
