# SPDX-License-Identifier: Apache-2.0
"""The same problem without pairing as an integer programme (HiGHS, through scipy): an independent answer for tests."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from heatfhe.ckks.params import Params
from heatfhe.errors import PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph
from heatfhe.planning.placement.model import Model, Rules


def least_refresh_seconds(
    graph: Graph, params: Params, cost: CostTable, *, spare_last: bool = True, time_limit: float = 60.0
) -> float:
    """Least total price of the bootstraps alone, no two values sharing one; work is taken as free.

    Variables are the level l_v at which each value is made and whether it is refreshed, b_v. Reading u at a cost of c
    levels demands l_v <= l_u + L b_u - c and l_v <= L - c. Values that do not fit the bootstrap's reach are left to
    the other algorithms: this one refuses them.
    """
    model = Model(graph, params, cost, Rules(pairing=False, spare_last=spare_last))
    if any(scale != 1.0 for scale in model.scale):
        raise PlanError("the integer programme has no levels for scaling before or after a bootstrap")
    n, top = len(graph.nodes), params.levels
    price = np.array([min((o.seconds for o in options), default=0.0) for options in model.options])
    rows: list[tuple[int, int, float]] = []
    limits: list[float] = []

    def at_most(terms: list[tuple[int, float]], limit: float) -> None:
        rows.extend((len(limits), column, weight) for column, weight in terms)
        limits.append(limit)

    highest = np.full(n, float(top))
    for v, node in enumerate(graph.nodes):
        if node.fixed is not None:
            highest[v] = node.fixed
        for u, c in model.reads(v):
            highest[v] = min(highest[v], top - c)
            at_most([(v, 1.0), (u, -1.0), (n + u, -float(top))], -float(c))
    for v, floor in graph.required.items():
        at_most([(v, -1.0), (n + v, -float(top))], -float(floor))
    matrix = coo_matrix(
        ([w for _, _, w in rows], ([r for r, _, _ in rows], [c for _, c, _ in rows])), shape=(len(limits), 2 * n)
    )
    found = milp(
        np.concatenate([np.zeros(n), price]),
        constraints=LinearConstraint(matrix, ub=np.array(limits)) if limits else (),
        integrality=np.ones(2 * n),
        bounds=Bounds(
            np.zeros(2 * n), np.concatenate([highest, [1.0 if options else 0.0 for options in model.options]])
        ),
        options={"time_limit": time_limit},
    )
    if not found.success:
        raise PlanError(f"the integer programme found no optimum: {found.message}")
    return float(found.fun)
