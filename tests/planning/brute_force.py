# SPDX-License-Identifier: Apache-2.0
"""Every placement of a tiny graph, levels chosen one by one: slow, plain, and sharing no code with the algorithms."""

from __future__ import annotations

import math
from itertools import product

from heatfhe.ckks.params import Params
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph, Node


def cheapest(graph: Graph, params: Params, cost: CostTable, *, pairing: bool, precision: float | None = None) -> float:
    """The least price over all choices of levels and refreshes, infinite if none is legal; last results are spared."""
    nodes, top = graph.nodes, params.levels
    best = math.inf
    users = graph.users()

    def may(node: Node) -> bool:
        return node.refreshable and not node.last

    def divided(node: Node) -> bool:
        return node.bound > params.reach

    def short(node: Node, times: float) -> float:
        """Bits missing after a refresh of the value times this, noise being what it is whatever the value's size."""
        if precision is None or node.least == 0:
            return 0.0
        return max(0.0, precision - math.log2(times * node.least / params.noise))

    def times(node: Node) -> int:
        """The least power of two within the reach that misses no bits, or else the largest."""
        k = 1
        while short(node, k) and k < 1024 and 2 * k * node.bound <= params.reach:
            k *= 2
        return k

    scales = {n.name: 1 / math.ceil(n.bound / params.reach) if divided(n) else times(n) for n in nodes}
    tolls = {n.name: short(n, scales[n.name]) * cost.refresh(params.slots, params.slots) for n in nodes}

    def multiplied(node: Node) -> bool:
        return scales[node.name] > 1

    def rescaling(node: Node) -> float:
        once = {"add": 1, "multiply_plain": 1, "rescale": 1}
        if divided(node):
            return node.parts * cost.price(once, 1) + tolls[node.name]
        return (node.parts * cost.price(once, top) if multiplied(node) else 0.0) + tolls[node.name]

    split = cost.price({"add": 3, "conjugate": 1}, top)

    def pair(period: int) -> float:
        if cost.version == 1:
            return cost.refresh(period, params.slots) + split
        return cost.refresh(period, params.slots, pair=True)

    def refreshes(v: int) -> list[tuple[tuple[int, ...], int, float]]:
        """Values lifted right after node v, the level they get, the price."""
        node = nodes[v]
        out: list[tuple[tuple[int, ...], int, float]] = [((), 0, 0.0)]
        if not may(node):
            return out
        one = cost.refresh(node.period, params.slots)
        out.append(((v,), top, node.parts * one + rescaling(node)))
        if pairing and not node.complex:
            if node.parts == 2:
                out.append(((v,), top - params.pair_levels, pair(node.period) + rescaling(node)))
            else:
                for u in range(v):
                    other = nodes[u]
                    if may(other) and not other.complex and other.parts == 1 and max(users[u], default=-1) > v:
                        price = pair(max(node.period, other.period)) + rescaling(node) + rescaling(other)
                        out.append(((u, v), top - params.pair_levels, price))
        return out

    def walk(v: int, now: list[int], paid: float) -> None:
        nonlocal best
        if paid >= best:
            return
        if v == len(nodes):
            if all(now[u] >= level for u, level in graph.required.items()):
                best = paid
            return
        node = nodes[v]
        highest = node.fixed if node.fixed is not None else min(now[u] - c for u, c in zip(node.inputs, node.costs))
        lowest = highest if node.fixed is not None else 0
        deep = max(node.costs, default=0)
        for level, (values, after, price) in product(range(lowest, highest + 1), refreshes(v)):
            then = [*now, level]
            if any(divided(nodes[u]) and then[u] < 1 for u in values):
                continue
            for u in values:
                then[u] = after - multiplied(nodes[u])
            walk(v + 1, then, paid + price + cost.price(node.work, level + deep))

    walk(0, [], 0.0)
    return best
