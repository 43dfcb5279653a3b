# SPDX-License-Identifier: Apache-2.0
"""Settling rounds: shares sharpen by the product of the powers, ties stay shared, no row grows or is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import ArgmaxSchedule, Depth, ReciprocalFit, Settle, cutmax, fit_schedule, fit_settle
from heatfhe.approx.argmax import shares
from heatfhe.approx.argmax_settle import ALIKE, LOOSE, tied_sum
from heatfhe.errors import ConfigError
from tests.approx.rows import mean, small_schedule, synthetic_logits, total

SOLVERS = ("plain", "relaxed")


def settled(x: Any, rounds: int, solver: str = "plain") -> Any:
    """Rows of shares, divided once more and settled."""
    final = ReciprocalFit(lo=0.5, hi=1.5)
    schedule = ArgmaxSchedule(
        rounds=small_schedule().rounds,
        final=final,
        final_count=final.smallest_count(1e-6),
        settle=fit_settle(rounds, solver=solver),
    )
    return shares(np.asarray(x, dtype=np.float64), schedule, total)


def alike(words: int, size: int = 40) -> Any:
    """A row shared by so many equal words."""
    return np.where(np.arange(size) < words, 1.0 / words, 0.0)


def test_a_doubling_takes_four_levels_and_the_last_one_its_tolerance() -> None:
    assert [(s.power, s.count) for s in fit_settle(3)] == [(2, 1), (2, 1), (2, 3)]
    base = ArgmaxSchedule(rounds=small_schedule().rounds, final=ReciprocalFit(lo=0.1, hi=1.0), final_count=4)
    made = [replace(base, settle=fit_settle(n)) for n in (0, 1, 2, 6)]
    assert [m.levels - base.levels for m in made] == [0, 6, 10, 26]  # the first division gives its product away
    assert [m.sharpening // base.sharpening for m in made] == [1, 2, 4, 64]
    row = Depth(0)
    assert shares(row, made[-1], lambda v: v).spent == made[-1].levels - sum(r.levels for r in base.rounds)
    assert fit_settle(0) == ()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rounds=st.integers(1, 8),
    words=st.integers(1, 40),
    steep=st.floats(0.3, 20.0),
    solver=st.sampled_from(SOLVERS),
)
def test_order_is_kept_and_ratios_are_raised(seed: int, rounds: int, words: int, steep: float, solver: str) -> None:
    """Of any row that up to ALIKE words share, told by the sum of its squares."""
    share = np.sort(np.random.default_rng(seed).dirichlet(np.full(words, 1.0 / steep)))[::-1]
    out = settled(share, rounds, solver)
    assert (out >= 0.0).all()
    assert out.sum() <= 1.0 + 1e-3
    if not out[0]:
        assert share @ share < 0.5 / ALIKE  # only a row that far more words share is lost
        return
    assert (np.diff(out) <= 0.0).all()
    wanted = out[0] * (share / share[0]) ** (2.0**rounds)  # not over out[0]: a row nearly lost has subnormal entries
    np.testing.assert_allclose(out, wanted, rtol=1e-9, atol=1e-300)
    if share @ share >= 1.0 / ALIKE:
        assert abs(out.sum() - 1.0) <= 1e-3


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("rounds", [1, 3, 6, 10])
@pytest.mark.parametrize("words", range(1, ALIKE + 1))
def test_equal_words_keep_their_shares(words: int, rounds: int, solver: str) -> None:
    out = settled(alike(words), rounds, solver)
    np.testing.assert_allclose(out, alike(words), atol=1e-3 / words)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_row_that_more_words_share_only_shrinks(solver: str) -> None:
    """What docs/math/argmax.md says of five, six and eight equal words after six rounds; it never grows."""
    left = {words: settled(alike(words), 6, solver).sum() for words in (5, 6, 8, 12, 40)}
    if solver == "plain":
        assert [left[words] for words in (5, 6, 8)] == pytest.approx([0.84, 0.052, 2.3e-6], rel=0.03)
    assert left[5] > 0.8
    assert all(0.0 <= v <= 1.0 for v in left.values())
    nearly = alike(8) * np.linspace(1.0, 0.7, 40)  # eight words, the next one 4 to 8 percent below
    assert settled(nearly / nearly.sum(), 6, solver).sum() > 0.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), least=st.floats(1.0 - LOOSE, 1.0), words=st.integers(1, ALIKE))
def test_the_error_of_a_loose_division_and_noise_are_taken_away(seed: int, least: float, words: int) -> None:
    """A row of 0.9 to 1 in all with noise of 1e-4 on each of a thousand entries, as a refresh leaves it."""
    rng = np.random.default_rng(seed)
    row = least * alike(words, 1000) + 1e-4 * rng.standard_normal(1000)
    schedule = replace(small_schedule(), final=ReciprocalFit(lo=0.5, hi=1.5), final_count=1, settle=fit_settle(4))
    out = shares(row, schedule, total)
    assert abs(out.sum() - 1.0) <= 1e-3
    assert np.abs(out[words:]).max() < 1e-30
    assert out[:words].max() / out[:words].min() == pytest.approx((row[:words].max() / row[:words].min()) ** 16)


def test_a_near_tie_of_logits_ends_apart() -> None:
    x = synthetic_logits(24, 600, seed=0)
    powers = (3, 3, 3, 7)
    plain, made = small_schedule(), fit_schedule(x, powers=powers, margin=1.15, settle=6)
    assert made.rounds == plain.rounds
    assert made.sharpening == 64 * plain.sharpening
    order = np.argsort(-x, axis=-1)
    each = np.arange(len(x))
    x[each, order[:, 1]] = x[each, order[:, 0]] - 0.02
    before, after = (cutmax(x, s, mean=mean, size=600, total=total)[each, order[:, 0]] for s in (plain, made))
    assert before.max() < 0.7
    assert after.min() > 0.95


@pytest.mark.parametrize("size", [600, 6000])
def test_two_equal_words_survive_a_calibration_that_saw_no_tie(size: int) -> None:
    """Its first division did not have to reach so far down before: the row came out at a half, or a tenth."""
    x = synthetic_logits(24, size, seed=0)
    order = np.argsort(-x, axis=-1)
    assert (np.diff(-np.take_along_axis(x, order[:, :2], axis=-1)) > 0.0).all()
    powers = (3, 3, 3, 7)
    plain, made = (fit_schedule(x, powers=powers, margin=1.15, settle=n) for n in (0, 6))
    assert made.final is not None
    assert plain.final is not None
    last = made.rounds[-1]
    assert made.final.lo <= tied_sum(size, last.divisor, last.power) < plain.final.lo
    each = np.arange(len(x))
    x[each, order[:, 1]] = x[each, order[:, 0]]
    hot = cutmax(x, made, mean=mean, size=size, total=total)
    np.testing.assert_allclose(hot[each, order[:, 0]], 0.5, atol=1e-3)
    np.testing.assert_allclose(hot[each, order[:, 1]], 0.5, atol=1e-3)


def test_what_cannot_work_is_refused() -> None:
    fit = ReciprocalFit(lo=0.2, hi=1.1)
    with pytest.raises(ConfigError, match="power must be a whole number of at least 2"):
        Settle(power=1, fit=fit, count=1)
    with pytest.raises(ConfigError, match="count must be a whole number of at least 1"):
        Settle(power=2, fit=fit, count=0)
    with pytest.raises(ConfigError, match="give the division that makes them, final"):
        ArgmaxSchedule(rounds=small_schedule().rounds, settle=fit_settle(1))
    with pytest.raises(ConfigError, match="settling rounds must be a whole number"):
        fit_settle(-1)
    with pytest.raises(ConfigError, match="3 settling rounds need the last division"):
        fit_schedule(synthetic_logits(4, 100, seed=0), powers=(3, 3), final_tolerance=None, settle=3)
    with pytest.raises(ConfigError, match="solver must be one of"):
        fit_settle(1, solver="below")
