# SPDX-License-Identifier: Apache-2.0
"""Learned counts moved to the stairs of a plan: as many iterations as before, where levels are left over.

An iteration is worth a bootstrap or next to nothing. Training learns what it is worth to the loss and ends wherever
that leads, often one above a stair. But softmaxes can hand iterations over: one that stands just above a stair gives
one up, and another takes it for next to nothing. Each softmax is planned alone at a few iterations more and fewer.
Taking them for independent, the cheapest changes of a given sum follow, and these are planned as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from heatfhe.errors import ConfigError
from heatfhe.records import Calibration

WORTH = 0.5  # of a mean bootstrap: what must be saved before anything moves, or moves one iteration further
UNEASE = 1e-3  # of a mean bootstrap for every change, squared: of equals the one that moves least is taken
Counts = Mapping[str, int]
Bounds = Mapping[str, tuple[int, int]]
Price = tuple[float, float]
"""What is saved first, and what decides between equals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What a plan predicts of one token up to its logits."""

    seconds: float
    bootstraps: int


def onto_stairs(
    calibration: Calibration, tokens: Callable[[Sequence[Counts]], Sequence[Token]], reach: int, bounds: Bounds
) -> dict[str, int]:
    """The calibration's counts with every softmax changed by at most ``reach``, for a token of fewer seconds.

    No fewer in all: what is taken from one softmax is given to others. ``bounds`` has the least and the largest count
    of every reciprocal; ``tokens`` plans counts. Moving by one more must save WORTH of a mean bootstrap more. Counts
    that nothing can be saved with are returned as they are. What is added up are counts: where a softmax makes several
    passes, one of its second reciprocal's is several iterations.
    """
    counts = calibration.counts()
    now = tokens([counts])[0]
    mean = now.seconds / max(1, now.bootstraps)
    tried = {
        (name, by): made
        for name in calibration.softmaxes
        for by in range(-reach, reach + 1)
        if (made := moved(counts, name, by, bounds)) is not None
    }
    alone: dict[str, dict[int, Price]] = {name: {} for name in calibration.softmaxes}
    for (name, by), token in zip(tried, tokens(list(tried.values())), strict=True):
        price = token.seconds - now.seconds + UNEASE * mean * by * by
        alone[name][by] = price, float(token.bootstraps - now.bootstraps)
    best, saved = counts, 0.0
    for step in range(1, reach + 1):
        found = cheapest({name: {by: own[by] for by in own if abs(by) <= step} for name, own in alone.items()})
        _, moves = min((found[total] for total in found if total >= 0), key=lambda entry: entry[0])
        made = changed(counts, moves, bounds)
        gain = now.seconds - tokens([made])[0].seconds
        if gain - saved >= WORTH * mean:
            best, saved = made, gain
    return best


def moved(counts: Counts, name: str, by: int, bounds: Bounds | None = None) -> dict[str, int] | None:
    """A softmax's counts changed by so many, one at a time: down in the reciprocal that has more, up in the other. None
    where its bounds do not leave room for that."""
    out, sites = dict(counts), (f"{name}/init", f"{name}/refine")
    for _ in range(abs(by)):
        free = [s for s in sites if bounds is None or (out[s] > bounds[s][0] if by < 0 else out[s] < bounds[s][1])]
        if not free:
            return None
        out[(max if by < 0 else min)(free, key=lambda site: out[site])] += 1 if by > 0 else -1
    return out


def changed(counts: Counts, moves: Mapping[str, int], bounds: Bounds | None = None) -> dict[str, int]:
    """All counts with every softmax's change made, each of which its bounds allow."""
    out = dict(counts)
    for name, by in moves.items():
        made = moved(out, name, by, bounds)
        if made is None:
            have = " and ".join(str(out[f"{name}/{part}"]) for part in ("init", "refine"))
            raise ConfigError(f"{name}: counts of {have} cannot change by {by:+d} within their bounds; move it less")
        out = made
    return out


def cheapest(prices: Mapping[str, Mapping[int, Price]]) -> dict[int, tuple[Price, dict[str, int]]]:
    """By the sum of all changes: the least price, prices added up, and each softmax's change."""
    best: dict[int, tuple[Price, dict[str, int]]] = {0: ((0.0, 0.0), {})}
    for name, own in prices.items():
        found: dict[int, tuple[Price, dict[str, int]]] = {}
        for total, (price, moves) in best.items():
            for by, more in own.items():
                candidate = ((price[0] + more[0], price[1] + more[1]), {**moves, name: by})
                if total + by not in found or candidate[0] < found[total + by][0]:
                    found[total + by] = candidate
        best = found
    return best
