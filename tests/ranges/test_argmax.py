# SPDX-License-Identifier: Apache-2.0
"""The argmax schedule on synthetic logits: the largest entry wins, ties share, leaders stay up."""

from __future__ import annotations

import numpy as np
import pytest

from heatfhe.approx import cutmax
from heatfhe.errors import ConfigError
from heatfhe.ranges import fit_argmax
from heatfhe.ranges.argmax import shorten


def rows(seed: int, count: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = -30.0 + 2.0 * rng.standard_normal((count, size))
    x[:, : min(20, size)] += 6.0 + np.cumsum(rng.exponential(0.3, (count, min(20, size))), axis=1)
    return x


@pytest.mark.parametrize("size", [32, 256, 1024])
def test_the_largest_entry_wins_on_rows_it_has_not_seen(size: int) -> None:
    made = fit_argmax(rows(0, 200, size))
    x = rows(1, 200, size)
    hot = cutmax(x, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=size)
    top = np.sort(x, axis=-1)
    clear = top[:, -1] - top[:, -2] > 0.2
    assert clear.sum() > 50
    assert (hot.argmax(-1) == x.argmax(-1))[clear].all()
    assert hot.max(-1)[clear].min() > 0.9
    assert made.smallest_leader > 1e-5  # what left a round; it entered the power at its root
    assert all(r.leader ** (1 / r.power) > 0.2 for r in made.schedule.rounds)
    assert 0.0 <= made.near_ties < 0.5


def test_a_tie_is_shared() -> None:
    x = rows(2, 50, 64)
    x[0] = -30.0
    x[0, 5] = x[0, 9] = -20.0
    made = fit_argmax(x)
    hot = cutmax(x[:1], made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=64)[0]
    assert hot[5] == pytest.approx(0.5, abs=0.01)
    assert hot[5] == hot[9]
    assert made.near_ties >= 1 / 50


def test_a_deep_negative_tail_does_not_win() -> None:
    x = -rows(3, 80, 64)  # the most negative entries lie much further out than the leaders
    made = fit_argmax(x)
    assert made.schedule.rounds[0].shift > 0
    hot = cutmax(x, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=64)
    assert (hot.argmax(-1) == x.argmax(-1)).all()


def test_refuses_what_has_no_largest_entry() -> None:
    for bad, message in (
        (np.ones((3, 8)), "constant"),
        (np.full((2, 8), np.nan), "non-finite"),
        (np.ones((2, 1)), "two logits"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit_argmax(bad)


def test_a_long_row_in_short_gives_the_same_schedule() -> None:
    x = rows(4, 60, 5000)
    short = [shorten(r) for r in x]
    values, weights = np.stack([v for v, _ in short]), short[0][1]
    assert weights.sum() == 5000
    assert np.allclose(values @ weights, x.sum(-1))
    long, brief = fit_argmax(x), fit_argmax(values, weights=weights)
    assert long.schedule.levels == brief.schedule.levels
    for a, b in zip(long.schedule.rounds, brief.schedule.rounds):
        assert a.divisor == pytest.approx(b.divisor, rel=1e-2)
        assert a.hi == pytest.approx(b.hi, rel=1e-2)
