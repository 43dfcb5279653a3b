# SPDX-License-Identifier: Apache-2.0
"""Law 4: circuit.run and the plan on the clear engine agree to 1e-8: prompt, free running and cache wrap-around."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heatfhe.approx import fit_settle
from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit, one_hot
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.evaluation.drift import sample_windows
from heatfhe.planning import plan
from heatfhe.planning.params import preset
from heatfhe.records import ArgmaxCalibration
from tests.planning.clear_run import clear_params, collect, generate, teacher_forced
from tests.tiny import argmax_schedule, tiny_circuit

# (circuit, slots, placement): t = 1, small and large, hidden in several ciphertexts, padded heads and widths, a
# vocabulary in several ciphertexts, rings larger than the model can use.
CASES = [
    ({}, 64, "greedy"),
    ({}, 64, "exact"),
    ({}, 32, "exact"),
    ({}, 1024, "exact"),
    ({"context": 8, "seed": 1}, 16, "greedy"),
    ({"width": 12, "heads": 3, "vocabulary": 50, "seed": 2}, 64, "exact"),
    ({"width": 15, "heads": 5, "vocabulary": 37, "context": 8, "seed": 3}, 64, "exact"),
    ({"width": 16, "heads": 1, "vocabulary": 200, "seed": 4}, 64, "greedy"),
    ({"width": 20, "heads": 2, "vocabulary": 100, "seed": 5}, 32, "greedy"),
    ({"width": 8, "heads": 4, "vocabulary": 5, "context": 4, "seed": 6}, 16, "exact"),
]


@pytest.mark.parametrize(("shape", "slots", "placement"), CASES)
def test_a_whole_generation_agrees(shape: dict[str, int], slots: int, placement: str) -> None:
    circuit = tiny_circuit(**shape)
    made = plan(circuit, clear_params(slots), placement=placement, mlp="auto" if placement == "exact" else "A")
    prompt = [1, 4, 2]
    count = circuit.shape.context - len(prompt) + 1  # to the last position: tau passes t - 1 -> 0 wherever t < context
    expected = circuit.generate(prompt, count)
    run = generate(made, circuit, prompt, count)
    worst = max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots))
    assert worst < 1e-8, f"seed {shape.get('seed', 0)}, {slots} slots"
    assert [int(h.argmax()) for h in run.one_hots] == expected.tokens


@pytest.mark.parametrize(("shape", "slots"), [({}, 64), ({}, 1024), ({"width": 20, "vocabulary": 100, "seed": 5}, 32)])
@pytest.mark.parametrize("settle", [1, 4])
def test_settling_rounds_agree(shape: dict[str, int], slots: int, settle: int) -> None:
    """A vocabulary of one ciphertext and of several, padded and not; rounds enough to leave no negative share."""
    circuit = tiny_circuit(**shape)
    logits = circuit.run(np.random.default_rng(0).integers(0, circuit.shape.vocabulary, (24, 16)))
    schedule = argmax_schedule(logits.reshape(-1, circuit.shape.vocabulary), (3, 3, 3, 7))
    argmax = ArgmaxCalibration(schedule=replace(schedule, settle=fit_settle(settle)))
    circuit = replace(circuit, calibration=replace(circuit.calibration, argmax=argmax))
    made = plan(circuit, clear_params(slots))
    expected = circuit.generate([1, 4, 2], 6)
    run = generate(made, circuit, [1, 4, 2], 6)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8
    assert [int(h.argmax()) for h in run.one_hots] == expected.tokens


@pytest.mark.parametrize(("slots", "reach", "pair_levels"), [(64, 1.0, 0), (128, 1.0, 1), (64, 246.0, 2)])
def test_reaches_and_levels_lost_to_pairs_change_nothing(slots: int, reach: float, pair_levels: int) -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(slots, levels=9, reach=reach, pair_levels=pair_levels))
    expected = circuit.generate([7, 3], 6)
    run = generate(made, circuit, [7, 3], 6)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8


def test_real_plaintexts_alone_give_the_same_answer() -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(64), halve=False, placement="greedy", mlp="A")
    assert not any(s.kind in ("conjugate", "times_i") for p in made.programs.values() for s in p.steps)
    expected = circuit.generate([9], 5)
    run = generate(made, circuit, [9], 5)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8


@pytest.mark.parametrize(("shape", "slots"), [({}, 64), ({}, 256), ({"width": 12, "heads": 3, "seed": 2}, 64)])
@pytest.mark.parametrize("halve", [True, False])
def test_both_variants_of_the_mlp_give_the_same_answer(shape: dict[str, int], slots: int, halve: bool) -> None:
    circuit = tiny_circuit(**shape)
    expected = circuit.generate([9, 1], 4)
    for mlp in ("A", "B"):
        made = plan(circuit, clear_params(slots), mlp=mlp, halve=halve, placement="greedy")
        run = generate(made, circuit, [9, 1], 4)
        assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("tight", [False, True])
def test_a_relaxed_first_reciprocal_from_below_agrees_at_any_count(count: int, tight: bool) -> None:
    circuit = tiny_circuit()
    c = circuit.calibration
    rows = {}
    for name, row in c.softmaxes.items():
        init, refine = replace(row.fit.init, solver="below"), row.fit.refine
        assert refine is not None
        fit = replace(row.fit, init=init, refine=replace(refine, lo=(1.0 - init.error(count)) ** 2))
        rows[name] = replace(row, init_count=count, refine_count=6, fit=fit)
    lowered = replace(circuit, calibration=replace(c, softmaxes=rows))
    windows = np.random.default_rng(0).integers(0, circuit.shape.vocabulary, (2, circuit.shape.context))
    sums: list[float] = []

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        if name.endswith("/sum2"):
            sums.append(float((value[..., 0] / np.arange(1.0, value.shape[-2] + 1) ** 2).max()))
        return value

    expected = lowered.run(windows, tap=tap)
    assert max(sums) <= 1.0 + 1e-12  # a mean of squares of at most the row's length
    assert 0 < np.abs(expected - circuit.run(windows)).max() < 0.1  # the common factor of a row has cancelled
    made = plan(
        lowered, clear_params(64), placement="greedy", mlp="A", precision=0.0 if tight else None, programs=("logits",)
    )
    run = teacher_forced(made, lowered, windows)
    assert np.abs(run - expected).max() < 1e-8 * np.abs(expected).max()


def test_few_levels_are_enough_with_cuts_inside_polynomials() -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(64, levels=4), contract=False)
    expected = circuit.generate([9, 8], 4)
    run = generate(made, circuit, [9, 8], 4)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8


@pytest.mark.parametrize(("shape", "slots", "placement"), CASES)
def test_logits_of_a_batch_of_windows_agree(shape: dict[str, int], slots: int, placement: str) -> None:
    """A one-hot row hides small errors, logits do not: relative to the largest one."""
    circuit = tiny_circuit(**shape)
    variants = ("A", "B") if slots >= 64 and circuit.shape.hidden <= 64 else ("A",)
    tokens = np.random.default_rng(3).integers(0, circuit.shape.vocabulary, size=(3, circuit.shape.context))
    expected = circuit.run(tokens)
    for mlp in variants:
        made = plan(circuit, clear_params(slots), programs=("logits",), placement=placement, mlp=mlp)
        found = teacher_forced(made, circuit, tokens, strict=False)
        assert np.abs(found - expected).max() < 1e-8 * np.abs(expected).max()


def test_a_one_hot_prompt_and_added_noise_follow_the_circuit() -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(64), programs=("sample", "embed", "prompt"))
    engine = ClearEngine(made.params, request=key_request(made))
    decode = Conversation(Runner(made, engine, made.source(circuit)))
    hot = np.eye(64)[11]
    x = decode.embed([engine.value(v) for v in made.packing.pack_vocabulary(hot)])
    p = made.packing
    assert np.abs(collect(x[0].slots, p.residual, p.shape.width) - circuit.folded.token[11]).max() < 1e-12
    noise = 0.3 * np.random.default_rng(5).standard_normal(64)
    row = decode.sample([engine.value(v) for v in made.packing.pack_vocabulary(noise)], x)
    expected = one_hot(circuit, circuit.run([11])[0] + noise)
    assert np.abs(made.packing.unpack_vocabulary([v.slots for v in row]) - expected).max() < 1e-8


def test_the_trace_depends_on_the_position_alone() -> None:
    first, second = tiny_circuit(seed=0), tiny_circuit(seed=0)
    made = plan(first, clear_params(64))
    one = generate(made, first, [1, 2, 3], 4).trace
    other = generate(made, second, [60, 0, 17], 4).trace
    assert one == other
    assert generate(made, first, [1, 2], 5).trace != one  # another split of prompt and answer is another, public, trace


def test_the_trace_does_not_depend_on_the_weights() -> None:
    circuit = tiny_circuit()
    moved = {k: (v if "ln" in k else (v * np.float32(0.97)).astype(v.dtype)) for k, v in circuit.weights.items()}
    other = replace(circuit, weights=moved)
    a, b = (plan(c, clear_params(64), placement="greedy") for c in (circuit, other))
    assert [s for p in a.programs.values() for s in p.steps] == [s for p in b.programs.values() for s in p.steps]
    assert generate(a, circuit, [1, 2], 3).trace == generate(b, other, [1, 2], 3, strict=False).trace


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "params", "count"),
    [
        ("heat", "insecure-openfhe-12", 117),  # to the last position of the context
        ("calibrated", "insecure-native-12", 30),
        ("heat", "insecure-native-11", 30),
        ("heat", "insecure-native-13", 30),
    ],
)
def test_the_default_model_agrees_over_a_generation_past_the_wrap(kind: str, params: str, count: int) -> None:
    circuit = Circuit.load(default_circuit(kind))
    made = plan(circuit, preset(params))
    prompt = [int(t) for t in sample_windows(circuit, 1, 12, seed=3)[0]]
    expected = circuit.generate(prompt, count)
    run = generate(made, circuit, prompt, count)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots)) < 1e-8
    assert [int(h.argmax()) for h in run.one_hots] == expected.tokens
    assert made.packing.t < 12 + count - 1  # so the cache wrapped
