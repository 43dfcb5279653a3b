# SPDX-License-Identifier: Apache-2.0
"""Halting distributions: the numbers of the ramp, its Jacobian, floors, ties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.errors import ConfigError
from heatfhe.halting import log_probabilities, mode, probabilities, ramp

# n, floor, p from the floor up, mean count, entropy: computed once in 40 digits, printed to six.
RAMPS = [
    (4, 0, [0.109097, 0.176235, 0.237136, 0.238766, 0.238766], 2.321870, 1.572862),
    (4, 1, [0.197816, 0.266174, 0.268005, 0.268005], 2.606198, 1.378645),
    (
        12,
        0,
        [0.000453, 0.000911, 0.001830, 0.003672, 0.007341, 0.014564, 0.028469, 0.054043, 0.096956, 0.156623, 0.210746]
        + [0.212196, 0.212196],
        9.840109,
        1.901351,
    ),
    (
        12,
        1,
        [0.000911, 0.001831, 0.003674, 0.007344, 0.014571, 0.028482, 0.054067, 0.097000, 0.156694, 0.210842]
        + [0.212292, 0.212292],
        9.844565,
        1.898273,
    ),
]


@pytest.mark.parametrize(("n", "floor", "masses", "mean", "nats"), RAMPS)
def test_ramp_numbers(n: int, floor: int, masses: list[float], mean: float, nats: float) -> None:
    p = probabilities(ramp(n, floor), floor)
    assert torch.allclose(p[floor:], torch.tensor(masses, dtype=torch.float64), atol=5.1e-7, rtol=0)
    assert p[:floor].abs().sum() == 0
    assert abs(float((p * torch.arange(p.shape[-1])).sum()) - mean) < 5.1e-7
    assert abs(float(-torch.special.xlogy(p, p).sum()) - nats) < 5.1e-7


def test_jacobian_at_the_ramp() -> None:
    printed = torch.tensor(
        [
            [0.097195, 0, 0, 0],
            [-0.019227, 0.141373, 0, 0],
            [-0.025871, -0.046909, 0.158451, 0],
            [-0.026049, -0.047232, -0.079226, 0.119383],
            [-0.026049, -0.047232, -0.079226, -0.119383],
        ],
        dtype=torch.float64,
    )
    jacobian = torch.autograd.functional.jacobian(probabilities, ramp(4))
    assert torch.allclose(jacobian, printed, atol=5.1e-7, rtol=0)
    assert jacobian.sum(dim=0).abs().max() < 1e-15


def test_ramp_is_monotone_from_ln_2_on() -> None:
    above = probabilities(ramp(12, 0, math.log(2) + 1e-6))
    below = probabilities(ramp(12, 0, math.log(2) - 1e-3))
    assert bool((above.diff() >= -1e-15).all())
    assert not bool((below.diff() >= -1e-15).all())


def test_the_tie_at_the_top_goes_to_the_deeper_count() -> None:
    for n in range(1, 17):
        for dtype in (torch.float32, torch.float64):
            assert int(mode(probabilities(ramp(n).to(dtype)))) == n
    assert int(mode(torch.tensor([0.4, 0.2, 0.4]))) == 2
    assert int(mode(torch.tensor([0.41, 0.2, 0.39]))) == 0


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.floats(-40, 40), min_size=1, max_size=16),
    floor=st.integers(0, 3),
)
def test_sums_to_one_and_is_zero_under_the_floor(logits: list[float], floor: int) -> None:
    floor = min(floor, len(logits))
    values = torch.tensor(logits, dtype=torch.float64)
    p, log_p = probabilities(values, floor), log_probabilities(values, floor)
    assert abs(float(p.sum()) - 1.0) < 1e-12
    assert bool((p >= 0).all())
    assert float(p[:floor].sum()) == 0.0
    assert torch.allclose(log_p.exp(), p, atol=1e-12)


def test_logits_below_the_floor_get_no_gradient() -> None:
    logits = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (probabilities(logits, 2) * torch.arange(7)).sum().backward()
    assert logits.grad is not None
    assert float(logits.grad[:2].abs().sum()) == 0.0
    assert bool((logits.grad[2:] != 0).all())


def test_many_sites_at_once_equal_one_at_a_time() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 9, dtype=torch.float64, generator=generator)
    floors, tops = torch.tensor([1, 0, 1]), torch.tensor([9, 3, 6])
    batched = probabilities(logits, floors, tops)
    for row, (m, n) in enumerate(zip(floors.tolist(), tops.tolist())):
        alone = probabilities(logits[row, :n], m)
        assert torch.equal(batched[row, : n + 1], alone)
        assert float(batched[row, n + 1 :].sum()) == 0.0


def test_ramp_refuses_a_floor_above_its_top() -> None:
    with pytest.raises(ConfigError, match="0 <= floor <= top"):
        ramp(2, 3)
