# SPDX-License-Identifier: Apache-2.0
"""CutMax: sharpening, near ties, the negative tail, padding and noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.approx import (
    ArgmaxRound,
    ArgmaxSchedule,
    ChordSeed,
    Depth,
    ReciprocalFit,
    cutmax,
    fit_inverse_sqrt,
    fit_settle,
)
from heatfhe.approx.argmax import power_depth, raise_to
from heatfhe.files import rebuilt
from heatfhe.records import ArgmaxCalibration
from tests.approx.rows import exact_rounds, mean, small_schedule, synthetic_logits, total
from tests.approx.values import Traced

POWERS = (9, 3, 3, 3, 7)


def test_powers() -> None:
    x = np.linspace(-1.2, 1.2, 7)
    for p, levels in ((1, 0), (3, 2), (5, 3), (7, 3), (9, 4), (11, 4), (27, 5)):
        np.testing.assert_allclose(raise_to(x, p), x**p, rtol=1e-12)
        assert raise_to(Depth(), p).spent == power_depth(p) == levels


def test_levels_of_a_round() -> None:
    chord = ArgmaxRound(power=9, divisor=2.0, seed=ChordSeed(lo=1.0, hi=4.0), newton_count=3)
    deep = ArgmaxRound(power=3, divisor=2.0, seed=ChordSeed(lo=1.0, hi=4.0), newton_count=2, newton_levels=3)
    rational = ArgmaxRound(
        power=7, divisor=2.0, seed=fit_inverse_sqrt(1.0, 90.0, form="partial"), newton_count=1, goldschmidt_count=4
    )
    assert [r.levels for r in (chord, deep, rational)] == [4 + 6 + 4, 4 + 6 + 2, 3 + (2 + 4 + 2) + 3]
    assert ArgmaxSchedule(rounds=(chord, deep, rational)).sharpening == 189


def test_the_runner_up_is_raised_to_the_product_of_powers() -> None:
    rng = np.random.default_rng(7)
    base = rng.normal(-30.0, 2.0, 4000)
    for gap, expected in ((0.0, 1.0), (0.005, None), (0.05, None)):
        x = base.copy()
        x[10], x[20] = -14.0, -14.0 - gap
        y = exact_rounds(x[None])[0]
        rho = (x[20] - x.mean()) / (x[10] - x.mean())
        assert y[20] / y[10] == pytest.approx(rho**1701 if expected is None else expected, rel=0.02)
        assert y.argmax() == 10


def test_a_multiple_of_the_spread_serves_as_well() -> None:
    """All copies of an encrypted spread added up are a multiple of it: constants take it back, exactly."""
    x, schedule = synthetic_logits(6, 600, seed=0), small_schedule()
    size = x.shape[-1]
    plain = cutmax(x, schedule, mean=mean, size=size, total=total)
    summed = cutmax(x, schedule, mean=mean, size=size, total=total, alike=lambda spread, r: (spread * 4096, 4096))
    np.testing.assert_allclose(summed, plain, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("leader", "kept"), [(3.5, False), (4.0, False), (4.5, True), (5.0, True), (6.0, True)])
def test_a_negative_tail_beyond_the_leader_wins_without_a_shift(leader: float, kept: bool) -> None:
    rng = np.random.default_rng(3)
    z = np.clip(rng.normal(size=20000), -3.4, 3.4)
    z[0], z[1] = leader, -4.308
    y = exact_rounds(z[None])[0]
    assert bool(np.abs(y).argmax() == 0) is kept
    assert bool(y.max() > 0.5) is kept


@settings(max_examples=25, deadline=None)
@given(gap=st.floats(0.0, 0.3), seed=st.integers(0, 1000))
def test_near_ties_share_and_never_flip(gap: float, seed: int) -> None:
    schedule = small_schedule()
    x = synthetic_logits(1, 600, seed=seed % 7)
    order = np.argsort(x[0])
    x[0, order[-2]] = x[0, order[-1]] - gap
    hot = cutmax(x, schedule, mean=mean, size=600, total=total)[0]
    leader, second = hot[order[-1]], hot[order[-2]]
    rho = 1.0 - gap / (x.max() - x.mean())
    if rho**schedule.sharpening > 1e-6:
        # later rounds centre again: with 600 entries that moves the exponent by some percent
        expected = schedule.sharpening * math.log(rho)
        assert math.log(second / leader) == pytest.approx(expected, rel=0.1, abs=1e-3)
    else:
        assert second / leader < 1e-5
    assert leader >= second


@pytest.mark.parametrize("settle", [0, 3])
def test_padding_stays_zero(settle: int) -> None:
    size, slots = 600, 1024
    schedule = replace(small_schedule(), settle=fit_settle(settle))
    x = synthetic_logits(3, size, seed=5)
    padded = np.zeros((3, slots))
    padded[:, :size] = x
    mask = np.zeros(slots)
    mask[:size] = 1.0
    masked = cutmax(
        padded,
        schedule,
        mean=lambda v: v.sum(axis=-1, keepdims=True) * (mask / size),
        size=size,
        total=total,
        occupied=mask,
    )
    assert (masked[:, size:] == 0.0).all()
    np.testing.assert_allclose(masked[:, :size], cutmax(x, schedule, mean=mean, size=size, total=total), atol=1e-9)


@pytest.mark.parametrize("settle", [0, 1, 4])
def test_sum_and_mean_forms_agree_and_differ_by_their_levels(settle: int) -> None:
    schedule = replace(small_schedule(), settle=fit_settle(settle))
    x = synthetic_logits(2, 600, seed=6)
    with_sum = cutmax(x, schedule, mean=mean, size=600, total=total)
    np.testing.assert_allclose(cutmax(x, schedule, mean=mean, size=600), with_sum, rtol=1e-6, atol=1e-12)
    row = Traced(x[0])
    traced = cutmax(
        row,
        schedule,
        mean=lambda v: Traced(np.full(600, v.value.sum()), v.spent, v.tally) * (1.0 / 600),
        size=600,
        total=lambda v: Traced(np.full(600, v.value.sum()), v.spent, v.tally),
    )
    assert traced.spent == schedule.levels
    np.testing.assert_allclose(traced.value, with_sum[0], rtol=1e-6, atol=1e-12)


def test_noise_before_every_power_leaves_clear_leaders() -> None:
    """With a bootstrap's noise of 1e-6 on every slot, rows with a gap of 0.05 and more keep their argmax."""
    rng = np.random.default_rng(4)
    size = 600
    schedule = small_schedule()
    x = synthetic_logits(40, size, seed=0)
    top = np.sort(x, axis=-1)
    rows = x[top[:, -1] - top[:, -2] > 0.05]

    class Noisy(Traced):
        def __mul__(self, other: Any) -> Traced:
            made = super().__mul__(other)
            noise = 1e-6 * rng.normal(size=size) if made.value.shape == (size,) else 0.0
            return Noisy(made.value + noise, made.spent, made.tally)

    for row in rows[:12]:
        hot = cutmax(
            Noisy(row),
            schedule,
            mean=lambda v: Noisy(np.full(size, v.value.mean()), v.spent, v.tally),
            size=size,
            total=lambda v: Noisy(np.full(size, v.value.sum()), v.spent, v.tally),
        )
        assert hot.value.argmax() == row.argmax()


