# SPDX-License-Identifier: Apache-2.0
"""Odd sequences of tokens: what no text looks like, and what a circuit must survive all the same.

A server cannot see a prompt and a deployed circuit has no comparison, so that a user who pastes noise, a table or the
same word a hundred times must not be able to drive a solver out of its domain. Training mixes such sequences in;
``heat stress`` counts those on which a circuit fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError

KINDS = ("random", "shuffled", "repeated", "replaced", "runs")
LONGEST_PATTERN = 8
RUNS = 16  # at most so many in a row, or one for every so many of its tokens
Rows = NDArray[np.int64]


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse a list of kinds that is empty or names an unknown one."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        named = repr(unknown[0]) if unknown else "an empty list"
        raise ConfigError(f"odd windows: {named} is no kind of them; have: {', '.join(KINDS)}")


def check_share(share: float, name: str = "odd_share") -> None:
    """Refuse a share of windows outside [0, 0.5]: beyond half, training would see mostly noise."""
    if not 0 <= share <= 0.5:
        raise ConfigError(f"{name} is the share of such windows among all, in [0, 0.5]; got {share!r}")


def beside(share: float, count: int, name: str = "odd_share") -> int:
    """How many windows, added to ``count`` others, make up a share of all: at least one of a share above zero."""
    check_share(share, name)
    return max(1, round(share * count / (1 - share))) if share else 0


def odd_rows(kinds: Sequence[str], count: int, text: Rows, vocabulary: int, seed: int) -> Rows:
    """``count`` sequences as long as the rows of ``text``, of each kind in turn; the same for the same seed.

    ``random``    every token drawn uniformly from the vocabulary.
    ``shuffled``  a row of the text in random order.
    ``repeated``  a random pattern of 1 to 8 tokens, tiled.
    ``replaced``  a row of the text with a random share of its tokens replaced by uniform ones.
    ``runs``      a row of the text with up to 16 stretches (64 in 1024 tokens), short and long, in which one to eight
                  tokens of the text or of the vocabulary repeat: indented source code, tables, rules of dashes.
    """
    check_kinds(kinds)
    rng = np.random.default_rng([seed, 4])  # 4: the rows of older kinds stay what they were
    made = np.empty((count, text.shape[1]), dtype=np.int64)
    for i in range(count):
        made[i] = _row(kinds[i % len(kinds)], rng, text, vocabulary)
    return made


def _row(kind: str, rng: np.random.Generator, text: Rows, vocabulary: int) -> NDArray[Any]:
    width = text.shape[1]
    noise: NDArray[Any] = rng.integers(0, vocabulary, size=(width,))
    if kind == "random":
        return noise
    if kind == "repeated":
        return np.resize(noise[: rng.integers(1, LONGEST_PATTERN + 1)], width)
    row = text[rng.integers(0, len(text))]
    if kind == "shuffled":
        return np.asarray(rng.permutation(row))
    if kind == "runs":
        return _with_runs(rng, row, text, noise)
    return np.where(rng.random(width) < rng.random(), noise, row)


def _with_runs(rng: np.random.Generator, row: Rows, text: Rows, noise: NDArray[Any]) -> Rows:
    made, width = row.copy(), len(row)
    pattern = noise[:0]
    for _ in range(int((1 + max(RUNS, width // RUNS)) ** rng.random())):
        if not len(pattern) or rng.random() < 0.5:  # else the last one again, as the indent of the next line
            source = noise if rng.random() < 0.5 else text[rng.integers(0, len(text))]
            size = rng.integers(1, LONGEST_PATTERN + 1) if rng.random() < 0.5 else 1
            pattern = np.resize(np.roll(source, -rng.integers(0, width)), size)
        run = made[rng.integers(0, width) :][: int(2 * (width / 2) ** rng.random())]  # 2 tokens to all, evenly in log
        run[:] = np.resize(pattern, len(run))
    return made


def some_of(rows: Rows, count: int) -> Rows:
    """At most ``count`` rows, evenly spaced."""
    count = min(count, len(rows))
    return rows[(np.arange(count) * len(rows)) // max(1, count)]


def spread(text: Rows, other: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """The rows of two arrays in one, the others evenly among those of the text; and which ones are the others."""
    total = len(text) + len(other)
    at = ((2 * np.arange(len(other)) + 1) * total) // (2 * max(1, len(other)))
    marks = np.zeros(total, dtype=np.bool_)
    marks[at] = True
    rows = np.empty((total, text.shape[1]), dtype=np.int64)
    rows[marks], rows[~marks] = other, text
    return rows, marks
