# SPDX-License-Identifier: Apache-2.0
"""Placements of the hand-built GPT-2 token: the counts our design was based on, and the order of the algorithms."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from heatfhe.ckks.params import Params
from heatfhe.planning.cost import cost_table
from heatfhe.planning.placement import Rules, place
from tests.planning.comparison import every_placement
from tests.planning.token_model import Counts, Shape, calibrated, heat, token

LEVELS = (8, 10, 13, 16)
FREE = Rules(spare_last=False)
OLD = Shape(newton_levels=3, gelu=(6, 5, 1), variant_b=False)


def params(levels: int) -> Params:
    """The paper's ring with another number of usable levels."""
    return Params(
        name="test-16", engine="clear", ring_dimension=1 << 16, levels=levels, scale_bits=53, log_qp=1731,
        noise=1.7e-4, promised_bits=10, reach=246,
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
    rows = every_placement(token(8, heat()), params(8), cost_table("unit"))
    counts = {key: p.bootstraps for key, p in rows.items()}
    assert counts[("exact", True)] == 124
    assert counts[("exact", True)] < counts[("exact", False)] <= counts[("shortest-path", False)]
    assert counts[("shortest-path", False)] < counts[("greedy", False)]
    assert counts[("exact", True)] < counts[("greedy", True)] < 326  # the paper's own count


def test_the_calibrated_token_is_planned_well_within_a_minute() -> None:
    begun = time.process_time()
    placement = place(token(8, calibrated()), params(8), cost_table("paper-a100"))
    assert time.process_time() - begun < 60
    assert placement.bootstraps <= 260


A = Shape(gelu=(6, 5, 1), variant_b=False)
BARE = Shape(argmax=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "shape", "rules", "published"),
    [
        (heat(), A, FREE, (124, 103, 73, 65)),
        (heat(), Shape(), FREE, (118, 92, 72, 65)),
        (heat(), Shape(), Rules(), (124, 98, 78, 65)),
        (heat(), BARE, FREE, (110, 86, 66, 60)),
        (calibrated(), Shape(), FREE, (195, 150, 121, 105)),
        (calibrated(), BARE, FREE, (187, 144, 116, 101)),
    ],
)
def test_counts_equal_those_of_an_independent_script(
    counts: Counts, shape: Shape, rules: Rules, published: tuple[int, ...]
) -> None:
    """Where the design's text fixes the whole model, two programmes must find the same optimum."""
    assert [price(counts, levels, shape=shape, rules=rules) for levels in LEVELS] == list(published)


@pytest.mark.slow
def test_equivalents_equal_the_scripts_up_to_the_rounding_of_its_prices() -> None:
    """Prices are given to two decimals, so a bootstrap's may be 0.005 off, and the sums to one decimal."""
    published = {8: (72.3, 130), 10: (53.9, 94), 13: (44.7, 79), 16: (37.3, 67)}  # equivalents, bootstraps
    for levels, (expected, bootstraps) in published.items():
        assert price(heat(), levels, "equivalents") == pytest.approx(expected, abs=0.05 + 0.005 * bootstraps)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [heat(), calibrated()])
@pytest.mark.parametrize("levels", LEVELS)
def test_every_trick_helps_and_nothing_beats_the_critical_path(counts: Counts, levels: int) -> None:
    """From one circuit to the next a constraint is dropped or a level saved, so the optimum cannot rise."""
    unpaired = Rules(pairing=False, spare_last=False)
    chain = [
        price(counts, levels, shape=replace(OLD, logits="two"), rules=unpaired),
        price(counts, levels, shape=OLD, rules=unpaired),
        price(counts, levels, shape=OLD),
        price(counts, levels, shape=A),
    ]
    assert chain == sorted(chain, reverse=True)
    best, spared = price(counts, levels), price(counts, levels, rules=Rules())
    assert best <= spared  # a rule more
    graph = token(levels, counts)
    depth = [0] * len(graph.nodes)
    for v, node in enumerate(graph.nodes):
        depth[v] = max((depth[u] + c for u, c in zip(node.inputs, node.costs)), default=0)
    assert best >= math.ceil(depth[-1] / levels)
    cheapest = price(counts, levels, "equivalents", rules=Rules())
    by_count = place(graph, params(levels), cost_table("unit"), rules=Rules())
    weights = cost_table("equivalents")
    assert cheapest <= sum(r.bootstraps * weights.refresh(r.period, 32768) for r in by_count.refreshes) + 1e-6
    assert price(counts, levels, "equivalents") <= cheapest
