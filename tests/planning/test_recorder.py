# SPDX-License-Identifier: Apache-2.0
"""Recording: tracers run the same approximations, refuse to be looked at, and become nodes with the right costs."""

from __future__ import annotations

import numpy as np
import pytest

from heatfhe.approx import Depth, ReciprocalFit, evaluate, fit_inverse_sqrt, inverse_sqrt, reciprocal
from heatfhe.errors import ConfigError, ObliviousError
from heatfhe.planning.blocks import Known, Relative, Share, Shift, Store, Turned
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.recorder import Recorder, Traced
from heatfhe.planning.recording import Recording, finish
from heatfhe.planning.vectors import Bias, Diagonal, Front, Mask, Position, Skew, Turn
from heatfhe.planning.weights import Dense, Embedding, Projection, Unembedding, parse_weight

FIT = fit_inverse_sqrt(0.1, 10.0)


def spent(recording: Recording) -> int:
    """Levels from the only input to the only output."""
    levels = 100
    graph = recording.graph(levels=levels, fixed={}, required={})
    have: list[int] = []
    for node in graph.nodes:
        have.append(levels if not node.inputs else min(have[u] - c for u, c in zip(node.inputs, node.costs)))
    return levels - have[recording.home[next(iter(recording.outputs.values()))]]


def recorder() -> tuple[Recorder, Traced]:
    r = Recorder(slots=64, rows=16)
    x = r.input("x", period=1, bound=1.0)
    return r, x


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (3, 2), (5, 1)])
def test_recorded_depth_is_the_approximations_own(counts: tuple[int, int]) -> None:
    r, x = recorder()
    r.output("y", inverse_sqrt(r.domain(x, 0.1, 10.0), FIT, *counts, gain=2.0))
    assert spent(finish(r)) == inverse_sqrt(Depth(), FIT, *counts, gain=2.0).spent


@pytest.mark.parametrize("degree", [1, 2, 3, 7, 8, 15, 27, 31, 59])
@pytest.mark.parametrize("contract", [True, False])
def test_a_polynomial_is_one_node_unless_cuts_are_wanted(degree: int, contract: bool) -> None:
    r = Recorder(slots=64, rows=16, contract=contract)
    x = r.domain(r.input("x", period=8, bound=1.0), -1.0, 1.0)
    c = list(np.random.default_rng(degree).standard_normal(degree + 1))
    r.output("y", evaluate(c, x))
    found = finish(r)
    assert spent(found) == evaluate(c, Depth()).spent == degree.bit_length()
    assert len(found.groups) == 2 if contract else len(found.groups) >= 2


def test_sampled_magnitudes_bound_what_a_solver_holds() -> None:
    fit = ReciprocalFit(lo=0.5, hi=8.0)
    r, x = recorder()
    y = reciprocal(r.domain(x, 0.5, 8.0), fit, 4, gain=3.0)
    r.output("y", y)
    found = finish(r)
    exact = np.abs(reciprocal(np.linspace(0.5, 8.0, 10001), fit, 4, gain=3.0)).max()
    bound, power = found.bound(y.id)
    assert exact <= bound <= 1.05 * exact
    assert power == 0.0


def test_what_noise_counts_beside_is_followed_back_through_a_solver() -> None:
    """A number that is divided by counts beside itself; what has converged, beside more."""
    r, x = recorder()
    d = r.domain(x, 0.01, 1.0)
    fit, seen = ReciprocalFit(lo=0.01, hi=1.0), len(r.facts)
    r.weigh(reciprocal(d, fit, 8))
    assert x.facts.least == pytest.approx(0.01, rel=0.02)  # eight iterations converge: d log(1/x) = -dx / x
    step, grid = 1e-7, x.facts.samples[0]
    moved = np.abs(reciprocal(grid + step, fit, 8) / reciprocal(grid, fit, 8) - 1).max() / step
    assert x.facts.least == pytest.approx(1 / moved, rel=1e-3)
    assert all(f.least > 0 for f in r.facts[seen:])
    r.weigh(x, part=1e-3)
    assert x.facts.least == pytest.approx(0.01, rel=0.02)  # the smallest that anybody said
    r.weigh(x, part=10.0)
    assert x.facts.least == pytest.approx(0.001)


