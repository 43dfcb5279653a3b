# SPDX-License-Identifier: Apache-2.0
"""The exact placement: dynamic programming backwards over the frontier of live values.

Walking from the last node to the first, a state holds the level that the readers met so far need of every value not
yet met itself. At a value's own node the choices are: make it at that level; refresh it (and make it at level 0);
refresh it together with an older live value, whose need falls to 0 as well. Then the node's inputs learn what it needs
of them. Working backwards, the free drop to a lower level needs no choice of its own: a node always runs at the lowest
level that serves its readers, which is never dearer. An output that must end at a level is live up to its last reader.

A state t makes a state s superfluous if it asks for no more and costs no more, or if it costs less even after paying
for a refresh of every value of which it asks more (a refresh right after a value is made serves all its readers). Both
rules lose no optimum, so the result is exact for the model of ``model.py`` and the graph's own order of nodes. In
general the problem is NP-hard (Paindavoine and Vialla, SAC 2015); it is quick here because few values live at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.errors import PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph
from heatfhe.planning.placement.model import Choice, Model, Rules, settle
from heatfhe.planning.placement.result import Placement

GRAIN = 1e9
"""Prices are whole nanoseconds inside this module, so that sums are exact and equal plans compare as equal."""

NEVER = 1e15
"""Stands for a price nobody pays: large, yet sums of a few of them stay exact in a double."""

BLOCK = 64
"""Rows compared with all others at once."""

Needs = NDArray[np.int8]
Prices = NDArray[np.float64]
Index = NDArray[np.intp]


def frontier(graph: Graph, params: Params, cost: CostTable, rules: Rules | None = None) -> Placement:
    """The cheapest legal placement."""
    rules = rules or Rules()
    model = Model(graph, params, cost, rules)
    return settle(model, _search(model), "exact" if rules.pairing else "exact, unpaired")


@dataclass(slots=True)
class _Front:
    """All states that may still be part of an optimum: one row of needs and one price each."""

    live: list[int]
    needs: Needs
    prices: Prices


@dataclass(slots=True)
class _Origins:
    """How the states after one node came about: the row they came from and the choice made."""

    parents: Index
    choices: NDArray[np.int32]


def _search(model: Model) -> dict[int, Choice]:
    front = _Front([], np.zeros((1, 0), np.int8), np.zeros(1))
    origins: list[_Origins] = []
    for v in range(len(model.graph.nodes) - 1, -1, -1):
        front, came = _advance(model, front, v)
        origins.append(came)
    return _trace(origins, int(np.argmin(front.prices)))


def _advance(model: Model, front: _Front, v: int) -> tuple[_Front, _Origins]:
    """All choices at node v, its inputs' needs, and the states worth keeping."""
    need, rest, live = _take(model, front, v)
    parents, choices, needs, made, prices = _choices(model, front.prices, need, rest, live, v)
    prices = prices + np.rint(np.asarray(model.work[v]) * GRAIN)[made]
    fits = np.ones(len(prices), bool)
    live = list(live)
    for u, c in model.reads(v):
        asked = made + c
        fits &= asked <= model.top[u]
        if u in live:
            column = live.index(u)
            needs[:, column] = np.maximum(needs[:, column], asked)
        else:
            live.append(u)
            floor = model.graph.required.get(u, 0)
            needs = np.concatenate([needs, np.maximum(asked, floor)[:, None].astype(np.int8)], axis=1)
    kept = np.flatnonzero(fits)
    if not len(kept):
        raise PlanError(f"{model.graph.nodes[v].name}: no level serves its readers")  # Model.top has refused it before
    kept = kept[_undominated(model, live, needs[kept], prices[kept])]
    return _Front(live, needs[kept], prices[kept]), _Origins(parents[kept], choices[kept])


def _take(model: Model, front: _Front, v: int) -> tuple[Needs, Needs, list[int]]:
    """Value v's own column, and the others."""
    if v not in front.live:
        floor = model.graph.required.get(v, 0)
        return np.full(len(front.prices), floor, np.int8), front.needs, front.live
    column = front.live.index(v)
    rest = np.delete(front.needs, column, axis=1)
    return front.needs[:, column], rest, [u for u in front.live if u != v]


