# SPDX-License-Identifier: Apache-2.0
"""Many counts at once give what the circuit gives at each: the same numbers, whatever candidates share."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError
from heatfhe.evaluation import cross_entropy
from heatfhe.lowering import export
from heatfhe.ranges import calibrate
from heatfhe.search import Batched, Space
from heatfhe.search import batched as module
from heatfhe.sites import PrepareConfig, prepare
from heatfhe.stages import Residual, of
from tests.gpt2_tiny import random_tokens, tiny_gpt2
from tests.llama_tiny import tiny_llama
from tests.tiny import tiny_circuit


def candidates(space: Space, count: int, seed: int) -> Any:
    """Random ones that share beginnings of every length, the calibrated one first."""
    rng = np.random.default_rng(seed)
    found = [space.start()[0]]
    for _ in range(count):
        row = found[rng.integers(len(found))].copy()
        at = rng.integers(len(row))
        row[at:] += rng.integers(-2, 3, size=len(row) - at)
        found.append(np.clip(row, space.lower, space.upper))
    return np.array(found)


def hidden(circuit: Circuit, tokens: Any) -> Any:
    """The last block's hidden states by circuit.run, and its logits."""
    wanted, seen = of(circuit.stages, Residual)[-1].writes, []

    def tap(name: str, value: Any) -> Any:
        if name == wanted:
            seen.append(value)
        return value

    return circuit.run(tokens, tap=tap), seen[0]


def exported(model: Any, prefix: tuple[int, ...] = (), **options: Any) -> Circuit:
    prepared = prepare(model, PrepareConfig(prefix=prefix))
    calibration = calibrate(prepared, [random_tokens(1, rows=12, length=16 - len(prefix))], 1e-3, **options)
    return export(prepared, calibration, tokenizer={})


@cache
def circuits() -> dict[str, Circuit]:
    return {
        "tiny": tiny_circuit(seed=3, tolerance=1e-4),
        "three passes": exported(tiny_gpt2(1, width=8), delta_2=8),
        "llama": exported(tiny_llama(2)),
        "prefix, relaxed": exported(tiny_gpt2(2, width=8), prefix=(3, 1, 4), solver="relaxed"),
    }


