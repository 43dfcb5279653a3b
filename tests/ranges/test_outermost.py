# SPDX-License-Identifier: Apache-2.0
"""Rows of logits whose leaders lie furthest out are kept for the argmax's schedule, however few they are."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from heatfhe.approx import cutmax
from heatfhe.ranges import fit_argmax, observe
from heatfhe.ranges.observe import _Outermost
from heatfhe.sites import prepare
from tests.gpt2_tiny import random_tokens, tiny_gpt2


def deviations(rows: np.ndarray) -> np.ndarray:
    return np.asarray((rows.max(axis=1) - rows.mean(axis=1)) / rows.std(axis=1))


def test_the_furthest_leaders_of_many_rows_are_kept() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 48)).astype(np.float32)
    sure = rng.choice(4000, 5, replace=False)
    rows[sure, 7] = np.array([9.0, 11.0, 13.0, 15.0, 17.0])
    for power in (1, 3):
        furthest = _Outermost(power)
        for part in np.array_split(rows, 7):
            furthest.look(torch.from_numpy(part)[None])
        kept = np.stack([row for _, row in furthest.kept])
        assert len(kept) == 16
        assert {row.tobytes() for row in rows[sure].astype(np.float64)} <= {row.tobytes() for row in kept}
    assert np.allclose(np.sort(deviations(kept))[-5:], np.sort(deviations(rows[sure])), rtol=1e-5)


def test_a_sample_is_kept_with_them_and_all_rows_without(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, tokens = prepare(tiny_gpt2(1)), [random_tokens(s) for s in range(6)]
    every = observe(prepared, tokens).logit_rows
    monkeypatch.setattr(sys.modules["heatfhe.ranges.observe"], "_ROWS", 8)
    some = observe(prepared, tokens).logit_rows
    assert len(some) <= 8 + 2 * 16 < len(every)
    assert max(deviations(r)[0] for r in some) == max(deviations(r)[0] for r in every)


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