def test_samuelson_bounds_every_leader() -> None:
    for k, leader in ((1, 224.1785), (2, 158.5166), (5, 100.2517)):
        assert math.sqrt((50257 - k) / k) == pytest.approx(leader, abs=6e-5)
    x = np.zeros((1, 50257))
    x[0, :2] = 1.0
    z = (x - mean(x)) / x.std()
    assert z.max() == pytest.approx(158.5166, abs=6e-5)


def test_json_round_trip() -> None:
    """With and without settling rounds; a file from before there were any has no such field, and stays as it was."""
    schedule = ArgmaxSchedule(
        rounds=(
            ArgmaxRound(power=3, divisor=3.0, seed=ChordSeed(lo=0.1, hi=4.0), newton_count=2, shift=0.01, leader=0.3),
            ArgmaxRound(power=7, divisor=3.0, seed=fit_inverse_sqrt(1e-3, 1.0), newton_count=1, goldschmidt_count=3),
        ),
        final=ReciprocalFit(lo=0.1, hi=2.0),
        final_count=3,
    )
    for one in (schedule, small_schedule(), replace(schedule, settle=fit_settle(3))):
        made = ArgmaxCalibration(schedule=one)
        body = json.loads(json.dumps(made.as_json()))
        assert rebuilt(ArgmaxCalibration.from_json, body, where="here", remedy="none") == made
        assert ("settle" in body["schedule"]) == bool(one.settle)
    rounds = ArgmaxCalibration(schedule=schedule).as_json()["schedule"]["rounds"]
    assert [(r["chord"] is None, r["rational"] is None) for r in rounds] == [(False, True), (True, False)]
