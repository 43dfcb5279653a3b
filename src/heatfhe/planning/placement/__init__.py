# SPDX-License-Identifier: Apache-2.0
"""Where bootstraps go: the algorithms by name, and their comparison on one graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from heatfhe.ckks.params import Params
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph
from heatfhe.planning.placement.frontier import frontier
from heatfhe.planning.placement.greedy import greedy
from heatfhe.planning.placement.model import Rules
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row of a comparison; ``note`` says why there is no placement."""

    algorithm: str
    pairing: bool
    placement: Placement | None
    elapsed: float
    note: str = ""


def compare(graph: Graph, params: Params, cost: CostTable, *, rules: Rules | None = None) -> list[Compared]:
    """Every algorithm on one graph, worst baseline first, without and with pairing where it knows it."""
    rules = rules or Rules()
    runs = [("greedy", False), ("greedy", True), ("shortest-path", False), ("exact", False), ("exact", True)]
    rows = []
    for algorithm, pairing in runs:
        if pairing and not rules.pairing:
            continue
        begun = time.perf_counter()
        placement, note = None, ""
        try:
            placement = place(graph, params, cost, algorithm=algorithm, rules=replace(rules, pairing=pairing))
        except PlanError as err:
            note = str(err)
        elapsed = time.perf_counter() - begun
        rows.append(Compared(algorithm=algorithm, pairing=pairing, placement=placement, elapsed=elapsed, note=note))
    return rows


__all__ = [
    "ALGORITHMS",
    "Compared",
    "Placement",
    "Refresh",
    "Rules",
    "check",
    "compare",
    "frontier",
    "greedy",
    "place",
    "shortest_path",
]
