# SPDX-License-Identifier: Apache-2.0
"""Fidelity against its definitions: KL, top-1, collapse, perplexity, and what is left out of each."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import ConfigError
from heatfhe.evaluation import cross_entropy, diverged, fidelity, kl_divergence, log_softmax, perplexity

W, P, V = 4, 6, 10


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 2.0, size=(W, P, V))


TARGETS = np.random.default_rng(9).integers(0, V, size=(W, P))


def test_a_run_agrees_with_itself() -> None:
    x = logits(0)
    found = fidelity(x, x, TARGETS, largest=float(np.abs(x).max()))
    assert (found.kl, found.top1, found.collapsed, found.windows) == (0.0, 1.0, 0, W)
    assert found.perplexity == found.clear_perplexity == pytest.approx(perplexity(x, TARGETS))
    assert found.kl_by_position == (0.0,) * P


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**31), shift=st.floats(-50, 50), size=st.floats(1e-3, 5))
def test_kl_is_a_divergence_of_predictions(seed: int, shift: float, size: float) -> None:
    x = logits(seed)
    y = x + size * logits(seed + 1)
    kl = kl_divergence(x, y)
    assert kl.shape == (W, P)
    assert (kl >= -1e-12).all()
    assert np.allclose(kl, kl_divergence(x, y + shift), atol=1e-9)  # a shift changes no prediction
    assert np.allclose(np.exp(log_softmax(y)).sum(-1), 1.0)


def test_kl_by_hand() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.25, 0.5])
    assert float(kl_divergence(np.log(p), np.log(q))) == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))
    assert float(cross_entropy(np.log(q), np.array(2))) == pytest.approx(math.log(2))


def test_kl_is_the_median_over_windows() -> None:
    x = logits(1)
    y = x.copy()
    y[0] += 0.01 * logits(2)[0]
    y[1] += 0.1 * logits(2)[1]
    y[2] += 1.0 * logits(2)[2]
    means = kl_divergence(x, y).mean(axis=1)
    assert fidelity(x, y, TARGETS, largest=100.0).kl == pytest.approx(float(np.median(means)))


def test_a_window_collapses_when_more_than_half_of_it_diverges() -> None:
    x = logits(3)
    largest = float(np.abs(x).max())
    y = x.copy()
    y[0, :3, 0] = np.nan  # half: not collapsed
    y[1, :4, 0] = np.inf
    y[2, :4, 0] = 11.0 * largest
    y[3, :6, 0] = 9.0 * largest  # large, yet under ten times
    assert diverged(y, largest).sum(axis=1).tolist() == [3, 4, 4, 0]
    found = fidelity(x, y, TARGETS, largest=largest)
    assert (found.collapsed, found.windows, found.lost, found.clear_lost) == (2, 4, 11, 0)
    right = (np.argmax(x, -1) == 0)[3].sum()  # the last window now always says token 0
    assert found.top1 == pytest.approx((3 + 2 + 2 + right) / (W * P))  # diverged positions are misses
    sound = np.concatenate([cross_entropy(y[0, 3:], TARGETS[0, 3:]), cross_entropy(y[3], TARGETS[3])])
    assert found.perplexity == pytest.approx(float(np.exp(sound.mean())))
    assert found.clear_perplexity == pytest.approx(perplexity(x, TARGETS))


def test_when_all_collapse_numbers_are_absent_not_wrong() -> None:
    x = logits(4)
    found = fidelity(x, np.full_like(x, np.nan), TARGETS, largest=1.0)
    assert (found.collapsed, found.top1) == (W, 0.0)
    assert math.isnan(found.kl)
    assert math.isnan(found.perplexity)
    body = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert body["kl"] is body["perplexity"] is None
    assert body["kl_by_position"] == [None] * P
    assert (body["lost"], body["clear_lost"]) == (W * P, 0)


def test_a_clear_run_that_is_no_number_somewhere_is_counted() -> None:
    x = logits(6)
    x[1, 2, 0] = np.nan
    found = fidelity(x, logits(6), TARGETS, largest=100.0)
    assert (found.lost, found.clear_lost) == (0, 1)
    assert math.isnan(found.clear_perplexity)
    assert math.isfinite(found.perplexity)


def test_shapes_must_agree() -> None:
    x = logits(5)
    for clear, run, targets in ((x, x[:2], TARGETS), (x, x, TARGETS[:2]), (x[0], x[0], TARGETS[0])):
        with pytest.raises(ConfigError, match=r"logits \(W, P, V\) twice"):
            fidelity(clear, run, targets, largest=1.0)
