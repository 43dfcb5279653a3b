# SPDX-License-Identifier: Apache-2.0
"""Injected noise: none changes nothing, more costs more, the same seed gives the same, shallow circuits collapse."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from heatfhe.evaluation import noise_tap, under_noise
from heatfhe.evaluation.drift import sample_windows
from heatfhe.stages import solved
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit(layers=2, width=16, vocabulary=32, context=16)
WINDOWS = sample_windows(CIRCUIT, 6, 13, seed=3)


def test_no_noise_is_the_clear_run() -> None:
    found = under_noise(CIRCUIT, WINDOWS, 0.0)
    assert (found.kl, found.top1, found.collapsed, found.windows) == (0.0, 1.0, 0, 6)
    assert found.perplexity == found.clear_perplexity


def test_more_noise_costs_more() -> None:
    kls = [under_noise(CIRCUIT, WINDOWS, sigma).kl for sigma in (1e-6, 1e-5, 1e-4, 1e-3)]
    assert all(a < b for a, b in pairwise(kls))
    assert kls[0] < 1e-8


def test_the_seed_decides() -> None:
    first, same, other = (under_noise(CIRCUIT, WINDOWS, 1e-4, seed=s) for s in (1, 1, 2))
    assert first == same
    assert first.kl != other.kl


def test_wild_noise_is_counted_as_collapse_and_not_as_an_error() -> None:
    found = under_noise(CIRCUIT, WINDOWS, 1e3)
    assert found.collapsed == found.windows == 6
    assert found.top1 == 0.0


def test_noise_enters_at_solvers_alone() -> None:
    tap = noise_tap(solved(CIRCUIT.stages), 1.0, np.random.default_rng(0))
    zero = np.zeros((3, 4))
    for name in ("h.0.ln_1/z", "h.0.ln_1/root", "h.1.attn/scores", "h.1.attn/sum", "h.1.attn/inverse", "h.1.mlp/in"):
        assert float(np.abs(tap(name, zero)).min()) > 0
    for name in ("h.0.in", "h.0.attn.qkv", "logits"):
        assert tap(name, zero) is zero


def test_noise_has_the_stated_size() -> None:
    drawn = noise_tap(solved(CIRCUIT.stages), 0.3, np.random.default_rng(1))("h.0.ln_1/z", np.zeros((300, 300)))
    assert float(drawn.std()) == pytest.approx(0.3, rel=0.02)
