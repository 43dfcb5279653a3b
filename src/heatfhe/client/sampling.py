# SPDX-License-Identifier: Apache-2.0
"""How the client chooses tokens: Gumbel noise for the server to add under encryption, or its own draw from logits.

argmax(logits + T G) with independent Gumbel G is a draw from softmax(logits / T). The noise is cut at |G| <= bound, so
that T G fits the magnitude the plan allows.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.approx import gumbel_bound
from heatfhe.errors import ConfigError
from heatfhe.planning import ProgramName
from heatfhe.wire import ModelConfig

Real = NDArray[np.float64]
_LARGEST_SCORE = 1e300


def fresh_generator() -> np.random.Generator:
    """A generator seeded by the operating system."""
    return np.random.default_rng(secrets.randbits(256))


def largest_temperature(noise_bound: float, vocabulary: int) -> float:
    """The highest temperature whose noise fits the magnitude a plan allows."""
    return noise_bound / gumbel_bound(vocabulary)


def check_temperature(temperature: float, config: ModelConfig) -> None:
    """Refuse noise that a server's plan cannot add, or that its argmax was not made for."""
    if ProgramName.SAMPLE not in config.programs:
        raise ConfigError(
            "this server's plan does not sample under encryption; use temperature 0, or ask its operator for a plan "
            "that does: heat plan --programs generate,prompt,logits,sample"
        )
    most = min(largest_temperature(config.noise_bound, config.vocabulary), config.max_temperature)
    if temperature > most:
        raise ConfigError(
            f"temperature {temperature:g} exceeds {most:.3g}, the most this server samples at under encryption; lower "
            "it, or choose on this machine, one request per token: heat generate --interactive (interactive=True in "
            "Python), or a top_p below 1 through heat proxy"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Chooses from decrypted logits, as the client likes. temperature 0 is greedy.

    ``repetition_penalty`` divides positive and multiplies negative logits of words already there (Keskar et al. 2019);
    ``top_p`` keeps the smallest set of words whose probability reaches it (Holtzman et al. 2020).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ConfigError(f"repetition_penalty must be positive, got {self.repetition_penalty}")

    @property
    def needs_logits(self) -> bool:
        """Whether the choice cannot be made by the server under encryption."""
        return self.top_p < 1 or self.repetition_penalty != 1

    def choose(self, logits: Real, seen: Sequence[int], rng: np.random.Generator) -> int:
        """One token."""
        scores = np.array(logits, dtype=np.float64)
        if self.repetition_penalty != 1 and seen:
            there = np.unique(np.asarray(seen, dtype=np.int64))
            old, penalty = scores[there], self.repetition_penalty
            with np.errstate(over="ignore"):
                penalised = np.where(old > 0, old / penalty, old * penalty)
            scores[there] = np.clip(penalised, -_LARGEST_SCORE, _LARGEST_SCORE)
        if self.temperature == 0:
            return int(np.argmax(scores))
        with np.errstate(over="ignore"):  # the leader's exponent is exactly 0, so nothing here is infinite or NaN
            chances = np.exp((scores - scores.max()) / self.temperature)
        chances /= chances.sum()
        if self.top_p < 1:
            order = np.argsort(-chances, kind="stable")
            kept = order[: 1 + int(np.searchsorted(np.cumsum(chances[order]), self.top_p))]
            mask = np.zeros_like(chances)
            mask[kept] = chances[kept]
            chances = mask / mask.sum()
        return int(rng.choice(chances.size, p=chances))
