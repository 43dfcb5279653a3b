# SPDX-License-Identifier: Apache-2.0
"""Placements of the hand-built GPT-2 token: the counts our design was based on, and the order of the algorithms."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from heatfhe.ckks.params import Params
from heatfhe.planning.cost import cost_table
from heatfhe.planning.placement import Rules, compare, place
from tests.planning.token_model import Counts, Shape, calibrated, heat, token

LEVELS = (8, 10, 13, 16)
FREE = Rules(spare_last=False)
OLD = Shape(newton_levels=3, gelu=(6, 5, 1), variant_b=False)


def params(levels: int) -> Params:
    """The paper's ring with another number of usable levels."""
    return Params(
        name="test-16", engine="clear", ring_dimension=1 << 16, levels=levels, scale_bits=53, log_qp=1731,
        noise=1.7e-4, promised_bits=10, window=246,
    )  # fmt: skip


def price(counts: Counts, levels: int, table: str = "unit", shape: Shape | None = None, rules: Rules = FREE) -> float:
    return place(token(levels, counts, shape), params(levels), cost_table(table), rules=rules).seconds


def test_the_critical_path_has_854_levels() -> None:
    """HEAT's counts, without refreshes: what a lower bound on their number is taken from."""
    graph = token(1, heat())
    depth = [0] * len(graph.nodes)
    for v, node in enumerate(graph.nodes):
        depth[v] = max((depth[u] + c for u, c in zip(node.inputs, node.costs)), default=0)
    assert depth[-1] == 854


def test_counts_at_eight_and_thirteen_levels() -> None:
    assert price(heat(), 8) == 118
    assert price(heat(), 13) == 72
    assert price(heat(), 8, rules=Rules()) == 124
    assert price(heat(), 13, rules=Rules()) == 78
    assert price(calibrated(), 8) == 195


def test_full_slot_equivalents_at_thirteen_levels() -> None:
    assert price(heat(), 13, "equivalents") == pytest.approx(44.7, rel=0.01)
    assert price(heat(), 13, "equivalents", rules=Rules()) == pytest.approx(45.1, rel=0.01)


def test_every_algorithm_in_order() -> None:
    rows = {(r.algorithm, r.pairing): r.placement for r in compare(token(8, heat()), params(8), cost_table("unit"))}
    counts = {key: p.bootstraps for key, p in rows.items() if p is not None}
    assert counts[("exact", True)] == 124
    assert counts[("exact", True)] < counts[("exact", False)] <= counts[("shortest-path", False)]
    assert counts[("shortest-path", False)] < counts[("greedy", False)]
    assert counts[("exact", True)] < counts[("greedy", True)] < 326  # the paper's own count


def test_the_calibrated_token_is_planned_well_within_a_minute() -> None:
    begun = time.process_time()
    placement = place(token(8, calibrated()), params(8), cost_table("paper-a100"))
    assert time.process_time() - begun < 60
    assert placement.bootstraps <= 260


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "rules", "table", "heat_counts", "calibrated_counts", "off"),
    [
        (replace(OLD, logits="two"), Rules(pairing=False, spare_last=False), "unit", (140, 126, 93, 68), (286, 239, 147, 121), 0.022),  # noqa: E501
        (OLD, Rules(pairing=False, spare_last=False), "unit", (137, 123, 90, 66), (283, 235, 144, 119), 0.017),
        (OLD, FREE, "unit", (129, 105, 78, 65), (202, 161, 127, 107), 0.02),
        (Shape(gelu=(6, 5, 1), variant_b=False), FREE, "unit", (124, 103, 73, 65), (195, 158, 121, 106), 0.007),
        (Shape(), FREE, "unit", (118, 92, 72, 65), (195, 150, 121, 105), 0.0),
        (Shape(), Rules(), "unit", (124, 98, 78, 65), (205, 156, 122, 105), 0.009),
        (Shape(argmax=False), FREE, "unit", (110, 86, 66, 60), (187, 144, 116, 101), 0.0),
        (Shape(), FREE, "equivalents", (72.3, 53.9, 44.7, 37.3), (111.2, 85.7, 71.1, 59.9), 0.02),
        (Shape(), Rules(), "equivalents", (74.5, 59.2, 45.1, 38.4), (117.4, 88.5, 73.7, 60.5), 0.025),
    ],
)  # fmt: skip
def test_the_whole_table_of_the_design(
    shape: Shape,
    rules: Rules,
    table: str,
    heat_counts: tuple[float, ...],
    calibrated_counts: tuple[float, ...],
    off: float,
) -> None:
    """Figures of an independent script on the same model; ``off`` is how far ours differ, where details differ."""
    for counts, expected in ((heat(), heat_counts), (calibrated(), calibrated_counts)):
        ours = [price(counts, levels, table, shape, rules) for levels in LEVELS]
        assert ours == pytest.approx(expected, rel=off, abs=1e-6)
