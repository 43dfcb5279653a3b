# SPDX-License-Identifier: Apache-2.0
"""The exact placement: against brute force, the integer programme and the baselines, on random graphs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heatfhe.ckks.params import Params
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.graph import Graph, Node
from heatfhe.planning.placement import Placement, Rules, check, place
from tests.planning.brute_force import cheapest
from tests.planning.graphs import SLOTS, graphs, params, table

QUICK = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def placed(
    graph: Graph, set_: Params, *, work: bool, rules: Rules, algorithm: str = "exact", pairs: bool = False
) -> Placement | None:
    try:
        return place(graph, set_, table(work=work, pairs=pairs), algorithm=algorithm, rules=rules)
    except PlanError:
        return None


@QUICK
@given(
    graph=graphs(size=6, levels=3, work=True),
    pairing=st.booleans(),
    pair_levels=st.integers(0, 1),
    precision=st.sampled_from((None, 14.0)),
)
def test_exact_equals_brute_force_over_all_levels(
    graph: Graph, pairing: bool, pair_levels: int, precision: float | None
) -> None:
    equals_brute_force(graph, params(3, pair_levels=pair_levels), Rules(pairing=pairing, precision=precision))


@QUICK
@given(
    graph=graphs(size=6, levels=3, work=True), pair_levels=st.integers(0, 1), precision=st.sampled_from((None, 14.0))
)
def test_exact_equals_brute_force_where_pairs_have_their_own_prices(
    graph: Graph, pair_levels: int, precision: float | None
) -> None:
    equals_brute_force(graph, params(3, pair_levels=pair_levels), Rules(precision=precision), pairs=True)


def equals_brute_force(graph: Graph, set_: Params, rules: Rules, *, pairs: bool = False) -> None:
    """The exact placement is legal where any is, and as cheap as the cheapest."""
    prices = table(work=True, pairs=pairs)
    best = cheapest(graph, set_, prices, pairing=rules.pairing, precision=rules.precision)
    found = placed(graph, set_, work=True, rules=rules, pairs=pairs)
    assert (found is None) == math.isinf(best)
    if found is not None:
        assert found.price == pytest.approx(best, abs=1e-7)


@QUICK
@given(graph=graphs(size=24, levels=5, work=True), pairing=st.booleans(), pair_levels=st.integers(0, 1))
def test_exact_is_legal_and_never_dearer_than_the_baselines(graph: Graph, pairing: bool, pair_levels: int) -> None:
    never_dearer(graph, pairing, pair_levels)


@QUICK
@given(graph=graphs(size=24, levels=5, work=True), pair_levels=st.integers(0, 1))
def test_exact_is_never_dearer_where_pairs_have_their_own_prices(graph: Graph, pair_levels: int) -> None:
    never_dearer(graph, True, pair_levels, pairs=True)


@pytest.mark.slow
@settings(QUICK, max_examples=2000)
@given(graph=graphs(size=32, levels=5, work=True), pairing=st.booleans(), pair_levels=st.integers(0, 1))
def test_exact_is_never_dearer_over_many_larger_graphs(graph: Graph, pairing: bool, pair_levels: int) -> None:
    never_dearer(graph, pairing, pair_levels)


def never_dearer(graph: Graph, pairing: bool, pair_levels: int, *, pairs: bool = False) -> None:
    """The exact placement is legal, exists where a baseline does, and costs no more."""
    set_, rules = params(5, pair_levels=pair_levels), Rules(pairing=pairing)
    exact = placed(graph, set_, work=True, rules=rules, pairs=pairs)
    for algorithm in ("greedy", "shortest-path"):
        baseline = placed(graph, set_, work=True, rules=rules, algorithm=algorithm, pairs=pairs)
        assert exact is not None or baseline is None
        if exact is not None and baseline is not None:
            assert exact.seconds <= baseline.seconds + 1e-9
    if exact is not None:
        check(graph, exact, set_)


@QUICK
@given(graph=graphs(size=24, levels=5))
def test_pairing_never_costs_more(graph: Graph) -> None:
    alone = placed(graph, params(5), work=False, rules=Rules(pairing=False))
    paired = placed(graph, params(5), work=False, rules=Rules())
    assert (alone is None) == (paired is None)
    if alone is not None and paired is not None:
        assert paired.seconds <= alone.seconds + 1e-9


@settings(QUICK, max_examples=60)
@given(graph=graphs(size=20, levels=4), spare_last=st.booleans())
def test_exact_without_pairing_equals_the_integer_programme(graph: Graph, spare_last: bool) -> None:
    equals_the_oracle(graph, spare_last)


@pytest.mark.slow
@settings(QUICK, max_examples=1000)
@given(graph=graphs(size=32, levels=5), spare_last=st.booleans())
def test_exact_equals_the_integer_programme_over_many_larger_graphs(graph: Graph, spare_last: bool) -> None:
    equals_the_oracle(graph, spare_last, 5)


def equals_the_oracle(graph: Graph, spare_last: bool, levels: int = 4) -> None:
    """Same price as the integer programme, or no placement in both."""
    pytest.importorskip("scipy", reason="the integer programme needs scipy")
    from tests.planning.oracle import least_refresh_seconds

    plain = Graph(nodes=tuple(_within(node) for node in graph.nodes), required=graph.required)
    found = placed(plain, params(levels), work=False, rules=Rules(pairing=False, spare_last=spare_last))
    if found is None:
        with pytest.raises(PlanError):
            least_refresh_seconds(plain, params(levels), table(work=False), spare_last=spare_last)
    else:
        best = least_refresh_seconds(plain, params(levels), table(work=False), spare_last=spare_last)
        assert found.seconds == pytest.approx(best, abs=1e-6)


def _within(node: Node) -> Node:
    return replace(node, bound=1.0)


def test_a_chain_needs_one_refresh_every_levels_products() -> None:
    nodes = [Node(name="x", operator="t", period=SLOTS, fixed=4)]
    nodes += [Node(name=f"m{i}", operator="t", inputs=(i,), costs=(1,), period=SLOTS) for i in range(12)]
    placement = place(Graph(nodes=tuple(nodes), required={}), params(4), table(work=False))
    assert placement.bootstraps == 2  # 4 + 4 + 4 products
    assert placement.refreshed == {4, 8}


def test_two_scalars_share_a_bootstrap_and_the_wide_value_is_spared() -> None:
    """x is wide, n and d are scalars that end together: one shared sparse bootstrap beats lifting anything else."""
    nodes = (
        Node(name="x", operator="t", period=SLOTS, fixed=3),
        Node(name="d", operator="t", inputs=(0,), costs=(2,), period=1),
        Node(name="n", operator="t", inputs=(0,), costs=(2,), period=1),
        Node(name="d1", operator="t", inputs=(1,), costs=(1,), period=1),
        Node(name="n1", operator="t", inputs=(2, 1), costs=(1, 1), period=1),
        Node(name="y", operator="t", inputs=(3, 4), costs=(1, 1), period=1),
        Node(name="z", operator="t", inputs=(5, 0), costs=(1, 1), period=SLOTS),
    )
    graph = Graph(nodes=nodes, required={})
    alone = place(graph, params(3), table(work=False), rules=Rules(pairing=False))
    paired = place(graph, params(3), table(work=False))
    assert (alone.bootstraps, alone.seconds) == (2, 1.0)
    assert (paired.bootstraps, paired.pairs, paired.seconds) == (1, 1, 0.5)
    assert 0 not in paired.refreshed


def test_the_last_solver_result_is_spared_by_default() -> None:
    nodes = (
        Node(name="x", operator="t", period=SLOTS, fixed=3),
        Node(name="y", operator="t", inputs=(0,), costs=(2,), period=8),
        Node(name="r", operator="t", inputs=(1,), costs=(1,), period=1, last=True),
        Node(name="z", operator="t", inputs=(2,), costs=(1,), period=SLOTS),
    )
    graph = Graph(nodes=nodes, required={})
    assert place(graph, params(3), table(work=False)).refreshed == {1}
    assert place(graph, params(3), table(work=False), rules=Rules(spare_last=False)).refreshed == {2}


def test_work_runs_at_the_lowest_level_that_serves() -> None:
    nodes = (
        Node(name="x", operator="t", period=SLOTS, fixed=5),
        Node(name="m", operator="t", inputs=(0,), costs=(1,), period=SLOTS, work={"multiply": 1}),
        Node(name="y", operator="t", inputs=(1,), costs=(1,), period=SLOTS, work={"multiply": 1}),
    )
    placement = place(Graph(nodes=nodes, required={2: 1}), params(5), table(work=True))
    assert placement.before == (5, 2, 1)
    assert placement.available(Graph(nodes=nodes, required={2: 1})) == [(), (5,), (2,)]
    assert placement.work_seconds == (1 + 3 * 3) / 64 + (1 + 3 * 2) / 64


@pytest.mark.parametrize(
    ("engine", "bits", "scale", "missing"),
    [
        ("fideslib", 8.0, 4.0, 0.0),  # 2^-14 in noise of 2^-20: six bits, two short
        ("fideslib", 12.0, 32.0, 1.0),  # the reach is 32 times the bound, a bit short
        ("native", 8.0, 4.0, 0.0),
        ("native", 12.0, 8.0, 3.0),  # noise grows with what is above one
        ("openfhe", 12.0, 1.0, 3.0),  # and here with every bound
        ("fideslib", None, 1.0, 0.0),
    ],
)
def test_a_small_value_is_multiplied_before_and_divided_after(
    engine: str, bits: float | None, scale: float, missing: float
) -> None:
    nodes = [Node(name="x", operator="t", period=SLOTS, fixed=3, bound=1.0)]
    small = {"bound": 2.0**-3, "least": 2.0**-14}
    nodes += [Node(name=f"m{i}", operator="t", inputs=(i,), costs=(1,), period=SLOTS, **small) for i in range(5)]
    graph = Graph(nodes=tuple(nodes), required={})
    set_ = replace(params(3, noise=2.0**-20), engine=engine)
    placement = place(graph, set_, table(work=False), rules=Rules(precision=bits))
    (refresh,) = placement.refreshes
    assert refresh.scales == (scale,)
    assert refresh.after == (3 if scale == 1.0 else 2,)
    assert (refresh.toll, placement.price) == (missing, placement.seconds + missing)


def test_a_value_that_a_refresh_would_drown_is_refreshed_elsewhere_even_for_one_more() -> None:
    """Three levels, six products: one refresh is enough at the third value, which keeps no bit there."""
    bounds = {"bound": 1.0, "least": 1.0}
    nodes = [Node(name="x", operator="t", period=SLOTS, fixed=3)]
    for i in range(6):
        size = {"bound": 1.0, "least": 2.0**-20} if i == 2 else bounds
        nodes.append(Node(name=f"m{i}", operator="t", inputs=(i,), costs=(1,), period=SLOTS, **size))
    graph, set_ = Graph(nodes=tuple(nodes), required={}), params(3, noise=2.0**-20, reach=1.0)
    assert place(graph, set_, table(work=False)).refreshed == {3}
    found = place(graph, set_, table(work=False), rules=Rules(precision=8.0))
    assert (found.bootstraps, 3 in found.refreshed) == (2, False)


@pytest.mark.parametrize(("noise", "scale", "missing"), [(2.0**-22, 1.0, 0.0), (2.0**-17, 32.0, 0.0)])
def test_bits_count_beside_the_noise_that_rules_say(noise: float, scale: float, missing: float) -> None:
    """Of a set whose own refreshes err by 2^-20 of their bound, so that enlarging a value would gain nothing."""
    nodes = [Node(name="x", operator="t", period=SLOTS, fixed=3, bound=1.0)]
    small = {"bound": 2.0**-3, "least": 2.0**-14}
    nodes += [Node(name=f"m{i}", operator="t", inputs=(i,), costs=(1,), period=SLOTS, **small) for i in range(5)]
    set_ = replace(params(3, noise=2.0**-20), engine="openfhe")
    rules = Rules(precision=8.0, noise=lambda bound: noise)
    placement = place(Graph(nodes=tuple(nodes), required={}), set_, table(work=False), rules=rules)
    (refresh,) = placement.refreshes
    assert (refresh.scales, refresh.toll) == ((scale,), missing)


def test_a_precision_is_a_number_of_bits() -> None:
    for bits in (-1.0, 61.0, math.nan):
        with pytest.raises(ConfigError, match="bits from 0 to 60"):
            Rules(precision=bits)


def test_check_refuses_a_forged_placement() -> None:
    nodes = [Node(name="x", operator="t", period=SLOTS, fixed=2)]
    nodes += [Node(name=f"m{i}", operator="t", inputs=(i,), costs=(1,), period=SLOTS) for i in range(4)]
    graph = Graph(nodes=tuple(nodes), required={})
    good = place(graph, params(2), table(work=False))
    forged = Placement(algorithm="forged", params="p", cost="c", before=good.before, refreshes=(), work_seconds=0.0)
    with pytest.raises(PlanError, match=r"m\d: reads m\d at level 0, needs"):
        check(graph, forged, params(2))