@pytest.mark.parametrize("name", ["tiny", "three passes", "llama", "prefix, relaxed"])
@pytest.mark.parametrize("rows", [256, 5])
def test_every_candidate_is_the_circuit_at_its_counts(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 2's cousin: 1e-9 of the largest value, in float64, however scores are cut into rows and groups into parts."""
    monkeypatch.setattr(module, "ROWS", rows)
    monkeypatch.setattr(module, "GROUPS", 3)
    circuit = circuits()[name]
    space = Space.of(circuit)
    tokens = np.random.default_rng(0).integers(0, circuit.shape.vocabulary, (2, circuit.room))
    batched = Batched(circuit, tokens, space.names, dtype="float64")
    counts = candidates(space, 9, seed=5)
    wanted = of(circuit.stages, Residual)[-1].writes
    found = batched._run(counts, wanted)
    assert len(found.value) <= len(counts)
    for i, row in enumerate(counts):
        with np.errstate(all="ignore"):
            _, expected = hidden(circuit.with_counts(space.named(row)), tokens)
        got = found.value[found.group[i]].numpy()
        if np.isfinite(expected).all():
            assert np.abs(got - expected).max() <= 1e-9 * np.abs(expected).max()


def test_candidates_that_begin_alike_share_a_group() -> None:
    circuit = tiny_circuit(tolerance=1e-4)
    space = Space.of(circuit)
    batched = Batched(circuit, np.zeros((1, 4), dtype=np.int64), space.names)
    counts = np.repeat(space.start(), 4, axis=0)
    counts[2:, space.names.index("h.1.attn/init")] += 1
    assert len(batched._run(counts, of(circuit.stages, Residual)[1].writes).value) == 1
    last = batched._run(counts, of(circuit.stages, Residual)[-1].writes)
    assert len(last.value) == 2
    assert last.group.tolist() == [0, 0, 1, 1]


def test_the_error_is_that_of_hidden_states_and_sees_the_final_norm() -> None:
    circuit = tiny_circuit(tolerance=1e-4)
    space = Space.of(circuit)
    tokens = np.random.default_rng(1).integers(0, 64, (3, 16))
    batched = Batched(circuit, tokens, space.names, dtype="float64")
    reference = batched.reference()
    counts = np.repeat(space.start(), 2, axis=0)
    counts[:, space.names.index("ln_f/goldschmidt")] = 13
    counts[:, space.names.index("ln_f/newton")] = 3
    counts[1, space.names.index("ln_f/newton")] = 0
    counts[1, space.names.index("ln_f/goldschmidt")] = 1
    errors = batched.errors(counts, reference)
    _, states = hidden(circuit.with_counts(space.named(counts[0])), tokens)
    assert errors[0] == pytest.approx(np.abs(states - reference.numpy()).mean(), rel=1e-6)  # an exact norm adds nothing
    assert errors[1] > 3 * errors[0]
    narrow = Batched(circuit, tokens, space.names).errors(counts, reference.float())
    assert narrow == pytest.approx(errors, rel=1e-3)


def test_the_reference_is_the_model_itself() -> None:
    model = tiny_gpt2(4, width=8)
    tokens = random_tokens(3, rows=2)
    with torch.no_grad():
        states = model.transformer(tokens, output_hidden_states=True).hidden_states
        x = model.transformer.h[-1](states[-2])
        x = x[0] if isinstance(x, tuple) else x
    circuit = exported(model)
    found = Batched(circuit, tokens.numpy(), Space.of(circuit).names, dtype="float64").reference().numpy()
    centred = (x - x.mean(dim=-1, keepdim=True)).numpy()  # the stream that a circuit of layer norms carries
    assert np.abs(found - centred).max() < 1e-4 * np.abs(centred).max()


def test_losses_are_those_of_the_circuit_and_a_lost_window_is_infinite() -> None:
    circuit = tiny_circuit(tolerance=1e-4)
    space = Space.of(circuit)
    rows = np.random.default_rng(2).integers(0, 64, (3, 17))
    batched = Batched(circuit, rows[:, :-1], space.names, dtype="float64")
    logits, _ = hidden(circuit.with_counts(space.named(space.start()[0])), rows[:, :-1])
    expected = cross_entropy(logits, rows[:, 1:]).mean()
    assert batched.nats(space.start(), rows[:, 1:])[0] == pytest.approx(expected, rel=1e-9)
    few = replace(circuit, calibration=replace(circuit.calibration, magnitudes={"logits": 1e-3}))
    assert math.isinf(Batched(few, rows[:, :-1], space.names).nats(space.start(), rows[:, 1:])[0])


def test_noise_is_one_and_the_same_for_all_candidates() -> None:
    circuit = tiny_circuit(tolerance=1e-4)
    space = Space.of(circuit)
    tokens = np.random.default_rng(1).integers(0, 64, (3, 16))
    counts = candidates(space, 5, seed=2)
    clear = Batched(circuit, tokens, space.names, dtype="float64")
    noisy = Batched(circuit, tokens, space.names, dtype="float64", sigma=2e-2)
    reference = clear.reference()
    first, again = (noisy.errors(counts, reference) for _ in range(2))
    alone = noisy.errors(counts[3:4], reference)
    assert first.tolist() == again.tolist()
    assert alone[0] == pytest.approx(first[3], rel=1e-12)
    assert first[0] > 2 * clear.errors(counts, reference)[0]


def test_unknown_dtypes_and_absent_gpus_are_refused() -> None:
    circuit = tiny_circuit()
    tokens = np.zeros((1, 4), dtype=np.int64)
    with pytest.raises(ConfigError, match="float32, float64"):
        Batched(circuit, tokens, (), dtype="bf16")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="--device"):
            Batched(circuit, tokens, (), device="cuda")


def test_the_memory_stated_grows_with_candidates_until_they_no_longer_run_together() -> None:
    circuit = tiny_circuit()
    batched = Batched(circuit, np.zeros((2, 8), dtype=np.int64), Space.of(circuit).names)
    each = 16 * (4 * circuit.shape.hidden + 10 * circuit.shape.width) * 4
    assert batched.memory(3) - batched.memory(1) == 2 * each
    assert batched.together == (1 << 29) // each
    assert batched.memory(10**9) == batched.memory(batched.together)
    assert batched.memory(1) > each
