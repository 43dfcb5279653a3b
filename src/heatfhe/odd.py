# SPDX-License-Identifier: Apache-2.0
"""Odd sequences of tokens: what no text looks like, and what a circuit must survive all the same.

A server cannot see a prompt and a deployed circuit has no comparison, so that a user who pastes noise, a table or the
same word a hundred times must not be able to drive a solver out of its domain. Training mixes such sequences in;
``heat stress`` counts those on which a circuit fails.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError
from heatfhe.progress import SILENT, Reporter

KINDS = ("random", "shuffled", "repeated", "replaced", "runs")
HARD = "hard"  # the kind that needs a model: patterns of the tokens it bears worst
LONGEST_PATTERN = 8
RUNS = 16  # at most so many in a row, or one for every so many of its tokens
TRIED = 32  # times that a token is repeated to see how far a model's softmaxes go on it
HELD = 5.0  # nats above the usual token's that a row's mean exponential may reach before the token counts as hard
Rows = NDArray[np.int64]
Tap = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Hard:
    """Tokens that a model bears badly when they are repeated, and how often each is to be drawn; the sum is one."""

    tokens: NDArray[np.int64]
    weights: NDArray[np.float64]


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse a list of kinds that is empty or names an unknown one."""
    known = (*KINDS, HARD)
    unknown = [kind for kind in kinds if kind not in known]
    if unknown or not kinds:
        named = repr(unknown[0]) if unknown else "an empty list"
        raise ConfigError(f"odd windows: {named} is no kind of them; have: {', '.join(known)}")


def check_share(share: float, name: str = "odd_share") -> None:
    """Refuse a share of windows outside [0, 0.5]: beyond half, training would see mostly noise."""
    if not 0 <= share <= 0.5:
        raise ConfigError(f"{name} is the share of such windows among all, in [0, 0.5]; got {share!r}")


def beside(share: float, count: int, name: str = "odd_share") -> int:
    """How many windows, added to ``count`` others, make up a share of all: at least one of a share above zero."""
    check_share(share, name)
    return max(1, round(share * count / (1 - share))) if share else 0


def odd_rows(
    kinds: Sequence[str],
    count: int,
    text: Rows,
    vocabulary: int,
    seed: int,
    *,
    hard: Hard | None = None,
    without: Sequence[int] = (),
) -> Rows:
    """``count`` sequences as long as the rows of ``text``, of each kind in turn; the same for the same seed.

    None holds a token of ``without``: such tokens are exchanged for others, each for one other within a row.

    ``random``    every token drawn uniformly from the vocabulary.
    ``shuffled``  a row of the text in random order.
    ``repeated``  a random pattern of 1 to 8 tokens, tiled.
    ``replaced``  a row of the text with a random share of its tokens replaced by uniform ones.
    ``runs``      a row of the text with up to 16 stretches (64 in 1024 tokens), short and long, in which one to eight
                  tokens of the text or of the vocabulary repeat: indented source code, tables, rules of dashes.
    ``hard``      one to eight of the ``hard`` tokens that a model bears worst (``hard_tokens``), tiled, or as one
                  stretch of a row of the text; where there are none, of any tokens.
    """
    check_kinds(kinds)
    if count and HARD in kinds and hard is None:
        raise ConfigError(f"odd windows of kind {HARD!r} are made of tokens that a model bears badly: pass hard=")
    rng = np.random.default_rng([seed, 4])  # 4: the rows of older kinds stay what they were
    made = np.empty((count, text.shape[1]), dtype=np.int64)
    for i in range(count):
        made[i] = _row(kinds[i % len(kinds)], rng, text, vocabulary, hard)
    if len(without):
        _exchange(made, np.setdiff1d(np.arange(vocabulary), without), without, np.random.default_rng([seed, 5]))
    return made


def _exchange(rows: Rows, allowed: NDArray[np.int64], without: Sequence[int], rng: np.random.Generator) -> None:
    """Put allowed tokens where rows hold others, in place; a pattern that repeats stays one."""
    if not len(allowed):
        raise ConfigError(f"odd windows without {len(without)} tokens have none left; leave fewer out (odd_without)")
    for i in np.flatnonzero(np.isin(rows, without).any(axis=1)):
        for token in np.intersect1d(rows[i], without):
            rows[i][rows[i] == token] = rng.choice(allowed)


