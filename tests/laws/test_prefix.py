# SPDX-License-Identifier: Apache-2.0
"""A public prefix: its positions are exact and in no domain, its keys and values enter the cache as plaintexts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, DataError, PlanError
from heatfhe.evaluation import stress_circuit, stress_prepared
from heatfhe.lowering import export
from heatfhe.planning import Plan, plan
from heatfhe.ranges import calibrate, observe
from heatfhe.sites import PrepareConfig, Prepared, RangeBounds, load_prepared, prepare, restore, save_prepared
from tests.gpt2_tiny import tiny_gpt2, worst
from tests.llama_tiny import random_tokens, tiny_llama
from tests.planning.clear_run import clear_params, distance, generate, talks, teacher_forced

PREFIX = (47, 11, 2)
MODELS: dict[str, Any] = {"llama": lambda: tiny_llama(0), "gpt2": lambda: tiny_gpt2(0)}
KINDS = pytest.mark.parametrize("kind", MODELS)


@lru_cache(maxsize=2)
def exported(kind: str) -> tuple[Prepared, Tensor, Circuit]:
    prepared = prepare(MODELS[kind](), PrepareConfig(prefix=PREFIX))
    tokens = random_tokens(1, rows=24, length=13)
    calibration = calibrate(prepared, [tokens], 1e-2, margin=1.3, activation_tolerance=1e-2)
    prepared.adopt(calibration)
    return prepared, tokens, export(prepared, calibration)


@KINDS
def test_an_exact_model_sees_the_prefix_as_its_first_tokens(kind: str) -> None:
    prepared, tokens = prepare(MODELS[kind](), PrepareConfig(prefix=PREFIX)), random_tokens(1, rows=4, length=13)
    found = prepared.logits(tokens, mode="exact")
    whole = torch.cat([torch.tensor([PREFIX] * 4), tokens], dim=1)
    with torch.no_grad():
        wanted: Any = restore(prepared)(whole)
    assert worst(found, wanted.logits[:, 3:]) < 1e-5


@KINDS
def test_law_2_deployed_is_the_circuit(kind: str) -> None:
    prepared, tokens, circuit = exported(kind)
    found = circuit.run(tokens.numpy())
    assert worst(prepared.logits(tokens, "float64"), found) < 1e-9
    assert worst(prepared.logits(tokens, "float64", mode="exact"), found) < 0.2  # and it still is the model
    assert np.array_equal(circuit.run(tokens[3].numpy()), found[3])


@KINDS
def test_laws_4_and_6_the_circuit_is_its_plan(kind: str, tmp_path: Path) -> None:
    """Past the wrap of the cache: a ciphertext holds four of the sixteen positions, the prefix takes three."""
    _, tokens, circuit = exported(kind)
    made = plan(circuit, clear_params(64), programs=("generate", "prompt", "logits"))
    assert (made.context, made.prefix, made.packing.context) == (13, 3, 16)
    assert made.packing.t < 8
    runs = [generate(made, circuit, prompt, 5, strict=False) for prompt in ([3, 1, 4], [7, 40, 2])]
    wanted = circuit.generate([3, 1, 4], 5)
    assert max(np.abs(a - b).max() for a, b in zip(runs[0].one_hots, wanted.one_hots, strict=True)) < 1e-8
    assert runs[0].trace == runs[1].trace
    windows = tokens[:3].numpy()
    logits = circuit.run(windows)
    assert np.abs(teacher_forced(made, circuit, windows, strict=False) - logits).max() < 1e-8 * np.abs(logits).max()
    bare = plan(replace(circuit, calibration=replace(circuit.calibration, prefix=())), clear_params(64))
    assert [s.kind for s in bare.programs["generate"].steps] == [s.kind for s in made.programs["generate"].steps]
    made.save(tmp_path / "plan")
    assert Plan.load(tmp_path / "plan") == made


@KINDS
@pytest.mark.parametrize(
    ("slots", "planned", "given"), [(64, 13, 13), (64, 6, 5), (64, 1, 1), (128, 13, 9), (128, 5, 5), (512, 13, 12)]
)
def test_a_prompt_at_once_behind_it(kind: str, slots: int, planned: int, given: int) -> None:
    """Blocks of four, eight and sixteen places, of which the prefix takes three of the first; magnitudes beyond a
    refresh's bound would raise, those of what fills the places too. Tokens go on from there past the wrap."""
    _, tokens, circuit = exported(kind)
    made = plan(circuit, clear_params(slots), programs=("logits", "prompt"), prefill=planned, placement="greedy")
    assert made.prefill >= planned
    single, packed = talks(made, circuit, tokens[0, :given].numpy())
    assert distance(single, packed) < 1e-8
    for token in tokens[0, given:].tolist():
        x = [packed.runner.engine.value(made.packing.pack_residual(circuit.folded.token[token]))]
        one, other = single.logits(x), packed.logits(x)
        assert max(float(np.abs(a.slots - b.slots).max()) for a, b in zip(one, other)) < 1e-8
    assert distance(single, packed) < 1e-8


