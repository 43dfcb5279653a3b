# SPDX-License-Identifier: Apache-2.0
"""Expected solvers: values and gradients against plain autograd, memory that does not grow, rows out of domain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from heatfhe.approx import ReciprocalFit, divide, goldschmidt, reciprocal
from heatfhe.errors import ConfigError
from heatfhe.halting import (
    expected_divide,
    expected_goldschmidt,
    expected_newton,
    expected_reciprocal,
    probabilities,
    ramp,
)
from tests.approx.steps import newton_step

COUNTS = (1, 2, 3, 5, 8, 13, 16)


def plain_goldschmidt(n: Tensor, d: Tensor, p: Tensor, schedule: tuple[float, ...] | None = None) -> Tensor:
    s = schedule or (1.0,) * len(p)
    total = torch.zeros_like(n)
    for count in range(len(p)):
        total = total + p[count] * goldschmidt(n, d, count, s) / s[count]
    return total


def plain_newton(z: Tensor, y: Tensor, p: Tensor, gain: float) -> Tensor:
    total = p[0] * y
    for count in range(1, len(p)):
        y = newton_step(z, y, gain, 2)
        total = total + p[count] * y
    return total


def compare(ours: Callable[..., Tensor], plain: Callable[..., Tensor], *inputs: Tensor) -> None:
    weight = torch.randn(inputs[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    results = []
    for function in (ours, plain):
        leaves = [v.clone().requires_grad_() for v in inputs]
        value = function(*leaves)
        results.append((value.detach(), torch.autograd.grad((value * weight).sum(), leaves)))
    (value_a, grads_a), (value_b, grads_b) = results
    assert (value_a - value_b).abs().max() <= 1e-10 * value_b.abs().max()
    for a, b in zip(grads_a, grads_b):
        assert (a - b).abs().max() <= 1e-10 * b.abs().max()


def law(count: int, floor: int = 0, seed: int = 0) -> Tensor:
    logits = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return probabilities(logits, min(floor, count))


def uniform(lo: float, hi: float, size: int = 64, seed: int = 3) -> Tensor:
    return lo + (hi - lo) * torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_printed_sweep_number() -> None:
    n, d = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (0.9, 0.55))
    r = expected_goldschmidt(n, d, probabilities(ramp(4)))
    by_n, by_d = torch.autograd.grad(r.sum(), (n, d))
    assert abs(r.item() - 1.48106068) < 5.1e-9
    assert abs(by_n.item() - 1.64562297) < 5.1e-9
    assert abs(by_d.item() - -2.10160985) < 5.1e-9


@pytest.mark.parametrize("count", COUNTS)
def test_goldschmidt_equals_autograd(count: int) -> None:
    compare(expected_goldschmidt, plain_goldschmidt, uniform(-2, 2), uniform(0.05, 1.9, seed=4), law(count))


@pytest.mark.parametrize("count", COUNTS)
def test_relaxed_goldschmidt_equals_autograd(count: int) -> None:
    s = ReciprocalFit(lo=1.0, hi=40.0, solver="relaxed").schedule(count)
    compare(
        lambda n, d, p: expected_goldschmidt(n, d, p, s),
        lambda n, d, p: plain_goldschmidt(n, d, p, s),
        uniform(-2, 2),
        uniform(0.3, 1.7, seed=4) * s[0],
        law(count),
    )


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("gain", [1.0, 8.0])
def test_newton_equals_autograd(count: int, gain: float) -> None:
    z = uniform(0.2, 5.0)
    y = gain / z.sqrt() * uniform(0.3, 1.6, seed=5)
    compare(
        lambda z, y, p: expected_newton(z, y, p, gain=gain),
        lambda z, y, p: plain_newton(z, y, p, gain),
        z,
        y,
        law(count),
    )


@pytest.mark.parametrize("solver", ["plain", "relaxed", "below"])
@pytest.mark.parametrize("count", [1, 4, 9, 16])
def test_divide_equals_autograd_through_its_seed(solver: str, count: int) -> None:
    fit = ReciprocalFit(lo=0.5, hi=60.0, solver=solver)

    def plain(n: Tensor, d: Tensor, p: Tensor) -> Tensor:
        return sum((p[k] * divide(n, d, fit, k, scale=0.7) for k in range(len(p))), torch.zeros_like(n))

    compare(
        lambda n, d, p: expected_divide(n, d, fit, p, scale=0.7),
        plain,
        uniform(-3, 3),
        uniform(0.8, 80.0, seed=6),
        law(count, 1),
    )


@pytest.mark.parametrize("solver", ["plain", "relaxed", "below"])
def test_one_hot_is_the_solver_at_that_count(solver: str) -> None:
    fit = ReciprocalFit(lo=1.0, hi=300.0, solver=solver)
    d = uniform(1.0, 300.0)
    for count in range(13):
        p = torch.zeros(14, dtype=torch.float64)
        p[count] = 1.0
        ours, plain = (
            expected_reciprocal(d, fit, p, scale=0.5, gain=3.0),
            reciprocal(d, fit, count, scale=0.5, gain=3.0),
        )
        assert ((ours - plain) / plain).abs().max() < 1e-12


@settings(max_examples=60, deadline=None)
@given(d=st.floats(0.02, 1.98), n=st.floats(-3, 3), count=st.integers(1, 10), seed=st.integers(0, 2**16))
def test_expected_value_lies_between_its_states(d: float, n: float, count: int, seed: int) -> None:
    p = law(count, seed=seed)
    states = [goldschmidt(n, d, k) for k in range(count + 1)]
    r = expected_goldschmidt(*(torch.tensor([v], dtype=torch.float64) for v in (n, d)), p).item()
    assert min(states) - 1e-9 <= r <= max(states) + 1e-9


def saved_bytes(run: Callable[[], Tensor]) -> int:
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    return sum(seen.values())


@pytest.mark.parametrize("solver", ["goldschmidt", "relaxed", "newton", "divide"])
def test_saved_bytes_do_not_grow_with_the_count(solver: str) -> None:
    fit = ReciprocalFit(lo=0.5, hi=60.0, solver="relaxed")

    def bytes_at(count: int, plain: bool = False) -> int:
        a, b = (uniform(0.9, 1.1, size=4096, seed=s).requires_grad_() for s in (1, 2))
        p = law(count).requires_grad_()
        s = fit.schedule(count)
        runs = {
            "goldschmidt": lambda: (plain_goldschmidt if plain else expected_goldschmidt)(a, b, p),
            "relaxed": lambda: (plain_goldschmidt if plain else expected_goldschmidt)(a, b, p, s),
            "newton": lambda: plain_newton(a, b, p, 1.0) if plain else expected_newton(a, b, p),
            "divide": lambda: expected_divide(a, b, fit, p),
        }
        return saved_bytes(runs[solver])

    assert bytes_at(16) <= 1.05 * bytes_at(2)
    if solver != "divide":  # and plain autograd's do grow: the hook measures what it should
        assert bytes_at(16, plain=True) > 3 * bytes_at(2, plain=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_out_of_domain_stay_finite(dtype: torch.dtype) -> None:
    d = torch.tensor([0.5, 1.0, 5.0, 50.0, 3e4], dtype=dtype).requires_grad_()
    n = torch.ones(5, dtype=dtype).requires_grad_()
    p = probabilities(ramp(13)).to(dtype).requires_grad_()
    for value in (expected_goldschmidt(n, d, p), expected_newton(d, n, p)):
        grads = torch.autograd.grad(value.sum(), (n, d, p))
        assert bool(torch.isfinite(value).all())
        assert all(bool(torch.isfinite(g).all()) for g in grads)


def test_refuses_operands_that_do_not_match() -> None:
    one, two = torch.ones(1), torch.ones(2)
    with pytest.raises(ConfigError, match="one shape"):
        expected_goldschmidt(one, two, torch.ones(3) / 3)
    with pytest.raises(ConfigError, match="over 4 states"):
        expected_goldschmidt(two, two, torch.ones(3) / 3, (1.0, 1.0, 1.0, 1.0))


@pytest.mark.slow
def test_a_compiler_takes_each_direction_whole() -> None:
    """No graph break in forward or backward, so that inductor can fuse both on a GPU; same numbers as eager."""
    fit = ReciprocalFit(lo=0.5, hi=60.0, solver="relaxed")

    def whole(n: Tensor, d: Tensor, p: Tensor) -> Tensor:
        return expected_newton(d, expected_divide(n, d, fit, p), p, gain=2.0)

    inputs = [v.requires_grad_() for v in (uniform(0.1, 0.3), uniform(0.8, 40.0, seed=6), law(5))]
    compiled = torch.compile(whole, backend="aot_eager", fullgraph=True)
    ours, eager = compiled(*inputs), whole(*inputs)
    assert torch.allclose(ours, eager, rtol=1e-12)
    for a, b in zip(torch.autograd.grad(ours.sum(), inputs), torch.autograd.grad(eager.sum(), inputs)):
        assert torch.allclose(a, b, rtol=1e-12)
