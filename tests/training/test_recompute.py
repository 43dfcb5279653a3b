# SPDX-License-Identifier: Apache-2.0
"""Activations computed again: the same gradients bit for bit, a fraction of the memory, and refusals by the bytes."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heatfhe.cli import main
from heatfhe.errors import ConfigError
from heatfhe.ranges import calibrate
from heatfhe.sites import PrepareConfig, Prepared, RangeBounds, described, prepare
from heatfhe.training import Recipe, check_memory, memory, read_log, recipe, training_memory
from heatfhe.training.recompute import blocks, recomputed
from tests.gpt2_tiny import random_tokens, tiny_gpt2
from tests.llama_tiny import tiny_llama
from tests.training.short import fresh, go, same_weights, short

TIGHT = RangeBounds(activation=0.1, score=0.1, denominator=0.1, variance=0.1)  # every term at work


def calibrated(kind: str, prefix: tuple[int, ...] = (), **options: Any) -> Prepared:
    model = tiny_gpt2(0, **options) if kind == "gpt2" else tiny_llama(3, **options)
    prepared = prepare(model, PrepareConfig(prefix=prefix))
    tokens = random_tokens(1, rows=8, length=12)
    prepared.adopt(calibrate(prepared, [tokens], 1e-2, margin=1.3, activation_tolerance=1e-1, argmax=False))
    return prepared


def passed(
    prepared: Prepared, tokens: Tensor, around: AbstractContextManager[None]
) -> tuple[list[Any], dict[str, float], int]:
    """Gradients, range terms after backward, and the bytes that were kept for it, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in prepared.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(value: Tensor) -> Tensor:
        if value.untyped_storage().data_ptr() not in weights:
            kept[value.untyped_storage().data_ptr()] = value
        return value

    prepared.zero_grad(set_to_none=True)
    with around, torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        loss = prepared(tokens).square().mean() + sum(prepared.range_terms().values())
        size = sum(v.untyped_storage().nbytes() for v in kept.values())
        loss.backward()
    terms = {name: float(term.detach()) for name, term in prepared.range_terms().items()}
    return [None if p.grad is None else p.grad.clone() for p in prepared.parameters()], terms, size