def test_a_prompt_at_once_behind_a_prefix_as_long_as_a_head_is_wide_is_refused() -> None:
    circuit = exported("llama")[2]
    long = replace(circuit, calibration=replace(circuit.calibration, prefix=(47, 11, 2, 5)))
    with pytest.raises(PlanError, match=r"public prefixes of at most 3 tokens, .* this one has 4: plan without it"):
        plan(long, clear_params(64), prefill=4)
    with pytest.raises(PlanError, match="a prefill of 14 tokens does not fit the cache of 13 positions"):
        plan(circuit, clear_params(64), prefill=14)


@KINDS
def test_domains_leave_the_prefix_out(kind: str) -> None:
    """A token whose row is a thousand times as large widens every domain, unless it is public."""
    model = MODELS[kind]()
    with torch.no_grad():
        model.get_input_embeddings().weight[PREFIX[0]] *= 1000.0
    tokens = random_tokens(1, rows=8, length=13)
    tokens[tokens == PREFIX[0]] = 1
    first = torch.full((8, 1), PREFIX[0])
    wide = observe(prepare(model), [torch.cat([first, tokens], dim=1)])
    narrow = observe(prepare(restore(model), PrepareConfig(prefix=PREFIX[:1])), [tokens])
    name = next(iter(narrow.norms))
    assert wide.norms[name].hi > 1e4 * narrow.norms[name].hi
    assert (wide.context, narrow.context) == (14, 14)
    for own, all_rows in ((narrow.scores, wide.scores), (narrow.activations, wide.activations)):
        assert all(all_rows[k].lo <= own[k].lo + 1e-4 and own[k].hi <= all_rows[k].hi + 1e-4 for k in own)


@KINDS
def test_stress_leaves_it_out(kind: str) -> None:
    prepared, tokens, circuit = exported(kind)
    rows = {"calibrated": tokens.numpy()}
    (found,), (same,) = stress_circuit(circuit, rows), stress_prepared(prepared, rows, batch=8)
    assert (found.diverged, found.outside) == (same.diverged, same.outside) == (0, 0)


@KINDS
def test_it_learns_through_the_prefix(kind: str) -> None:
    prepared, tokens, _ = exported(kind)
    prepared.set_mode("training", bounds=RangeBounds(activation=0.1, score=0.1, denominator=0.1, variance=0.1))
    try:
        prepared(tokens[:2]).square().mean().add(sum(prepared.range_terms().values())).backward()
        words = prepared.model.get_input_embeddings().weight.grad
        assert all(float(words[token].abs().max()) > 0.0 for token in PREFIX)
        assert prepared.switch.public == 0
    finally:
        prepared.zero_grad()
        prepared.set_mode("exact")


def test_files_keep_the_prefix(tmp_path: Path) -> None:
    prepared, tokens, circuit = exported("llama")
    circuit.save(tmp_path / "c")
    again = Circuit.load(tmp_path / "c")
    assert (again.prefix, again.digest, again.room) == (PREFIX, circuit.digest, 13)
    save_prepared(prepared, tmp_path / "m")
    model = type(prepared.model).from_pretrained(tmp_path / "m")
    loaded = load_prepared(tmp_path / "m", model)
    assert loaded.config.prefix == PREFIX
    assert torch.equal(loaded.logits(tokens), prepared.logits(tokens))


def test_what_does_not_fit_is_refused() -> None:
    prepared, _, circuit = exported("llama")
    long = random_tokens(rows=1, length=14)
    with pytest.raises(ConfigError, match=r"17 positions, 3 of them a public prefix, do not fit .* context of 16"):
        circuit.run(long.numpy())
    with pytest.raises(DataError, match="14 tokens behind a prefix of 3 exceeds the model's context of 16"):
        observe(prepared, [long])
    with pytest.raises(ConfigError, match="position 13 lies outside the plan's cache of 13"):
        teacher_forced(plan(circuit, clear_params(64), programs=("logits",)), circuit, long.numpy(), strict=False)
    with pytest.raises(ConfigError, match=r"prefix: 16 public tokens, .* must leave room"):
        prepare(tiny_llama(), PrepareConfig(prefix=(1,) * 16))
    with pytest.raises(ConfigError, match="prefix: the calibration holds behind its own 3 tokens alone"):
        export(prepared, prefix=(1, 2))
    with pytest.raises(ConfigError, match="made behind a prefix of 3 tokens"):
        prepare(tiny_llama()).adopt(circuit.calibration)


def test_a_calibration_without_one_takes_any_prefix() -> None:
    prepared, tokens = prepare(tiny_gpt2(0)), random_tokens(1, rows=24)
    calibration = calibrate(prepared, [tokens], 1e-2, margin=1.3, activation_tolerance=1e-2)
    prepared.adopt(calibration)
    circuit = export(prepared, prefix=tokens[0, :3].tolist())
    exact = prepared.logits(tokens[0], "float64", mode="exact")[3:]
    assert worst(circuit.run(tokens[0, 3:].numpy()), exact) < 0.2
