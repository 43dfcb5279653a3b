# SPDX-License-Identifier: Apache-2.0
"""Gumbel noise, cut: what a client adds to logits to sample under encryption, and a calibration to be ready for it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def gumbel_bound(vocabulary: int) -> float:
    """Where |G| is cut.

    Domain  vocabulary >= 2.
    Bound   a draw differs from uncut Gumbel with probability at most vocabulary * exp(-bound) = exp(-7) < 0.1 %
            (union over words; P(G > b) = 1 - exp(-exp(-b)) <= exp(-b); G < -bound never happens in float64).
    Depth   0.
    Source  Gumbel 1954; the union bound.
    """
    return math.log(vocabulary) + 7.0


def gumbel_noise(rng: np.random.Generator, vocabulary: int, temperature: float) -> NDArray[np.float64]:
    """Temperature times Gumbel noise, one number per word, cut at temperature * gumbel_bound(vocabulary).

    Domain  temperature >= 0.
    Bound   argmax(logits + noise) is a draw from softmax(logits / temperature), up to the cut's probability.
    Depth   0: made in the clear.
    Source  Gumbel 1954.
    """
    bound = gumbel_bound(vocabulary)
    return np.asarray(temperature * np.clip(rng.gumbel(size=vocabulary), -bound, bound))
