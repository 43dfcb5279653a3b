# SPDX-License-Identifier: Apache-2.0
"""Counts rounded to the stairs of a plan: fewer iterations where that saves a bootstrap, more where they cost nothing.

An iteration is worth a bootstrap or next to nothing. Learned counts know nothing of that: some stop one above a stair,
and near them no single iteration saves anything, while two together do. So counts are moved a little after they were
learned, priced by plans and guarded by a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from heatfhe.errors import ConfigError

Counts = Mapping[str, int]
Measure = Callable[[Sequence[Counts]], Sequence[float]]
AHEAD = 3  # iterations less that are looked at in one site
JUDGED = 16  # moves of a round whose loss is measured, those that save most


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """Counts after rounding: ``price`` in the units of the prices given, ``loss`` in those of the losses.

    ``moves`` are the changes in the order they were made; ``judged`` how many losses were measured.
    """

    counts: dict[str, int]
    price: float
    loss: float
    moves: tuple[dict[str, int], ...]
    judged: int


def round_to_stairs(
    counts: Counts,
    floors: Counts,
    *,
    price: Measure,
    loss: Measure,
    limit: float,
    least: float,
    ahead: int = AHEAD,
    judged: int = JUDGED,
) -> Rounded:
    """Lower counts where it saves at least ``least`` and keeps the loss within ``limit``; then raise what is free.

    A round looks at one site lowered by up to ``ahead``, and at two lowered by one each. Of the moves that save most,
    ``judged`` are measured, and the one that costs least loss for what it saves is made. When none is left, counts are
    raised one at a time while the loss falls and the price rises by no more than half of ``least`` in all; then counts
    may have become worth lowering again. Every turn saves more than it spends, so it ends.
    """
    if set(counts) != set(floors) or any(counts[name] < floors[name] for name in counts):
        raise ConfigError("counts are given for the sites of the floors, none below its own")
    if not least > 0:
        raise ConfigError(f"a saving that counts is above 0, got {least:g}")
    walk = _Walk(dict(counts), floors, price, loss, limit, judged)
    while walk.lower(least, ahead):
        while walk.lower(least, ahead):
            pass
        ceiling = walk.price + least / 2
        while walk.raise_one(ceiling):
            pass
    return Rounded(counts=walk.counts, price=walk.price, loss=walk.loss, moves=tuple(walk.moves), judged=walk.measured)


class _Walk:
    """Where the counts are, and what they cost there."""

    def __init__(
        self, counts: dict[str, int], floors: Counts, price: Measure, loss: Measure, limit: float, judged: int
    ) -> None:
        self.counts, self.limit = counts, limit
        self._floors, self._prices, self._losses, self._judged = floors, price, loss, judged
        self.price, self.loss = float(price([counts])[0]), float(loss([counts])[0])
        self.moves: list[dict[str, int]] = []
        self.measured = 1

    def lower(self, least: float, ahead: int) -> bool:
        """Make the best move down that saves enough, if there is one."""
        moves = list(self._down(ahead))
        saved = [self.price - float(p) for p in self._prices([self._moved(move) for move in moves])] if moves else []
        order = sorted((i for i in range(len(moves)) if saved[i] >= least), key=lambda i: (-saved[i], i))
        order = order[: self._judged]
        losses = self._measured([moves[i] for i in order])
        fine = [(max(found - self.loss, 0.0) / saved[i], -saved[i], i, found) for i, found in zip(order, losses)
                if found <= self.limit]  # fmt: skip
        if not fine:
            return False
        _, _, best, found = min(fine)
        self._go(moves[best], self.price - saved[best], found)
        return True

    def raise_one(self, ceiling: float) -> bool:
        """Raise the count that lowers the loss most, among those that stay under a price."""
        moves = [{name: 1} for name in self.counts]
        prices = [float(p) for p in self._prices([self._moved(move) for move in moves])]
        order = sorted((i for i in range(len(moves)) if prices[i] <= ceiling), key=lambda i: (prices[i], i))
        losses = self._measured([moves[i] for i in order])
        best = min(zip(losses, order), default=(self.loss, -1))
        if not best[0] < self.loss:
            return False
        self._go(moves[best[1]], prices[best[1]], best[0])
        return True

    def _down(self, ahead: int) -> Iterator[dict[str, int]]:
        movable = [name for name in self.counts if self.counts[name] > self._floors[name]]
        for name in movable:
            for by in range(1, min(ahead, self.counts[name] - self._floors[name]) + 1):
                yield {name: -by}
        for one, other in combinations(movable, 2):
            yield {one: -1, other: -1}

    def _moved(self, move: Counts) -> dict[str, int]:
        return {name: count + move.get(name, 0) for name, count in self.counts.items()}

    def _measured(self, moves: Sequence[Counts]) -> list[float]:
        self.measured += len(moves)
        return [float(found) for found in self._losses([self._moved(move) for move in moves])] if moves else []

    def _go(self, move: dict[str, int], price: float, loss: float) -> None:
        self.counts, self.price, self.loss = self._moved(move), price, loss
        self.moves.append(move)
