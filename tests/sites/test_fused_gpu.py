# SPDX-License-Identifier: Apache-2.0
"""The fused attention of the GPU equals the eager one, values and gradients."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def _model(seed: int):  # type: ignore[no-untyped-def]
    from transformers import GPT2Config, GPT2LMHeadModel

    from heatfhe.ranges import calibrate
    from heatfhe.sites import prepare

    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=256, n_positions=192, bos_token_id=0, eos_token_id=0)
    )
    for block in model.transformer.h:
        block.attn.c_attn.weight.data *= 6.0  # wide scores, so that guards and range terms are at work
    prepared = prepare(model.cuda().eval())
    tokens = torch.randint(0, 256, (3, 150), device="cuda")
    prepared.adopt(calibrate(prepared, [tokens], 1e-4, delta_2=2))
    return prepared, tokens


def _gradients(prepared, tokens, eager: bool, mode: str):  # type: ignore[no-untyped-def]
    from heatfhe.sites import RangeBounds
    from heatfhe.sites.attention import AttentionSite

    bounds = RangeBounds(score=2.0)
    if mode == "exact":
        prepared.set_mode("exact", bounds=bounds)
    else:
        prepared.set_mode("training", halting="soft", bounds=bounds, push=1e-3)
        narrow = prepared.calibration.softmaxes
        assert narrow
    for module in prepared.model.modules():
        if isinstance(module, AttentionSite):
            module.fused = None if eager else module.fused
    prepared.zero_grad(set_to_none=True)
    logits = prepared(tokens)
    terms = prepared.range_terms()
    loss = logits.float().square().mean() + 0.1 * sum(terms.values())
    loss.backward()
    found = {n: p.grad.clone() for n, p in prepared.named_parameters() if p.grad is not None}
    return logits.detach(), {k: float(v) for k, v in terms.items()}, found


@pytest.mark.parametrize("mode", ["exact", "soft"])
@pytest.mark.parametrize("seed", range(3))
def test_fused_equals_eager_in_float32(mode: str, seed: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    prepared, tokens = _model(seed)
    fused = _gradients(prepared, tokens, eager=False, mode=mode)
    eager = _gradients(prepared, tokens, eager=True, mode=mode)
    scale = eager[0].abs().max()
    assert float((fused[0] - eager[0]).abs().max() / scale) < 3e-3  # tl.dot runs float32 inputs in tf32
    for name, value in eager[1].items():
        assert fused[1][name] == pytest.approx(value, rel=5e-3, abs=1e-5)
    for name, value in eager[2].items():
        worst = float((fused[2][name] - value).abs().max() / (value.abs().max() + 1e-12))
        assert worst < 2e-2, (name, worst)


def test_compiled_step_equals_eager() -> None:
    prepared, tokens = _model(5)
    eager = _gradients(copy.copy(prepared), tokens, eager=False, mode="soft")
    compiled = torch.compile(prepared)
    prepared.zero_grad(set_to_none=True)
    logits = compiled(tokens)
    assert float((logits - eager[0]).abs().max() / eager[0].abs().max()) < 1e-2
