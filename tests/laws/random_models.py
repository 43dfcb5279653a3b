# SPDX-License-Identifier: Apache-2.0
"""Laws 1, 2, 4 and 6 as checks of any model: what every architecture's own test runs over its random models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heatfhe.circuit import Circuit, Generation
from heatfhe.planning import plan
from heatfhe.planning.pack import power_of_two
from heatfhe.sites import Prepared, prepare, restore
from tests.gpt2_tiny import worst
from tests.planning.clear_run import clear_params, distance, generate, talks, teacher_forced

SEEDS = [pytest.param(seed, marks=() if seed < 5 else pytest.mark.slow) for seed in range(100)]


def clean(made: Generation) -> bool:
    """Whether a word was chosen every time: what an undecided row of a random model leads to lies in no domain."""
    return all(0.9 < leader < 1.1 for leader in made.leaders)


def check_law_1(model: Any, tokens: Tensor, *, by_model: bool) -> None:
    """Restored, it is the original."""
    classes = [type(m) for m in model.modules()]
    with torch.no_grad():
        before = model(tokens).logits
        state = {k: v.clone() for k, v in model.state_dict().items()}
        prepared = prepare(model)
        assert worst(prepared(tokens), before) < 1e-5
        assert list(model.state_dict()) == list(state)
        assert restore(model if by_model else prepared) is model
        assert torch.equal(model(tokens).logits, before)
    assert all(torch.equal(model.state_dict()[k], state[k]) for k in state)
    assert [type(m) for m in model.modules()] == classes
    assert not model._forward_pre_hooks


def check_law_2(prepared: Prepared, tokens: Tensor, circuit: Circuit) -> None:
    """Deployed, it is the circuit."""
    found = circuit.run(tokens.numpy())
    assert worst(prepared.logits(tokens, "float64"), found) < 1e-9
    assert worst(prepared.logits(tokens, "float32"), found) < 1e-4


def check_laws_4_and_6(tokens: Tensor, circuit: Circuit, mlp: str) -> None:
    """The circuit is its plan, free running and on windows, past the wrap of the cache: each of four ciphertexts holds
    four positions. The trace is the same for any prompt. A prompt at once leaves the same cache."""
    padded = power_of_two(circuit.shape.heads) * power_of_two(circuit.shape.head_width)
    small = plan(circuit, clear_params(4 * padded), programs=("generate", "prompt", "logits"), mlp=mlp)
    assert (small.packing.t, small.packing.m) == (4, 4)
    prompts = tokens[:, :3].tolist()
    expected = [(prompt, made) for prompt in prompts if clean(made := circuit.generate(prompt, 6))][:2]
    runs = [generate(small, circuit, prompt, 6, strict=False) for prompt, _ in expected]
    for run, (_, made) in zip(runs, expected, strict=True):
        assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, made.one_hots, strict=True)) < 1e-8
    assert runs[0].trace == runs[1].trace
    windows = tokens[:3].numpy()
    wanted = circuit.run(windows)
    found = teacher_forced(small, circuit, windows, strict=False)
    assert np.abs(found - wanted).max() < 1e-8 * np.abs(wanted).max()
    many = plan(circuit, clear_params(4 * padded), programs=("prompt",), mlp=mlp, placement="greedy", prefill=11)
    assert distance(*talks(many, circuit, windows[0][:10], strict=False)) < 1e-8
