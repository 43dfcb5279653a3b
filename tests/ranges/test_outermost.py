# SPDX-License-Identifier: Apache-2.0
"""Rows of logits whose leaders lie furthest out, or least far, are kept for the argmax's schedule, however few."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from heatfhe.approx import cutmax
from heatfhe.ranges import fit_argmax, observe
from heatfhe.ranges.observe import _Extremes
from heatfhe.sites import prepare
from tests.gpt2_tiny import random_tokens, tiny_gpt2


def deviations(rows: np.ndarray) -> np.ndarray:
    return np.asarray((rows.max(axis=1) - rows.mean(axis=1)) / rows.std(axis=1))


def test_the_furthest_leaders_of_many_rows_and_the_least_far_are_kept() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 48)).astype(np.float32)
    sure = rng.choice(4000, 5, replace=False)
    rows[sure, 7] = np.array([9.0, 11.0, 13.0, 15.0, 17.0])
    ends = _Extremes()
    for part in np.array_split(rows, 7):
        ends.look(torch.from_numpy(part)[None])
    kept = np.stack(ends.rows).reshape(4, 2, 32, 48)
    for power, both in zip((1, 3, 27, 243), kept):
        if power <= 3:  # beyond, most rows are their leaders alone
            assert {row.tobytes() for row in rows[sure].astype(np.float64)} <= {row.tobytes() for row in both[0]}
        centred = rows - rows.mean(axis=1, keepdims=True)
        every = np.sort(deviations((centred / np.abs(centred).max(axis=1, keepdims=True)).astype(np.float64) ** power))
        for found, expected in zip(both, (every[-32:], every[:32])):
            own = found - found.mean(axis=1, keepdims=True)
            out = deviations((own / np.abs(own).max(axis=1, keepdims=True)) ** power)
            assert np.allclose(np.sort(out), expected, rtol=1e-4, atol=1e-4)


def test_rows_of_near_ties_are_among_them() -> None:
    """Two words a thousandth apart: after one and three powers a row like others, after many the least far out."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4000, 48)).clip(-2.5, 2.0).astype(np.float32)
    rows[:, 7] = rng.uniform(3.0, 5.0, size=4000)
    tied = rng.choice(4000, 5, replace=False)
    rows[tied, 9] = rows[tied, 7] * 0.999
    ends = _Extremes()
    ends.look(torch.from_numpy(rows))
    kept = np.stack(ends.rows).reshape(4, 2, 32, 48)
    wanted = {row.tobytes() for row in rows[tied].astype(np.float64)}
    assert wanted <= {row.tobytes() for row in kept[3, 1]}


def test_a_sample_is_kept_with_them_and_all_rows_without(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, tokens = prepare(tiny_gpt2(1)), [random_tokens(s) for s in range(6)]
    every = observe(prepared, tokens).logit_rows
    monkeypatch.setattr(sys.modules["heatfhe.ranges.observe"], "_ROWS", 8)
    monkeypatch.setattr(sys.modules["heatfhe.ranges.observe"], "_AT_ENDS", 4)
    some = observe(prepared, tokens).logit_rows
    assert len(some) <= 8 + 8 * 4 < len(every)
    assert max(deviations(r)[0] for r in some) == max(deviations(r)[0] for r in every)
    assert min(deviations(r)[0] for r in some) == min(deviations(r)[0] for r in every)


def test_a_schedule_fitted_with_them_loses_no_row_that_a_sample_does_not_show() -> None:
    """One row in 500 is far surer than the others; fitted without it, its row is lost or no number at all."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(1000, 256))
    rows[:, 3] += 3.0
    sure = rng.normal(size=(2, 256))
    sure[:, 5] += 14.0

    def leaders(fitted: np.ndarray) -> np.ndarray:
        made = fit_argmax(fitted)
        with np.errstate(all="ignore"):
            ends = cutmax(sure, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=256)
        return np.asarray(ends[:, 5])

    assert not (np.abs(leaders(rows) - 1.0) < 0.1).all()
    assert (np.abs(leaders(np.concatenate([rows, sure])) - 1.0) < 0.1).all()


def test_a_row_that_a_model_is_least_sure_of_is_not_lost() -> None:
    """One row in 500 has its leader far fewer deviations out; fitted without it, it shrinks to nothing."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(1000, 256))
    rows[:, 3] += 8.0
    unsure = np.clip(rng.normal(size=(2, 256)), -2.0, 2.0)
    unsure[:, 5] = 2.6

    def leaders(fitted: np.ndarray) -> np.ndarray:
        made = fit_argmax(fitted)
        with np.errstate(all="ignore"):
            ends = cutmax(unsure, made.schedule, mean=lambda v: v.mean(-1, keepdims=True), size=256)
        return np.asarray(ends[:, 5])

    assert (leaders(rows) < 1e-6).all()
    assert (np.abs(leaders(np.concatenate([rows, unsure])) - 1.0) < 0.1).all()