def _row(kind: str, rng: np.random.Generator, text: Rows, vocabulary: int, hard: Hard | None) -> NDArray[Any]:
    width = text.shape[1]
    noise: NDArray[Any] = rng.integers(0, vocabulary, size=(width,))
    if kind == "random":
        return noise
    if kind == "repeated":
        return np.resize(noise[: rng.integers(1, LONGEST_PATTERN + 1)], width)
    row = text[rng.integers(0, len(text))]
    if kind == HARD:
        assert hard is not None
        size = 1 if rng.random() < 0.5 else int(rng.integers(2, LONGEST_PATTERN + 1))
        pattern = rng.choice(hard.tokens, size=size, p=hard.weights) if len(hard.tokens) else noise[:size]
        return np.resize(pattern, width) if rng.random() < 0.5 else _stretch(rng, row.copy(), pattern)
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
        _stretch(rng, made, pattern)
    return made


def _stretch(rng: np.random.Generator, row: Rows, pattern: NDArray[Any]) -> Rows:
    """A row with a pattern repeated somewhere in it, from 2 tokens to all, evenly in their logarithm; in place."""
    width = len(row)
    run = row[rng.integers(0, width) :][: int(2 * (width / 2) ** rng.random())]
    run[:] = np.resize(pattern, len(run))
    return row


def hard_tokens(
    run: Callable[[Rows, Tap], Any],
    vocabulary: int,
    context: int,
    *,
    held: float = HELD,
    divisor: float = 2.0,
    every: int = 1,
    without: Sequence[int] = (),
    batch: int = 256,
    reporter: Reporter = SILENT,
) -> Hard:
    """The tokens on which, repeated, some softmax row's mean exponential lies furthest above that of other tokens.

    A head that looks for one token, such as a bracket's partner, can score it far higher than any text shows once
    nothing else is there. One such head decides where the domain of its whole softmax ends, and windows drawn at random
    hardly ever show it. ``run(tokens, tap)`` runs a model, or a circuit, on rows of tokens and shows each softmax's
    scores (B, heads, T, S) to the tap as ``NAME/scores``; ``divisor`` divides them, as delta_2 does.

    Domain  each ``every``-th token of the vocabulary but those of ``without``, TRIED times or as often as the context
            holds, ``batch`` tokens at a time.
    Bound   none: patterns of several tokens, and tokens inside a text, can be worse.
    Depth   none.
    Source  the squared excess over ``held``, which a range loss would add, is the weight a token is drawn with.
    """
    length = min(TRIED, context)
    heights: dict[str, list[NDArray[np.float64]]] = defaultdict(list)

    def tap(name: str, value: Any) -> Any:
        if name.endswith("/scores"):
            heights[name].append(_log_mean(value[..., -1, :], divisor))
        return value

    tokens = np.setdiff1d(np.arange(0, vocabulary, every, dtype=np.int64), without)
    reporter.start("hard tokens", -(-len(tokens) // batch))
    for start in range(0, len(tokens), batch):
        run(np.repeat(tokens[start : start + batch, None], length, axis=1), tap)
        reporter.advance("hard tokens")
    reporter.done("hard tokens")
    excess = np.zeros(len(tokens))
    for parts in heights.values():
        whole = np.concatenate(parts)
        excess = np.maximum(excess, (whole - np.median(whole, axis=0)).max(axis=1) - held)
    weights = excess[excess > 0] ** 2
    return Hard(tokens[excess > 0], weights / weights.sum() if len(weights) else weights)


def _log_mean(scores: Any, divisor: float) -> NDArray[np.float64]:
    """The logarithm of the mean of e^(s / divisor) along the last axis; a tensor's is taken where the tensor is."""
    if not isinstance(scores, np.ndarray):
        sums = (scores.float() / divisor).logsumexp(-1) - math.log(scores.shape[-1])
        return np.asarray(sums.cpu(), dtype=np.float64)
    top = scores.max(axis=-1, keepdims=True)
    means = np.exp((scores - top) / divisor).mean(axis=-1)
    return np.asarray(top[..., 0] / divisor + np.log(means), dtype=np.float64)


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
