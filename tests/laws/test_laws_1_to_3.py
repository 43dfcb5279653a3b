# SPDX-License-Identifier: Apache-2.0
"""Laws 1 to 3 over a hundred small random GPT-2: restored, deployed and one-hot equal what they stand for."""

from __future__ import annotations

import pytest
import torch

from heatfhe.approx import ReciprocalFit, divide, inverse_sqrt, reciprocal
from heatfhe.halting import expected_divide, expected_newton, expected_reciprocal
from heatfhe.lowering import export
from heatfhe.ranges import FitOptions, fit_calibration, observe
from heatfhe.sites import prepare, restore
from tests.approx.steps import newton_step
from tests.gpt2_tiny import random_tokens, tiny_gpt2, worst

SEEDS = range(100)
FUNCTIONS = ("gelu_new", "gelu", "silu")


def shape(seed: int) -> dict[str, int | str]:
    return {"width": 16 + 16 * (seed % 2), "heads": 2 << (seed % 3 == 0), "activation_function": FUNCTIONS[seed % 3]}


@pytest.mark.parametrize("seed", SEEDS)
def test_law_1_restored_is_the_original(seed: int) -> None:
    model, tokens = tiny_gpt2(seed, **shape(seed)), random_tokens(seed, rows=2)  # type: ignore[arg-type]
    classes = [type(m) for m in model.modules()]
    with torch.no_grad():
        before = model(tokens).logits
        state = {k: v.clone() for k, v in model.state_dict().items()}
        prepared = prepare(model)
        prepared(tokens)
        assert restore(prepared if seed % 2 else model) is model
        assert torch.equal(model(tokens).logits, before)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[k], state[k]) for k in state)
    assert [type(m) for m in model.modules()] == classes
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("seed", SEEDS)
def test_law_2_deployed_is_the_circuit(seed: int) -> None:
    prepared, tokens = prepare(tiny_gpt2(seed, **shape(seed))), random_tokens(seed, rows=6)  # type: ignore[arg-type]
    seen = observe(prepared, [tokens])
    options = FitOptions(
        tolerance=10.0 ** -(1 + seed % 4),
        rule=("per-site", "joint")[seed // 2 % 2],
        solver=("plain", "relaxed")[seed // 4 % 2],
        form=("quotient", "partial")[seed // 8 % 2],
        activation_tolerance=1e-2,
        margin=1.3,
    )
    calibration = fit_calibration(prepared.architecture, seen, options)
    prepared.adopt(calibration)
    wide, narrow = prepared.logits(tokens, "float64"), prepared.logits(tokens, "float32")
    circuit = export(prepared, calibration).run(tokens.numpy())
    assert worst(wide, circuit) < 1e-9
    assert worst(narrow, circuit) < 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_law_3_one_hot_is_the_solver_at_that_count(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    kappa, lo = 10.0 ** (4.0 * torch.rand(2, generator=generator, dtype=torch.float64))
    fit = ReciprocalFit(lo=float(lo), hi=float(lo * (1.5 + kappa)), solver=("plain", "relaxed", "below")[seed % 3])
    top = 1 + seed % 16
    count = int(torch.randint(0, top + 1, (), generator=generator))
    p = torch.nn.functional.one_hot(torch.tensor(count), top + 1).double()
    d = fit.lo * (fit.hi / fit.lo) ** torch.rand(64, generator=generator, dtype=torch.float64)
    n = torch.randn(64, generator=generator, dtype=torch.float64)
    u = 0.2 + 1.4 * torch.rand(64, generator=generator, dtype=torch.float64)

    def newton(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            y = newton_step(z, y, 2.0, 2)
        return y

    pairs = [
        (expected_reciprocal(d, fit, p, gain=1.5), reciprocal(d, fit, count, gain=1.5)),
        (expected_divide(n, d, fit, p), divide(n, d, fit, count)),
        (expected_newton(d, u * 2.0 / d.sqrt(), p, gain=2.0), newton(d, u * 2.0 / d.sqrt())),
    ]
    for ours, plain in pairs:
        assert ((ours - plain).abs() <= 1e-12 * plain.abs().max()).all()


@pytest.mark.parametrize("seed", range(0, 100, 10))
def test_law_3_gradients_through_a_whole_site_equal_plain_autograd(seed: int) -> None:
    """The inverse root with both expected solvers against the same root written as sums over its states."""
    from heatfhe.approx import fit_inverse_sqrt

    generator = torch.Generator().manual_seed(seed)
    fit = fit_inverse_sqrt(0.5, 0.5 * 10.0 ** (1 + seed % 3), solver=("plain", "relaxed")[seed // 10 % 2])
    z = torch.empty(40, dtype=torch.float64).uniform_(fit.lo, fit.hi, generator=generator)
    laws = [torch.softmax(torch.randn(n, generator=generator, dtype=torch.float64), 0) for n in (9, 4)]
    results = []
    for custom in (True, False):
        leaves = [v.clone().requires_grad_() for v in (z, *laws)]
        x, p, r = leaves

        def solve(n: torch.Tensor, q: torch.Tensor, custom: bool = custom, p: torch.Tensor = p) -> torch.Tensor:
            if custom:
                return expected_divide(n, q, fit.denominator, p)
            return sum((p[k] * divide(n, q, fit.denominator, k) for k in range(len(p))), torch.zeros_like(q))

        def polish(v: torch.Tensor, y: torch.Tensor, custom: bool = custom, r: torch.Tensor = r) -> torch.Tensor:
            if custom:
                return expected_newton(v, y, r, gain=3.0)
            total = r[0] * y
            for k in range(1, len(r)):
                y = newton_step(v, y, 3.0, 2)
                total = total + r[k] * y
            return total

        value = inverse_sqrt(x, fit, 0, 0, gain=3.0, solve=solve, polish=polish)
        results.append((value.detach(), *torch.autograd.grad(value.square().sum(), leaves)))
    for ours, plain in zip(*results):
        assert ((ours - plain).abs() <= 1e-10 * plain.abs().max()).all()
