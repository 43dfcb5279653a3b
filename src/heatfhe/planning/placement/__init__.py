# SPDX-License-Identifier: Apache-2.0
"""Where bootstraps go: the algorithms by name."""

from __future__ import annotations

from collections.abc import Callable

from heatfhe.ckks import Params
from heatfhe.errors import ConfigError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph
from heatfhe.planning.placement.frontier import frontier
from heatfhe.planning.placement.greedy import greedy
from heatfhe.planning.placement.model import Rules, kept_bits
from heatfhe.planning.placement.result import Placement, Refresh, check
from heatfhe.planning.placement.shortest_path import shortest_path

Algorithm = Callable[[Graph, Params, CostTable, "Rules | None"], Placement]

ALGORITHMS: dict[str, Algorithm] = {
    "exact": frontier,
    "greedy": greedy,
    "shortest-path": shortest_path,
}
"""Every placement algorithm by the name a user gives."""


def place(
    graph: Graph, params: Params, cost: CostTable, *, algorithm: str = "exact", rules: Rules | None = None
) -> Placement:
    """A placement by the named algorithm, replayed and checked."""
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown placement algorithm {algorithm!r}; have: {', '.join(sorted(ALGORITHMS))}")
    rules = rules or Rules()
    placement = ALGORITHMS[algorithm](graph, params, cost, rules)
    check(graph, placement, params, spare_last=rules.spare_last)
    return placement


__all__ = [
    "ALGORITHMS",
    "Placement",
    "Refresh",
    "Rules",
    "check",
    "frontier",
    "greedy",
    "kept_bits",
    "place",
    "shortest_path",
]
