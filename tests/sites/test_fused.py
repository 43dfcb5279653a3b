# SPDX-License-Identifier: Apache-2.0
"""Fused sites behind a prefix, of shared keys, of turned heads and of RMS norms equal the eager ones, gradients too.

On a GPU, or anywhere with triton installed and TRITON_INTERPRET=1 set, under which the kernels run as numpy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

VOCABULARY = 400
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]


@dataclass(frozen=True)
class Case:
    """A tiny model of one layer and how it runs. ``heads`` over ``kept`` keys and values; none kept: a GPT-2."""

    public: int
    heads: int
    kept: int
    width: int
    mode: str
    rotary: bool = True
    solver: str = "plain"
    biases: bool = False
    windows: int = 1
    tokens: int = 70  # with the prefix, of no multiple of a block


CASES = [
    Case(0, 3, 1, 16, "soft", windows=2),
    Case(1, 3, 1, 32, "soft", solver="relaxed"),
    Case(2, 3, 1, 64, "soft", windows=2),
    Case(5, 3, 3, 16, "soft", biases=True),
    Case(0, 3, 3, 32, "hard"),
    Case(2, 3, 1, 16, "hard", rotary=False),
    Case(5, 3, 1, 32, "hard", rotary=False),
    Case(0, 3, 1, 64, "exact"),
    Case(1, 3, 3, 16, "exact", rotary=False),
    Case(2, 3, 1, 32, "exact", windows=2),
    Case(5, 3, 1, 16, "exact"),
    Case(70, 3, 1, 16, "soft", tokens=67),  # more public rows than a block has
    Case(2, 3, 1, 16, "unbounded"),
    Case(0, 2, 0, 16, "soft"),
    Case(1, 2, 0, 16, "hard"),
    Case(2, 2, 0, 32, "soft", windows=2),
    Case(5, 2, 0, 16, "exact"),
]


def _model(case: Case) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.llama_tiny import tiny_llama

    if case.kept:
        options = {"num_hidden_layers": 1, "max_position_embeddings": 160, "attention_bias": case.biases}
        options |= {"vocab_size": VOCABULARY, "initializer_range": (case.heads * case.width) ** -0.5}
        return tiny_llama(1, (case.heads, case.kept, case.width, 40), **options)
    torch.manual_seed(1)
    size = {"n_layer": 1, "n_embd": case.heads * case.width, "n_head": case.heads, "n_positions": 160}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size))
    model.transformer.h[0].attn.c_attn.weight.data *= 12.0
    # Tokens of all sizes, or Newton's states are one number and their gradient is what rounding leaves of it.
    model.transformer.wte.weight.data *= torch.linspace(1.0, 12.0, VOCABULARY)[:, None]
    return model.eval()


def _prepared(case: Case, device: str) -> tuple[Any, Any]:
    from heatfhe.ranges import calibrate
    from heatfhe.sites import PrepareConfig, prepare
    from heatfhe.sites.attention import AttentionSite

    # No token twice: of two largest scores in a row eager gradients take halves. None of those calibrated on: rows that
    # set the ends of a domain would stand on a guard's edge.
    ids = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(case.public))
    prefix, others = ids[: case.public].tolist(), ids[case.public :]
    seen, tokens = others[: 4 * case.tokens].view(2, 2, -1).to(device)
    prepared = prepare(_model(case).to(device), PrepareConfig(prefix=tuple(prefix)))
    for site in prepared.modules():
        if isinstance(site, AttentionSite) and not case.rotary:
            site.stage = replace(site.stage, rotary=None)
    prepared.adopt(calibrate(prepared, [seen], 1e-4, delta_2=2, argmax=False, solver=case.solver))
    return prepared, tokens[: case.windows]


def _results(prepared: Any, tokens: Any, mode: str) -> tuple[Any, dict[str, float], dict[str, Any]]:
    from heatfhe.sites import RangeBounds

    bounds = RangeBounds(score=1.0, activation=0.5, variance=0.01, denominator=0.05)
    if mode in ("exact", "unbounded"):
        prepared.set_mode("exact", bounds=bounds if mode == "exact" else None)
    else:
        prepared.set_mode("training", halting=mode, bounds=bounds, push=1e-3)
    prepared.switch.slack = 1.5
    prepared.zero_grad(set_to_none=True)
    logits = prepared(tokens)
    terms = prepared.range_terms()
    (logits.float().square().mean() + 0.1 * sum(terms.values())).backward()
    found = {n: p.grad.clone() for n, p in prepared.named_parameters() if p.grad is not None}
    return logits.detach(), {k: float(v.detach()) for k, v in terms.items()}, found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.mode}-behind-{c.public}-{c.heads}x{c.width}-over-{c.kept}")
def test_fused_equals_eager(case: Case, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from heatfhe.sites import activation, attention, norm
    from heatfhe.sites.switch import Switch

    torch.backends.cuda.matmul.allow_tf32 = False
    prepared, tokens = _prepared(case, device)
    with monkeypatch.context() as patch:
        patch.setattr(prepared.switch, "fused", None)
        eager = _results(prepared, tokens, case.mode)
    for owner, name in (
        (attention, "attend_eagerly"),
        (norm.NormSite, "_rows"),
        (activation.ActivationSite, "_rows"),
    ):
        monkeypatch.setattr(owner, name, None)  # all of it goes through kernels
    if device == "cpu":
        monkeypatch.setattr(Switch, "kernels", lambda switch, x: switch.fused)
        monkeypatch.setattr(import_module("heatfhe.sites.fused.norm"), "ROWS", 64)  # few programs: each takes long
    fused = _results(prepared, tokens, case.mode)
    assert float((fused[0] - eager[0]).abs().max() / eager[0].abs().max()) < 1e-5
    assert fused[1].keys() == eager[1].keys()
    for name, value in eager[1].items():
        assert fused[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert fused[2].keys() == eager[2].keys()
    for name, value in eager[2].items():
        worst = float((fused[2][name] - value).abs().max() / (value.abs().max() + 1e-12))
        assert worst < (1e-2 if name == "halting.logits" else 1e-4), (name, worst)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("phase", ["squeeze", "heat"])
def test_a_captured_update_of_a_llama_behind_a_prefix_has_the_gradient_of_a_plain_one(phase: str) -> None:
    from heatfhe.halting import BackOff
    from heatfhe.training.captured import CapturedBatch
    from heatfhe.training.loop import configure, make_optimizer
    from heatfhe.training.losses import losses, prior
    from heatfhe.training.recipe import Recipe

    torch.backends.cuda.matmul.allow_tf32 = False
    plain = Recipe(context=64, micro_tokens=128)
    recipe = replace(plain, **{k: replace(p, tokens_per_update=128) for k, p in plain.phases.items()})
    own = replace(recipe.phases[phase], distil=False)
    found = []
    for captured in (False, True):
        prepared, tokens = _prepared(Case(2, 3, 1, 32, "soft", windows=2), "cuda")
        tokens = tokens[:, :65]
        configure(prepared, own, recipe)
        targets = BackOff.start(prepared.sites)
        optimizer = make_optimizer(prepared, own, recipe)
        if captured:
            step = CapturedBatch(prepared, None, own, tokens, share=1.0, narrow=False)
            with torch.no_grad():
                prepared(tokens[:, :33])  # a pass of another length between capture and replay
            step.pull(prior(prepared, recipe, targets, 7), 0.5)
            _, finite, _ = step.update([tokens], optimizer, 1e9)
            assert finite
        else:
            losses(prepared, prepared, None, tokens, own, recipe, targets, 7).total(own, 0.5).backward()
        found.append({n: p.grad.clone() for n, p in prepared.named_parameters() if p.grad is not None})
    for name, value in found[0].items():
        worst = float((found[1][name] - value).abs().max() / (value.abs().max() + 1e-12))
        assert worst < (1e-2 if name == "halting.logits" else 1e-3), (name, worst)