def test_a_row_counts_beside_what_its_sum_says_and_its_root_beside_the_root() -> None:
    r, x = recorder()
    y = r.domain(x, -1.0, 1.0) * 0.5 + 0.5
    row = y * y
    r.weigh(row, 1e-4)
    assert row.facts.least == pytest.approx(1e-4)
    assert y.facts.least == pytest.approx(0.5e-2, rel=0.3)  # 2 y / max(1e-4, y^2) is largest at y = 1e-2
    for known in (y, r.root(row)):
        assert known.facts.bounds().max() == 1.0
    with pytest.raises(ConfigError, match="not the square"):
        r.root(y)
    bounded = r.assume(r.input("z", period=1, bound=1.0), 1.0)
    square = bounded * bounded
    r.weigh(square, 1e-4)
    assert (square.facts.least, bounded.facts.least) == pytest.approx((1e-4, 1e-2))
    assert r.input("unknown", period=1, bound=1.0).facts.least == 0.0


def test_bounds_follow_the_row_length() -> None:
    r, x = recorder()
    rows = Public(rows=1.0)
    y = r.domain(x, 1.0, 2.0, rows=1.0) * (1.0 / rows)
    z = x * rows
    r.output("y", y)
    r.output("z", z)
    found = finish(r)
    assert found.bound(x.id)[1] == 1.0
    assert found.bound(y.id)[1] == 0.0
    assert found.bound(z.id)[1] == 2.0


def test_free_operations_on_shared_values_are_views_and_others_join_their_node() -> None:
    r, x = recorder()
    d = x * x
    f = 2.0 - d  # a view: d is read below as well
    r.output("n", f * d)
    found = finish(r)
    assert len(found.groups) == 3
    assert found.home[f.id] == found.home[d.id]
    r, x = recorder()
    r.output("y", (x * x + 1.0) * 0.3)  # the constant joins the product's node
    assert len(finish(r).groups) == 3


def test_sums_join_operands_nobody_else_reads() -> None:
    r, x = recorder()
    r.output("y", x * 0.5 + (x * x) * 0.25)
    graph = finish(r).graph(levels=8, fixed={}, required={})
    assert [n.costs for n in graph.nodes] == [(), (1,), (1, 1)]


def test_unused_operations_are_dropped_and_sums_of_products_fused() -> None:
    r, x = recorder()
    _ = x * x
    with r.group():
        y = x * 0.5 + x.rotate(1) * 0.25 + x.rotate(2) * 0.125
    r.output("y", y)
    found = finish(r)
    assert [op.kind for op in found.ops] == ["input", "rotate", "rotate", "multiply_plain_sum"]


def test_a_group_hands_on_one_value() -> None:
    r, x = recorder()
    with r.group():
        y = x * x
        z = y * y
    r.output("w", y * z)
    with pytest.raises(ConfigError, match="more than one value"):
        finish(r)


def test_tracers_refuse_to_be_looked_at() -> None:
    _, x = recorder()
    for look in (bool, float, int, len, abs, list, np.asarray):
        with pytest.raises(ObliviousError):
            look(x)
    with pytest.raises(ObliviousError):
        _ = x > 0
    with pytest.raises(ObliviousError):
        _ = x / 2


def test_publics_fold_and_read_back() -> None:
    rows, mask = Public(rows=1.0), Public.of(Mask.CAUSAL)
    p = 3.0 * (1.0 / rows) * mask * 0.5
    assert p.key == "1.5*causal*rows^-1"
    assert Public.parse(p.key) == p
    assert (rows * (1.0 / rows)) == Public(1.0)
    assert np.array_equal(p.value(4.0, np.array([0.0, 1.0])), np.array([0.0, 0.375]))
    root = (rows * 4.0).power(-0.5)
    assert Public.parse(root.key) == root
    assert root.value(9.0) == pytest.approx(1 / 6)
    assert [q.moves for q in (p, root, Public(2.0), Public.of(Mask.IDLE))] == [True, True, False, False]
    for impossible in (lambda: mask * mask, mask.inverse, lambda: mask.power(0.5)):
        with pytest.raises(ConfigError, match="slot vector"):
            impossible()


