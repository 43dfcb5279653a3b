# SPDX-License-Identifier: Apache-2.0
"""Schedules derived from logits: the leader is held, on rows seen and unseen, in few levels."""

from __future__ import annotations

import numpy as np
import pytest

from heatfhe.approx import (
    ArgmaxRound,
    ArgmaxSchedule,
    ChordSeed,
    cutmax,
    fit_schedule,
    shorten,
)
from heatfhe.errors import ConfigError
from tests.approx.rows import exact_rounds, mean, small_schedule, synthetic_logits, total

POWERS = (9, 3, 3, 3, 7)


def test_the_calibrated_shift_saves_the_leader_from_the_tail() -> None:
    rng = np.random.default_rng(3)
    x = np.clip(rng.normal(size=(8, 900)), -3.0, 3.0)
    x[:, 0] = np.linspace(3.8, 4.6, 8)
    x[:, 1] = -5.5
    plain = exact_rounds(x)
    assert (np.abs(plain).argmax(axis=-1) == 1).all()
    schedule = fit_schedule(x, powers=(3, 3, 3, 7, 9))
    assert schedule.rounds[0].shift > 0.0
    hot = cutmax(x, schedule, mean=mean, size=900, total=total)
    assert (np.abs(hot).argmax(axis=-1) == 0).all()
    assert hot[:, 0].min() > 0.99
    assert np.abs(hot[:, 1:]).max() < 1e-3


def test_a_schedule_from_logits_holds_the_leader() -> None:
    size = 3000
    x = synthetic_logits(48, size, seed=0)
    schedule = fit_schedule(x, powers=POWERS)
    raw = cutmax(x, ArgmaxSchedule(rounds=schedule.rounds), mean=mean, size=size, total=total)
    assert raw.max(axis=-1).min() >= 1e-2
    assert raw.max() <= 1.0
    assert [r.leader for r in schedule.rounds][-1] == pytest.approx(raw.max(axis=-1).min(), rel=0.05)
    hot = cutmax(x, schedule, mean=mean, size=size, total=total)
    assert (hot.argmax(axis=-1) == x.argmax(axis=-1)).all()
    np.testing.assert_allclose(hot.sum(axis=-1), 1.0, atol=2e-3)
    assert schedule.levels <= 73  # what a chord with hand-picked counts takes, without the final division


def test_a_schedule_serves_rows_it_has_not_seen() -> None:
    size = 3000
    schedule = fit_schedule(synthetic_logits(64, size, seed=0), powers=POWERS)
    x = synthetic_logits(200, size, seed=1)
    hot = cutmax(x, schedule, mean=mean, size=size, total=total)
    top = np.sort(x, axis=-1)
    clear = top[:, -1] - top[:, -2] > 0.1
    assert (hot.argmax(axis=-1) == x.argmax(axis=-1)).all()
    assert hot.max(axis=-1)[clear].min() > 0.98
    assert np.isfinite(hot).all()


def test_unreachable_floors_and_bad_rows_are_refused() -> None:
    x = synthetic_logits(8, 600, seed=0)
    with pytest.raises(ConfigError, match="put smaller powers first"):
        fit_schedule(x, powers=POWERS, floor=0.9)
    with pytest.raises(ConfigError, match="infinity or a NaN"):
        fit_schedule(np.where(np.arange(600) == 3, np.nan, x))
    with pytest.raises(ConfigError, match="constant row"):
        fit_schedule(np.zeros((2, 10)))
    with pytest.raises(ConfigError, match=r"shape \(rows, size\)"):
        fit_schedule(x[0])
    with pytest.raises(ConfigError, match="at least one power"):
        fit_schedule(x, powers=())
    with pytest.raises(ConfigError, match="margin is at least 1"):
        fit_schedule(x, margin=0.5)
    with pytest.raises(ConfigError, match="power is odd"):
        ArgmaxRound(power=2, divisor=1.0, seed=ChordSeed(lo=1.0, hi=2.0), newton_count=1)
    with pytest.raises(ConfigError, match="at least one round"):
        ArgmaxSchedule(rounds=())


def test_a_leader_further_out_than_any_seen_does_not_diverge() -> None:
    """Above a domain the iterations diverge, so each round's is sized for leaders `margin` further out."""
    x = synthetic_logits(32, 3000, seed=0)
    for powers in (POWERS, (3, 3, 3, 7, 9)):
        schedule = fit_schedule(x, powers=powers, margin=1.2)
        far = x.copy()
        z = (x - mean(x)) / x.std(axis=-1, keepdims=True)
        rows = np.arange(len(x))
        far[rows, x.argmax(axis=-1)] += 0.15 * z.max(axis=-1) * x.std(axis=-1)
        hot = cutmax(far, schedule, mean=mean, size=3000, total=total)
        assert np.isfinite(hot).all()
        assert (hot.argmax(axis=-1) == x.argmax(axis=-1)).all()
        assert hot.max() <= 1.01


def test_long_rows_are_shortened_faithfully() -> None:
    """The calibration sees a long row's tails entry by entry and its middle in groups: moments agree after a power."""
    x = synthetic_logits(6, 9000, seed=2)
    values, weights = shorten(x)
    assert values.shape[1] < 600
    assert weights.sum() == 9000
    for power in (1, 2, 9):
        z = (x - mean(x)) / x.std(axis=-1, keepdims=True)
        short = (values - (values @ weights)[:, None] / 9000) / x.std(axis=-1, keepdims=True)
        np.testing.assert_allclose((short**power @ weights)[:, None] / 9000, mean(z**power), rtol=2e-2, atol=1e-9)
    np.testing.assert_allclose(values.max(axis=-1), x.max(axis=-1))


def test_relaxed_and_deeper_newton_schedules_hold_too() -> None:
    x = synthetic_logits(24, 600, seed=0)
    plain = small_schedule()
    relaxed = fit_schedule(x, powers=(3, 3, 3, 7), margin=1.15, solver="relaxed")
    deep = fit_schedule(x, powers=(3, 3, 3, 7), margin=1.15, newton_levels=3, final_tolerance=None)
    assert relaxed.levels <= plain.levels
    assert deep.final is None
    for schedule in (relaxed, deep):
        hot = cutmax(x, schedule, mean=mean, size=600, total=total)
        assert (hot.argmax(axis=-1) == x.argmax(axis=-1)).all()
        assert hot.max(axis=-1).min() >= 1e-2


def test_round_floors_are_kept() -> None:
    x = synthetic_logits(24, 600, seed=0)
    schedule = fit_schedule(x, powers=(3, 3, 3, 7), round_floor=1e-2)
    assert min(r.leader for r in schedule.rounds) >= 1e-2
    assert all(r.lo > 0.0 and r.hi > r.lo for r in schedule.rounds)
