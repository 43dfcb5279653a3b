# SPDX-License-Identifier: Apache-2.0
"""Random small graphs, parameters and prices for the placement tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from heatfhe.ckks.params import Params
from heatfhe.planning.cost import INSTRUCTIONS, CostTable
from heatfhe.planning.graph import Graph, Node

SLOTS = 32


def params(levels: int, *, pair_levels: int = 0, reach: float = 4.0, noise: float = 1e-6) -> Params:
    """A set of 32 slots with that many usable levels."""
    return Params(
        name="insecure-test", engine="clear", ring_dimension=2 * SLOTS, levels=levels, scale_bits=40, log_qp=100,
        noise=noise, promised_bits=15, reach=reach, pair_levels=pair_levels,
    )  # fmt: skip


def table(*, work: bool, pairs: bool = False) -> CostTable:
    """Prices in binary fractions, so that sums are exact: sparse refreshes cheaper, work dearer at higher levels."""
    row = tuple((1 + 3 * level) / 64 for level in range(12)) if work else (0.0,)
    old = CostTable(
        name="test", provenance="made up", hardware="none", slots=SLOTS,
        bootstrap={1: 0.5, 8: 0.75, SLOTS: 1.0}, seconds=dict.fromkeys(INSTRUCTIONS, row),
    )  # fmt: skip
    if not pairs:
        return old
    return replace(old, pairs={1: 0.625, 8: 1.0, SLOTS: 1.75}, seconds={**old.seconds, "drop": row})


@st.composite
def graphs(draw: st.DrawFn, *, size: int, levels: int, flags: bool = True, work: bool = False) -> Graph:
    """A graph of up to ``size`` nodes; some outputs must end at a level, some values may not be refreshed or paired."""
    count = draw(st.integers(2, size))
    nodes: list[Node] = []
    for i in range(count):
        rare = st.sampled_from((False,) * 5 + (True,)) if flags else st.just(False)
        facts = {
            "name": f"n{i}",
            "operator": "test",
            "period": draw(st.sampled_from((1, 8, SLOTS))),
            "last": draw(rare),
            "complex": draw(rare),
            "refreshable": not draw(rare),
            "parts": 2 if draw(rare) else 1,
            "bound": draw(st.sampled_from((1.0,) * 6 + (9.0, 1e-5))) if flags else 1.0,
        }
        facts["least"] = facts["bound"] * draw(st.sampled_from((0.0, 0.0, 1.0, 2.0**-7, 1e-4))) if flags else 0.0
        if i == 0 or draw(st.integers(0, 9)) == 0:
            nodes.append(Node(**facts, fixed=draw(st.integers(0, levels))))  # type: ignore[arg-type]
            continue
        near, any_ = st.integers(max(0, i - 4), i - 1), st.integers(0, i - 1)  # a residual may come from far
        inputs = tuple(draw(st.lists(st.one_of(near, near, any_), min_size=1, max_size=3, unique=True)))
        costs = tuple(draw(st.integers(0, 2)) for _ in inputs)
        counts = {"multiply": draw(st.integers(0, 2))} if work else {}
        nodes.append(Node(**facts, inputs=inputs, costs=costs, work=counts))  # type: ignore[arg-type]
    required = {count - 1: draw(st.integers(0, levels))}
    if draw(st.booleans()):
        required[draw(st.integers(0, count - 1))] = draw(st.integers(0, levels))
    return Graph(nodes=tuple(nodes), required=required)
