# SPDX-License-Identifier: Apache-2.0
"""The fused sites of the GPU equal the eager ones, values and gradients; a captured update equals a plain one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def _model(seed: int, solver: str):  # type: ignore[no-untyped-def]
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
    prepared.adopt(calibrate(prepared, [tokens], 1e-4, delta_2=2, argmax=False, solver=solver))
    return prepared, tokens


def _gradients(prepared, tokens, eager: bool, mode: str):  # type: ignore[no-untyped-def]
    from heatfhe.sites import RangeBounds

    bounds = RangeBounds(score=2.0, activation=1.0, variance=0.01, denominator=0.05)
    if mode in ("exact", "unbounded"):
        prepared.set_mode("exact", bounds=bounds if mode == "exact" else None)
    else:
        prepared.set_mode("training", halting=mode, bounds=bounds, push=1e-3)
    prepared.switch.slack = 1.5
    kernels = prepared.switch.fused
    assert kernels is not None
    prepared.switch.fused = None if eager else kernels
    prepared.zero_grad(set_to_none=True)
    logits = prepared(tokens)
    terms = prepared.range_terms()
    loss = logits.float().square().mean() + 0.1 * sum(terms.values())
    loss.backward()
    prepared.switch.fused = kernels
    found = {n: p.grad.clone() for n, p in prepared.named_parameters() if p.grad is not None}
    return logits.detach(), {k: float(v.detach()) for k, v in terms.items()}, found


@pytest.mark.parametrize("solver", ["plain", "relaxed"])
@pytest.mark.parametrize("mode", ["exact", "unbounded", "soft", "hard"])
@pytest.mark.parametrize("seed", range(3))
def test_fused_equals_eager_in_float32(mode: str, seed: int, solver: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    prepared, tokens = _model(seed, solver)
    fused = _gradients(prepared, tokens, eager=False, mode=mode)
    eager = _gradients(prepared, tokens, eager=True, mode=mode)
    scale = eager[0].abs().max()
    assert float((fused[0] - eager[0]).abs().max() / scale) < 1e-5
    for name, value in eager[1].items():
        assert fused[1][name] == pytest.approx(value, rel=1e-4, abs=1e-6)
    for name, value in eager[2].items():
        worst = float((fused[2][name] - value).abs().max() / (value.abs().max() + 1e-12))
        assert worst < (1e-2 if name == "halting.logits" else 1e-4), (name, worst)


def test_fused_losses_weigh_windows_as_torchs_do() -> None:
    from heatfhe.training import fused
    from heatfhe.training.losses import distillation_loss, task_loss

    torch.manual_seed(1)
    logits, teacher = (3 * torch.randn(3, 7, 5001, device="cuda") for _ in range(2))
    targets = torch.randint(0, 5001, (3, 7), device="cuda")
    weights = torch.tensor([1.0, 0.0, 0.5], device="cuda")
    for quick, plain, wanted in (
        (fused.cross_entropy, task_loss, targets),
        (fused.divergence, distillation_loss, teacher),
    ):
        own, peer = logits.clone().requires_grad_(), logits.cpu().requires_grad_()
        left, right = quick(own, wanted, 5001, weights), plain(peer, wanted.cpu(), weights.cpu())
        left.backward()
        right.backward()
        assert float(left) == pytest.approx(float(right), rel=1e-5)
        assert float((own.grad.cpu() - peer.grad).abs().max() / peer.grad.abs().max()) < 1e-4
        assert float(own.grad[1].abs().max()) == 0.0


@pytest.mark.parametrize("rows", [1, 33])
def test_fused_losses_equal_torchs(rows: int) -> None:
    from heatfhe.training.losses import distillation_loss, task_loss

    torch.manual_seed(rows)
    logits, teacher = (3 * torch.randn(2, rows, 50257, device="cuda", dtype=torch.float64) for _ in range(2))
    targets = torch.randint(0, 50257, (2, rows), device="cuda")
    for fused, arguments in ((task_loss, (targets,)), (distillation_loss, (teacher.float(),))):
        own = logits.float().requires_grad_()
        loss = fused(own, *arguments)
        loss.backward()
        peer = logits.clone().requires_grad_()
        if fused is task_loss:
            wanted = torch.nn.functional.cross_entropy(peer.flatten(0, 1), targets.flatten())
        else:
            log_t = teacher.log_softmax(-1)
            wanted = (log_t.exp() * (log_t - peer.log_softmax(-1))).sum(-1).mean()
        wanted.backward()
        assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
        assert float((own.grad - peer.grad).abs().max() / peer.grad.abs().max()) < 1e-4


def _recipe(solver: str):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    from heatfhe.training.recipe import Recipe

    plain = Recipe(context=128, micro_tokens=384, solver=solver)
    return replace(plain, **{k: replace(p, tokens_per_update=384) for k, p in plain.phases.items()})


@pytest.mark.parametrize("solver", ["plain", "relaxed"])
def test_a_captured_update_has_the_gradient_of_a_plain_one(solver: str) -> None:
    from heatfhe.halting import BackOff
    from heatfhe.training.captured import CapturedBatch
    from heatfhe.training.loop import configure, make_optimizer
    from heatfhe.training.losses import losses, prior

    torch.backends.cuda.matmul.allow_tf32 = False
    recipe = _recipe(solver)
    found = []
    for captured in (False, True):
        prepared, tokens = _model(2, solver)
        tokens = tokens[:, :129]
        configure(prepared, recipe.heat, recipe)
        targets = BackOff.start(prepared.sites)
        optimizer = make_optimizer(prepared, recipe.heat, recipe)
        if captured:
            step = CapturedBatch(prepared, None, recipe.heat, tokens, share=1.0, narrow=False)
            step.pull(prior(prepared, recipe, targets, 7), 0.5)
            before = prepared.modes()
            mean, finite, modes = step.update([tokens], optimizer, 1e9)
            assert finite
            assert modes == before
            assert mean["iter"] > 0
        else:
            losses(prepared, prepared, None, tokens, recipe.heat, recipe, targets, 7).total(recipe.heat, 0.5).backward()
        found.append({n: p.grad.clone() for n, p in prepared.named_parameters() if p.grad is not None})
    for name, value in found[0].items():
        worst = float((found[1][name] - value).abs().max() / (value.abs().max() + 1e-12))
        assert worst < (1e-2 if name == "halting.logits" else 1e-3), (name, worst)


def test_a_captured_update_with_odd_windows_has_the_gradient_of_a_plain_one() -> None:
    """Replays with other marks, and without any between them: what is copied in counts, not what was captured."""
    from heatfhe.halting import BackOff
    from heatfhe.training.captured import CapturedBatch
    from heatfhe.training.loop import configure, make_optimizer
    from heatfhe.training.losses import losses, prior

    torch.backends.cuda.matmul.allow_tf32 = False
    recipe = _recipe("plain")
    teacher = _model(5, "plain")[0].model
    prepared, tokens = _model(2, "plain")
    tokens = tokens[:, :129]
    configure(prepared, recipe.heat, recipe)
    targets = BackOff.start(prepared.sites)
    optimizer = make_optimizer(prepared, recipe.heat, recipe)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        group["weight_decay"] = 0.0
    step = CapturedBatch(prepared, teacher, recipe.heat, tokens, share=1.0, narrow=False, mixed=True)
    step.pull(prior(prepared, recipe, targets, 7), 0.5)
    tasks = []
    for marks in ([1, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0]):
        odd = torch.tensor(marks, dtype=torch.bool)
        mean, finite, _ = step.update([tokens], optimizer, 1e9, [odd])
        assert finite
        own = {n: p.grad.clone() for n, p in prepared.named_parameters() if p.grad is not None}
        terms = losses(prepared, prepared, teacher, tokens, recipe.heat, recipe, targets, 7, odd=odd)
        wanted = dict(
            zip(
                own,
                torch.autograd.grad(terms.total(recipe.heat, 0.5), [dict(prepared.named_parameters())[n] for n in own]),
            )
        )
        assert mean["task"] == pytest.approx(float(terms.task), rel=1e-4)
        tasks.append(mean["task"])
        for name, value in wanted.items():
            worst = float((own[name] - value).abs().max() / (value.abs().max() + 1e-12))
            assert worst < (1e-2 if name == "halting.logits" else 1e-3), (marks, name, worst)
    assert len({round(t, 3) for t in tasks[:4]}) == 4
    assert tasks[4] == pytest.approx(tasks[0], rel=1e-6)


def test_a_captured_update_with_a_nan_changes_nothing() -> None:
    from heatfhe.training.captured import CapturedBatch
    from heatfhe.training.loop import configure, make_optimizer

    recipe = _recipe("plain")
    prepared, tokens = _model(3, "plain")
    tokens = tokens[:, :129]
    configure(prepared, recipe.heat, recipe)
    optimizer = make_optimizer(prepared, recipe.heat, recipe)
    step = CapturedBatch(prepared, None, recipe.heat, tokens, share=1.0, narrow=False)
    before = {n: p.detach().clone() for n, p in prepared.named_parameters()}
    step.pull(torch.zeros_like(step._prior).cpu(), float("nan"))
    _, finite, _ = step.update([tokens], optimizer, recipe.clip)
    assert not finite
    assert all(torch.equal(p, before[n]) for n, p in prepared.named_parameters())
