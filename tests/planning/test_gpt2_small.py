# SPDX-License-Identifier: Apache-2.0
"""GPT-2 small at the paper's counts, from the recorded graph: the bars of bootstraps, operation counts and time."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatfhe.approx import cutmax
from heatfhe.circuit import Circuit
from heatfhe.planning import Packing, cost_table, place, plan, record
from heatfhe.planning.params import preset
from heatfhe.planning.tally import tally
from tests.planning.clear_run import clear_params, generate, teacher_forced
from tests.tiny import tiny_circuit

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))
from gpt2_small_fixture import argmax_schedule, gpt2_small

pytestmark = pytest.mark.slow


def bootstraps(circuit: Circuit, levels: int, table: str, algorithm: str = "exact") -> tuple[int, float]:
    params = replace(preset("paper-16"), levels=levels)
    recording = record(circuit, Packing(circuit.shape, params.slots, 128), "generate", window=params.window)
    graph = recording.graph(levels=levels, fixed={}, required={"next": levels})
    began = time.perf_counter()
    placed = place(graph, params, cost_table(table), algorithm=algorithm)
    assert time.perf_counter() - began < 60
    return placed.bootstraps, placed.refresh_seconds


@pytest.mark.parametrize(
    ("counts", "iterations", "bar_8", "bar_13"),
    [("heat", (75, 50, 24, 79), 160, 95), ("calibrated", (235, 63, 105, 309), 260, 150)],
)
def test_bootstraps_of_a_token_meet_their_bars(
    counts: str, iterations: tuple[int, ...], bar_8: int, bar_13: int
) -> None:
    circuit = gpt2_small(counts)
    assert tuple(circuit.calibration.iterations().values()) == iterations
    assert bootstraps(circuit, 8, "unit")[0] <= bar_8
    assert bootstraps(circuit, 13, "unit")[0] <= bar_13
    assert bootstraps(circuit, 8, "unit")[0] < bootstraps(circuit, 8, "unit", "greedy")[0]


def test_full_slot_equivalents_at_13_levels() -> None:
    assert bootstraps(gpt2_small("heat"), 13, "equivalents")[1] <= 60


def test_the_fixtures_argmax_holds_its_leader() -> None:
    """Synthetic rows of 50257 logits: a Gaussian bulk and a logarithmic tail under the leader."""
    rng, size = np.random.default_rng(0), 50257
    for _ in range(12):
        x = -35 + rng.uniform(1.8, 2.6) * rng.standard_normal(size)
        slope, top = rng.uniform(0.9, 1.9), -35 + rng.uniform(13, 22)
        x[:2000] = np.maximum(x[:2000], top - slope * np.log(np.arange(1, 2001)))
        x = rng.permutation(x)
        hot = cutmax(x, argmax_schedule(), mean=lambda v: v.mean(keepdims=True), size=size)
        assert hot.argmax() == x.argmax()
        assert 0.05 < hot.max() < 1.5
        assert np.sort(hot)[-2] < 0.5 * hot.max()


def test_operation_counts_are_no_worse_than_the_published_layout() -> None:
    circuit = gpt2_small("heat")
    made = plan(circuit, preset("paper-16"), programs=("generate",), context=128, mlp="A")
    found = tally(made, "generate", cost_table("paper-a100"))
    assert sum(t.plain_products for t in found.values()) <= 4352
    assert sum(t.masks for t in found.values()) <= 250
    assert sum(t.hoisted for t in found.values()) <= 890
    assert sum(t.conjugations for t in found.values()) <= 74
    assert sum(t.hoisted + t.rotations for t in found.values()) <= 890 + 1379
    assert found["layernorm"].products <= 425
    assert found["softmax"].products <= 326
    assert found["gelu"].products <= 276
    assert found["attention"].products <= 96
    assert len(made.rotations) <= 104


def test_a_model_of_this_shape_with_random_weights_agrees_for_three_tokens() -> None:
    circuit = tiny_circuit(
        layers=12, width=768, heads=12, vocabulary=50257, context=8, sequences=1, seed=8, tolerance=1e-2
    )
    made = plan(circuit, clear_params(32768, levels=13), programs=("generate", "prompt", "logits"))
    expected = circuit.generate([17, 40000], 3)
    run = generate(made, circuit, [17, 40000], 3)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8
    assert [int(h.argmax()) for h in run.one_hots] == expected.tokens
    tokens = np.array([[17, 40000, 3]])
    logits = circuit.run(tokens)
    assert np.abs(teacher_forced(made, circuit, tokens) - logits).max() < 1e-8 * np.abs(logits).max()
