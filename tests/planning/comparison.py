# SPDX-License-Identifier: Apache-2.0
"""Every placement algorithm on one graph, without and with pairing where it knows it."""

from __future__ import annotations

from heatfhe.ckks.params import Params
from heatfhe.planning import CostTable, Graph, Placement, Rules, place

RUNS = (("greedy", False), ("greedy", True), ("shortest-path", False), ("exact", False), ("exact", True))


def every_placement(graph: Graph, params: Params, cost: CostTable) -> dict[tuple[str, bool], Placement]:
    """Placements by algorithm and pairing."""
    return {
        (name, pairing): place(graph, params, cost, algorithm=name, rules=Rules(pairing=pairing))
        for name, pairing in RUNS
    }