WEIGHTS = {
    "h.0.attn.c_attn/k": Projection("h.0.attn.c_attn", "k"),
    "h.0.mlp.c_fc": Dense("h.0.mlp.c_fc"),
    "h.0.mlp.c_fc.3": Dense("h.0.mlp.c_fc", 3),
    "h.0.mlp.c_fc~": Dense("h.0.mlp.c_fc", periodic=True),
    "head.0": Unembedding(False, 0),
    "centred": Unembedding(True),
    "embedding.12": Embedding(12),
}
PLAINTEXTS = {
    "0.5": Public(0.5),
    "-2.0*rows": Public(-2.0, 1.0),
    "1.0*causal*rows^-0.03125": Public(1.0, -(2.0**-5), Mask.CAUSAL),
    "1.0*rows^0.0009765625": Public(1.0, 2.0**-10),
    "1.0*rows^2*words": Public(1.0, 2.0, Mask.WORDS),
    "1.0*first.hidden": Public.of(Mask.FIRST_HIDDEN),
    "1.0*append.v": Public.of(Mask.APPEND_V),
    "1.0*skew.3": Public.of(Skew(3)),
    "1.0*position": Public.of(Position()),
    "2.0*bias:h.0.attn.c_attn/k": Public(2.0, 0.0, Bias(Projection("h.0.attn.c_attn", "k"))),
    "1.0*bias:head": Public.of(Bias(Unembedding(False))),
    "0.5*share:2:3:32": Public(0.5, 0.0, Share(2, 3, 32)),
    "1.0*turn:sin:10000.0:append.k": Public.of(Turn(Mask.APPEND_K, 1e4, True)),
    "1.0*front:h.0.attn/k": Public.of(Front("h.0.attn/k")),
    "1.0*shift:3:-2": Public.of(Shift(3, -2)),
    "1.0*shift:3:-2:1": Public.of(Shift(3, -2, 1)),
    "1.0*store:1:0:2": Public.of(Store(1, 0, 2)),
    "0.5*turned:cos:10000.0:3:store:1:0:2": Public(0.5, 0.0, Turned(Store(1, 0, 2), 1e4, False, 3)),
    "0.5*relative:sin:500.0:3": Public(0.5, 0.0, Relative(500.0, True, 3)),
    "1.0*known:model.layers.0.self_attn": Public.of(Known("model.layers.0.self_attn")),
    "1.0*map:h.0.attn.c_attn/q:-4:1": Public.of(Diagonal(Projection("h.0.attn.c_attn", "q"), -4, 1)),
}


@pytest.mark.parametrize("key", WEIGHTS)
def test_weights_and_their_keys(key: str) -> None:
    assert parse_weight(key) == WEIGHTS[key]
    assert WEIGHTS[key].key == key
    assert hash(parse_weight(key)) == hash(WEIGHTS[key])


@pytest.mark.parametrize("key", PLAINTEXTS)
def test_plaintexts_and_their_keys(key: str) -> None:
    assert Public.parse(key) == PLAINTEXTS[key]
    assert PLAINTEXTS[key].key == key
    assert hash(Public.parse(key)) == hash(PLAINTEXTS[key])


@pytest.mark.parametrize(
    "key",
    [
        "", "mask*2", "1", "nan", "1e999", "1.0*", "1.0*nobody", "1.0*causal*causal", "1.0*rows*rows", "1.0*rows^1",
        "1.0*rows^65", "1.0*rows^nan", "1.0*rows^0", "1.0*causal^2", "1.0*first.", "1.0*append.q", "1.0*skew.x",
        "1.0*skew.03", "1.0*map:a:b", "1.0*map:a:0:x", "1.0*bias:a/b/c", "1.0*bias:embedding.0", "1.0*what:a",
        "1.0*share:0:2", "1.0*share:3:3:1", "1.0*share:-1:2:1", "1.0*share:0:2:0", "1.0*shift:1:2:0",
        "1.0*shift:1:2:3:4", "1.0*shift:1", "1.0*front",
        "1.0*relative:cos:1e4:1", "1.0*relative:tan:10000.0:1", "1.0*relative:cos:10000.0:1:2",
        "1.0*turned:cos:10000.0:1", "1.0*turned:cos:10000.0:1:causal", "1.0*turned:cos:10000.0:1:shift:1:2",
        "1.0*turn:cos:10000.0:store:1:2",
        "1.0*skew." + "9" * 5000, "1.0*position^2", "1.0*words*rows",
    ],
)  # fmt: skip
def test_what_no_plaintext_is_written_as_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="not a plaintext's key"):
        Public.parse(key)


@pytest.mark.parametrize("key", ["a/x", "a/q/k", "head.65536"])
def test_what_no_weight_is_written_as_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=r"not a linear map's key|past the first"):
        parse_weight(key)


def test_operands_of_different_sizes_are_refused() -> None:
    r = Recorder(slots=64, rows=16)
    a, b = (r.input(n, period=1, bound=1.0, parts=k) for n, k in (("a", 2), ("b", 3)))
    with pytest.raises(ConfigError, match="do not meet"):
        _ = a + b
