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
    for power in (1, 3):
        both = _Extremes(power)
        for part in np.array_split(rows, 7):
            both.look(torch.from_numpy(part)[None])
        kept = np.stack(both.rows)
        assert len(kept) == 2 * 16
        assert {row.tobytes() for row in rows[sure].astype(np.float64)} <= {row.tobytes() for row in kept}
        if power == 1:
            found, every = np.sort(deviations(kept)), np.sort(deviations(rows))
            assert np.allclose(found, [*every[:16], *every[-16:]], rtol=1e-5)


def test_a_sample_is_kept_with_them_and_all_rows_without(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, tokens = prepare(tiny_gpt2(1)), [random_tokens(s) for s in range(6)]
    every = observe(prepared, tokens).logit_rows
    monkeypatch.setattr(sys.modules["heatfhe.ranges.observe"], "_ROWS", 8)
    some = observe(prepared, tokens).logit_rows
    assert len(some) <= 8 + 4 * 16 < len(every)
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