def _choices(
    model: Model, prices: Prices, need: Needs, rest: Needs, live: list[int], v: int
) -> tuple[Index, NDArray[np.int32], Needs, Needs, Prices]:
    """Every state times every choice at v: parent row, choice, needs of the others, level v is made at, price.

    A choice is coded as 0 (nothing), k > 0 (option k - 1 of the value alone), or -1 - u (shared with value u).
    """
    rows: list[Index] = []
    codes: list[NDArray[np.int32]] = []
    others: list[Needs] = []
    made: list[Needs] = []
    paid: list[Prices] = []

    def offer(index: Index, code: int, after: Needs, level: Needs, price: float) -> None:
        rows.append(index)
        codes.append(np.full(len(index), code, np.int32))
        others.append(after)
        made.append(level)
        paid.append(prices[index] + round(price * GRAIN))

    keep = np.flatnonzero(need <= model.bottom[v])
    offer(keep, 0, rest[keep], need[keep], 0.0)
    for k, option in enumerate(model.options[v]):
        if option.start <= model.bottom[v]:
            index = np.flatnonzero((need > option.start) & (need <= option.after))
            offer(index, k + 1, rest[index], np.full(len(index), option.start, np.int8), option.price)
    if model.pairable[v] and model.start[v] <= model.bottom[v]:
        useful = (need > model.start[v]) & (need <= model.pair_after(v))
        for column, u in enumerate(live):
            if u > v or not model.pairable[u] or model.start[u] > model.bottom[u]:
                continue
            index = np.flatnonzero(
                useful & (rest[:, column] > model.start[u]) & (rest[:, column] <= model.pair_after(u))
            )
            after = rest[index]
            after[:, column] = model.start[u]
            offer(index, -1 - u, after, np.full(len(index), model.start[v], np.int8), model.pair_price(u, v))
    return (
        np.concatenate(rows),
        np.concatenate(codes),
        np.concatenate(others),
        np.concatenate(made),
        np.concatenate(paid),
    )


def _undominated(model: Model, live: list[int], needs: Needs, prices: Prices) -> Index:
    """Rows that no other row makes superfluous, cheapest first."""
    order = _distinct(needs, prices)
    order = order[np.lexsort((needs[order].sum(axis=1, dtype=np.int32), prices[order]))]
    mend = np.array([_mend(model, u) for u in live])
    columns = np.ascontiguousarray(needs.T)
    kept: list[Index] = []
    while len(order):
        head, order = order[:BLOCK], order[BLOCK:]
        beats = _beats(columns[:, head], prices[head], columns[:, head], prices[head], mend)
        head = head[~np.triu(beats, 1).any(axis=0)]
        order = order[~_beats(columns[:, head], prices[head], columns[:, order], prices[order], mend).any(axis=0)]
        kept.append(head)
    return np.concatenate(kept)


def _distinct(needs: Needs, prices: Prices) -> Index:
    """The cheapest of every set of rows with the same needs."""
    words = []
    for first in range(0, needs.shape[1], 8):
        word = np.zeros(len(prices), np.int64)
        for column in needs.T[first : first + 8]:
            word = word << 7 | column
        words.append(word)
    order: Index = np.lexsort((prices, *words))
    fresh = np.ones(len(order), bool)
    if len(order) > 1:
        fresh[1:] = False
        for word in words:
            fresh[1:] |= word[order[1:]] != word[order[:-1]]
    return order[fresh]


def _mend(model: Model, u: int) -> float:
    """Price at which any need of value u could be met by a refresh where it is made."""
    whole = [o.price for o in model.options[u] if o.start == 0 and o.after == model.levels]
    return round(min(whole) * GRAIN) if whole else NEVER


def _beats(by: Needs, by_prices: Prices, needs: Needs, prices: Prices, mend: Prices) -> NDArray[np.bool_]:
    """Entry (i, j): column i of ``by`` makes column j of ``needs`` superfluous; i stands before j by price."""
    paid = np.repeat(by_prices[:, None], len(prices), axis=1)
    asks = np.zeros(paid.shape, bool)
    for mine, theirs, price in zip(by, needs, mend):
        more = mine[:, None] > theirs[None, :]
        asks |= more
        paid += more * price
    return (paid < prices[None, :]) | (~asks & (by_prices[:, None] <= prices[None, :]))


def _trace(origins: list[_Origins], row: int) -> dict[int, Choice]:
    """The choices that led to one final state, by node."""
    out: dict[int, Choice] = {}
    for v, came in enumerate(reversed(origins)):
        code = int(came.choices[row])
        if code > 0:
            out[v] = (-1, code - 1)
        elif code < 0:
            out[v] = (-1 - code,)
        row = int(came.parents[row])
    return out
