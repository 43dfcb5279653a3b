# SPDX-License-Identifier: Apache-2.0
"""Guards: clamp forward, quadratic push-back backward; range terms."""

from __future__ import annotations

import pytest
import torch

from heatfhe.errors import ConfigError
from heatfhe.sites import RangeBounds, excess, guard


def test_clamps_forward_and_pushes_back() -> None:
    x = torch.tensor([-3.0, -0.5, 0.5, 4.0], requires_grad=True)
    y = guard(x, -1.0, 2.0, 0.1)
    assert y.tolist() == [-1.0, -0.5, 0.5, 2.0]
    (10.0 * y).sum().backward()
    assert x.grad is not None
    # inside: the gradient passes; outside: 2 * push * excess and nothing of the loss
    assert torch.allclose(x.grad, torch.tensor([0.2 * -2.0, 10.0, 10.0, 0.2 * 2.0]))


def test_an_open_side_is_left_alone() -> None:
    x = torch.tensor([-9.0, 9.0], requires_grad=True)
    y = guard(x, None, 1.0, 1.0)
    assert y.tolist() == [-9.0, 1.0]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 16.0]


def test_descent_on_the_push_back_brings_a_value_inside() -> None:
    x = torch.tensor([5.0], requires_grad=True)
    for _ in range(60):
        (grad,) = torch.autograd.grad(guard(x, -1.0, 1.0, 0.5).sum() * 0.0, x)
        x = (x - 0.2 * grad).detach().requires_grad_()
    assert 1.0 <= float(x.detach()) < 1.0 + 1e-4


def test_excess_is_a_sum_per_token() -> None:
    x = torch.tensor([[1.0, -4.0], [3.0, 0.0]])
    assert float(excess(x, 2.0, 2)) == pytest.approx((4.0 + 1.0) / 2)


def test_bounds_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="'score' must be above 0"):
        RangeBounds(score=0.0)
