# SPDX-License-Identifier: Apache-2.0
"""Rows of logits for the argmax tests, and CutMax with an exact normaliser to compare with."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from heatfhe.approx import ArgmaxSchedule, fit_schedule

Array = np.ndarray[Any, Any]


def synthetic_logits(rows: int, size: int, seed: int) -> Array:
    """Rows shaped like a language model's: a Gaussian bulk and a logarithmic tail of leaders."""
    rng = np.random.default_rng(seed)
    out = rng.normal(-35.0, rng.uniform(1.8, 2.6, (rows, 1)), (rows, size))
    tail = min(2000, size // 4)
    leaders = (
        -35.0 + rng.uniform(13.0, 22.0, (rows, 1)) - rng.uniform(0.9, 1.9, (rows, 1)) * np.log(np.arange(1, tail + 1))
    )
    out[:, :tail] = np.maximum(out[:, :tail], leaders)
    return np.asarray(rng.permuted(out, axis=1))


def mean(v: Array) -> Array:
    """The mean of every row."""
    return np.asarray(v.mean(axis=-1, keepdims=True))


def total(v: Array) -> Array:
    """The sum of every row."""
    return np.asarray(v.sum(axis=-1, keepdims=True))


def exact_rounds(x: Array, powers: tuple[int, ...] = (9, 3, 3, 3, 7)) -> Array:
    """CutMax with an exact normaliser, each row's leader brought to 1: what the circuit approximates."""
    for p in powers:
        c = x - mean(x)
        y = c / np.abs(c).max(axis=-1, keepdims=True)
        x = y**p
    return x


@lru_cache(maxsize=1)
def small_schedule() -> ArgmaxSchedule:
    """A schedule for rows of 600 entries, made once."""
    return fit_schedule(synthetic_logits(24, 600, seed=0), powers=(3, 3, 3, 7), margin=1.15)
