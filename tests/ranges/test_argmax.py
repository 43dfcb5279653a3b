# SPDX-License-Identifier: Apache-2.0
"""The argmax schedule on synthetic logits: the largest entry wins, ties share, leaders stay up."""

from __future__ import annotations

import numpy as np
import pytest

from heatfhe.approx import cutmax, gumbel_bound, gumbel_noise, shorten
from heatfhe.errors import ConfigError, SiteError
from heatfhe.ranges import FitOptions, fit_argmax, sampled_rows


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


def test_settling_rounds_leave_fewer_ties() -> None:
    x = rows(0, 200, 256)
    order = np.argsort(-x[:20], axis=-1)
    x[np.arange(20), order[:, 1]] = x[np.arange(20), order[:, 0]] - 0.002
    plain, made = fit_argmax(x), fit_argmax(x, settle=5)
    assert made.schedule.rounds == plain.schedule.rounds
    assert made.schedule.sharpening == 32 * plain.schedule.sharpening
    assert plain.near_ties == 0.1
    assert made.near_ties == 0.0
    hot = cutmax(x, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=256)
    assert (hot.argmax(-1) == x.argmax(-1)).all()
    assert np.abs(hot.sum(-1) - 1.0).max() < 1e-3
    with pytest.raises(ConfigError, match="settle is a number of rounds from 0 to 16"):
        FitOptions(settle=17)


def test_a_deep_negative_tail_does_not_win() -> None:
    x = -rows(3, 80, 64)  # the most negative entries lie much further out than the leaders
    made = fit_argmax(x)
    assert made.schedule.rounds[0].shift > 0
    hot = cutmax(x, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=64)
    assert (hot.argmax(-1) == x.argmax(-1)).all()


def test_refuses_what_has_no_largest_entry() -> None:
    for bad, message in (
        (np.ones((3, 8)), "constant"),
        (np.full((2, 8), np.nan), "NaN"),
        (np.ones((2, 1)), "at least 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit_argmax(bad)


def test_a_long_row_in_short_gives_the_same_schedule() -> None:
    x = rows(4, 60, 5000)
    values, weights = shorten(x)
    assert weights.sum() == 5000
    assert np.allclose(values @ weights, x.sum(-1))
    long, brief = fit_argmax(x), fit_argmax(values, weights=weights)
    assert long.schedule.levels == brief.schedule.levels
    for a, b in zip(long.schedule.rounds, brief.schedule.rounds):
        assert a.divisor == pytest.approx(b.divisor, rel=1e-2)
        assert a.hi == pytest.approx(b.hi, rel=1e-2)


def noisy(seed: int, x: np.ndarray, temperature: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([row + gumbel_noise(rng, row.size, temperature) for row in x])


def test_a_schedule_for_sampling_holds_up_to_the_temperature_it_states() -> None:
    """Noise of four deviations of the logits, which a greedy schedule is lost under, and the smaller ones between."""
    rng, greedy = np.random.default_rng(0), 0.25 * rows(5, 150, 256)
    made = fit_argmax(np.concatenate([sampled_rows(r, 2.0, rng) for r in greedy]), temperature=2.0)
    assert made.temperature == 2.0
    assert made.near_ties > 0.0
    for temperature in (0.0, 0.7, 1.4, 2.0):
        x = noisy(1, 0.25 * rows(6, 200, 256), temperature)
        hot = cutmax(x, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=256)
        assert np.isfinite(hot).all()
        top, ends = np.sort(x, axis=-1), np.sort(hot, axis=-1)
        clear = ends[:, -2] < 0.1 * ends[:, -1]
        assert clear.mean() > 0.8
        assert (hot.argmax(-1) == x.argmax(-1))[clear].all()
        assert ends[clear, -1].min() > 0.9
        assert (top[:, -1] - top[:, -2])[~clear].max(initial=0.0) < 0.5


def test_sampled_rows_are_the_row_and_its_noise_within_the_bound() -> None:
    row, rng = rows(7, 1, 300)[0], np.random.default_rng(0)
    made = sampled_rows(row, 1.5, rng)
    assert made.shape == (3, 300)
    assert (made[0] == row).all()
    assert 0.0 < np.abs(made[1] - row).max() <= 0.75 * gumbel_bound(300)
    assert 0.0 < np.abs(made[2] - row).max() <= 1.5 * gumbel_bound(300)
    assert sampled_rows(row, 0.0, rng).shape == (1, 300)
    for bad in (-1.0, float("nan"), 1e3):
        with pytest.raises(ConfigError, match="temperature"):
            sampled_rows(row, bad, rng)


@pytest.mark.parametrize("size", [3.0, 30.0, 1e3, 1e5])
def test_a_token_far_from_all_others_is_refused_in_words(size: float) -> None:
    """An outsized embedding: now first by far, now last by far, in rows that are alike otherwise."""
    rows = np.random.default_rng(0).normal(size=(64, 50))
    rows[:, 7] = size * rows[:, 7] ** 3
    with pytest.raises(SiteError, match=r"argmax: no schedule .* lies (6\.9|7) .* of its 50: look for a token"):
        fit_argmax(rows)
    long = np.concatenate([rows, np.random.default_rng(1).normal(size=(64, 3000))], axis=1)
    long[:, 7] *= 100.0
    short, held = shorten(long)
    assert short.shape[1] < 3050
    with pytest.raises(SiteError, match="from the mean of its 3050"):
        fit_argmax(short, weights=held)