@pytest.mark.parametrize("prefix", [(), (47, 11, 2)], ids=["bare", "prefix"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_gradients_are_the_same_bit_for_bit(kind: str, prefix: tuple[int, ...]) -> None:
    prepared, tokens = calibrated(kind, prefix), random_tokens(1, rows=8, length=12)
    modes: list[dict[str, Any]] = [{"mode": "exact"}, {"mode": "training"}, {"mode": "training", "halting": "hard"}]
    for mode in modes:
        prepared.set_mode(**mode, bounds=TIGHT)
        plain, terms, size = passed(prepared, tokens, nullcontext())
        again, same_terms, less = passed(prepared, tokens, recomputed(prepared))
        assert terms == same_terms
        assert len(terms) >= 3
        for a, b in zip(plain, again, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)
        assert sum(g is not None and bool((g != 0).any()) for g in plain) > 15
        assert 4 * less < size
    assert all("forward" not in vars(block) for block in blocks(prepared.model))


def test_a_run_is_the_same_with_and_without_it_and_goes_on_either_way(tmp_path: Path) -> None:
    one, two = fresh(), fresh()
    go(one, short(), tmp_path / "one")
    updates = iter(range(100))
    from heatfhe.training import Stopped

    with pytest.raises(Stopped):
        go(fresh(), short(), tmp_path / "two", stop=lambda: next(updates) >= 4)
    go(two, short(recompute=True), tmp_path / "two")
    assert same_weights(one, two)
    curves = [[x["task"] for x in read_log(tmp_path / name) if x["kind"] == "update"] for name in ("one", "two")]
    assert curves[0] == curves[1]
    assert short().digest == short(recompute=True).digest
    assert Recipe.from_json(short(recompute=True).as_json()).recompute


@pytest.mark.parametrize(("layers", "width", "heads", "context"), [(2, 32, 2, 12), (4, 64, 4, 12), (3, 32, 4, 40)])
@pytest.mark.parametrize("again", [False, True])
def test_the_estimate_is_what_a_pass_keeps(layers: int, width: int, heads: int, context: int, again: bool) -> None:
    """Within a quarter below and a half above: refusing is for what cannot fit, not for the last megabyte."""
    prepared = calibrated("gpt2", layers=layers, width=width, heads=heads, n_positions=40)
    prepared.set_mode("training", bounds=RangeBounds(activation=32.0, score=14.0, denominator=7.0, variance=16.0))
    rows = 64
    *_, kept = passed(
        prepared, random_tokens(1, rows=rows, length=context), nullcontext() if not again else recomputed(prepared)
    )
    made = replace(short(recompute=again).adjusted(context=context), micro_tokens=rows * context)
    need = training_memory(prepared.architecture, 0, made, gpu=False)
    whole = training_memory(prepared.architecture, 0, replace(made, recompute=False), gpu=False)
    block = (whole.activations - rows * context * 16 * width) / layers
    wanted = need.activations - (block if again else 0)  # a recomputed block is there on the way back alone
    logits = rows * context * 48 * 4
    assert 0.75 < (kept - logits) / wanted < 1.5


def test_gpt2_large_is_refused_with_the_bytes_it_needs(tmp_path: Path) -> None:
    """From its configuration alone: 774 million parameters are never made."""
    large = {"n_layer": 36, "n_embd": 1280, "n_head": 20, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (tmp_path / "config.json").write_text(json.dumps(large))
    architecture, parameters = described(tmp_path)
    assert parameters == 774_030_080
    asked = recipe("gpt2-small")
    need = {
        again: training_memory(architecture, parameters, replace(asked, recompute=again), gpu=True)
        for again in (False, True)
    }
    assert need[False].moments == 8 * parameters
    assert need[True].activations < need[False].activations / 5
    with pytest.raises(
        ConfigError, match=r"large: an update needs about [\d.]+ GiB \(weights .* 24.00 GiB are free .*--recompute"
    ):
        check_memory(need[False], asked, "large", (24 << 30, "free on a card"))
    check_memory(need[True], asked, "large", (140 << 30, "free on a card"))
    split = training_memory(architecture, parameters, asked, gpu=True, processes=4, shard=True)
    assert split.moments == need[False].moments // 4


def test_the_command_refuses_before_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: (1 << 20, "in this machine"))
    monkeypatch.setattr("heatfhe.sites.prepare", lambda *_: pytest.fail("loaded"))
    assert main(["train", "default", "-o", str(tmp_path / "out"), "--share", "0.01"]) == 1
    said = capsys.readouterr().err
    assert "default: an update needs about" in said
    assert "0.00 GiB are in this machine; use --recompute" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.gpu
def test_a_captured_step_recomputes_too() -> None:
    """On a GPU a micro-batch is one graph: its gradients with recomputation are those without, in the last bits at most
    (sums of atomics have no order)."""
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    from heatfhe.halting import BackOff
    from heatfhe.training.captured import CapturedBatch
    from heatfhe.training.loop import configure
    from heatfhe.training.losses import prior

    found = []
    for around in (lambda _: nullcontext(), recomputed):
        prepared, made = calibrated("gpt2", width=64), short()
        prepared.cuda()
        configure(prepared, made.heat, made)
        rows = random_tokens(2, rows=8, length=13).cuda()
        with around(prepared):  # type: ignore[no-untyped-call]
            captured = CapturedBatch(prepared, None, made.heat, rows, share=1.0, narrow=True)
            captured.pull(prior(prepared, made, BackOff.start(prepared.sites), 1), 0.6)
            torch._foreach_zero_([p.grad for p in captured.parameters])
            captured.graph.replay()
            torch.cuda.synchronize()
        found.append([p.grad.clone() for p in captured.parameters])
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) <= 1e-5 * float(a.abs().max())
