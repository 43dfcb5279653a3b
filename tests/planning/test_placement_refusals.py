# SPDX-License-Identifier: Apache-2.0
"""What no placement can mend is refused with the node, the numbers and what would help."""

from __future__ import annotations

import pytest

from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph, Node
from heatfhe.planning.placement import ALGORITHMS, Rules, place
from tests.planning.graphs import SLOTS, params, table


def chain(*costs: int, **facts: object) -> Graph:
    """x at level 4, then one node a cost; facts go to the first node after x."""
    nodes = [Node(name="x", operator="t", period=SLOTS, fixed=4)]
    for i, c in enumerate(costs):
        extra = facts if i == 0 else {}
        nodes.append(Node(name=f"m{i}", operator="t", inputs=(i,), costs=(c,), period=SLOTS, **extra))  # type: ignore[arg-type]
    return Graph(nodes=tuple(nodes), required={})


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_polynomial_deeper_than_the_levels(algorithm: str) -> None:
    with pytest.raises(PlanError) as caught:
        place(chain(1, 6), params(4), table(work=False), algorithm=algorithm)
    message = str(caught.value)
    assert message.startswith("m1: spends 6 levels between two refreshes")
    assert "leaves 4" in message
    assert "parameters with 6 usable levels" in message


def test_depth_through_a_value_that_may_not_be_refreshed() -> None:
    with pytest.raises(PlanError, match=r"m1: spends 5 levels.* 5 usable levels"):
        place(chain(3, 2, refreshable=False), params(4), table(work=False))


def test_the_last_solver_result_is_named_as_a_way_out() -> None:
    graph = chain(3, 2, last=True)
    with pytest.raises(PlanError, match="letting the last result of a solver be refreshed"):
        place(graph, params(4), table(work=False))
    assert place(graph, params(4), table(work=False), rules=Rules(spare_last=False)).bootstraps == 1


def test_a_magnitude_beyond_the_reach() -> None:
    graph = chain(3, 2, bound=1e5)
    with pytest.raises(PlanError) as caught:
        place(graph, params(4, reach=4.0), table(work=False))
    message = str(caught.value)
    assert message.startswith("m0: magnitude 100000 is beyond what a bootstrap")
    assert "reach 4, or 4096 with a division" in message
    assert "down by 24.4" in message


def test_a_magnitude_elsewhere_is_not_blamed() -> None:
    with pytest.raises(PlanError, match="m2: spends 6 levels between two refreshes"):
        place(chain(1, 1, 6, bound=1e5), params(4, reach=4.0), table(work=False))


def test_a_magnitude_within_reach_is_divided_before_at_the_price_of_a_level() -> None:
    placement = place(chain(3, 2, bound=100.0), params(4, reach=4.0), table(work=False))
    (refresh,) = placement.refreshes
    assert refresh.scales == (1 / 25,)
    assert placement.before[1] == 1  # one level is left for the division
    with pytest.raises(PlanError, match="m1: "):
        place(chain(4, 2, bound=100.0), params(4, reach=4.0), table(work=False))


def test_an_output_that_cannot_reach_its_level() -> None:
    graph = Graph(nodes=chain(1, refreshable=False).nodes, required={1: 4})
    with pytest.raises(PlanError, match="m0: must end at level 4 and cannot be above 3"):
        place(graph, params(4), table(work=False))


def test_an_input_above_the_parameters() -> None:
    with pytest.raises(PlanError, match="x: enters at level 4, but insecure-test has only 3 usable levels"):
        place(chain(1), params(3), table(work=False))


def test_a_cost_table_that_misses_an_instruction() -> None:
    whole = table(work=True)
    poor = CostTable(
        name="poor", provenance="test", hardware="a desk", slots=SLOTS, bootstrap=whole.bootstrap,
        seconds={w: s for w, s in whole.seconds.items() if w != "multiply"},
    )  # fmt: skip
    graph = chain(1, work={"multiply": 3})
    with pytest.raises(PlanError, match=r"m0: cost table poor \(a desk\) has no price for 'multiply', of which 3"):
        place(graph, params(4), poor)


def test_an_unknown_algorithm() -> None:
    with pytest.raises(ConfigError, match="'lucky'; have: exact, greedy, shortest-path"):
        place(chain(1), params(4), table(work=False), algorithm="lucky")
