# SPDX-License-Identifier: Apache-2.0
"""centre: keys move, rows sum to about the same, and nothing the model computes changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heatfhe.ranges import Centred, calibrate, centre
from heatfhe.ranges.centre import POWER, levelled
from heatfhe.sites import prepare
from tests.gpt2_tiny import random_tokens, tiny_gpt2
from tests.llama_tiny import tiny_llama
from tests.vit_tiny import tiny_vit


def uneven_gpt2(seed: int) -> Any:
    """A tiny GPT-2 whose keys have a large common part in every head, as keys of attention sinks do."""
    model = tiny_gpt2(seed, width=32).double()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.bias[:64] += 4.0 * torch.randn(64, dtype=torch.float64)
    return model


def width(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]


@pytest.mark.parametrize("seed", range(5))
def test_rows_come_together_and_logits_stay(seed: int) -> None:
    torch.manual_seed(seed)
    prepared = prepare(uneven_gpt2(seed))
    tokens = [random_tokens(10 * seed + i) for i in range(12)]
    logits = [prepared.logits(t, mode="exact") for t in tokens]
    before = calibrate(prepared, tokens, 1e-4, delta_2=2, argmax=False)
    found = centre(prepared, tokens)
    after = calibrate(prepared, tokens, 1e-4, delta_2=2, argmax=False)
    assert set(found) == {"h.0.attn", "h.1.attn"}
    for name, made in found.items():
        assert width(made.after) < 0.6 * width(made.before)
        # What it says is what a calibration then sees, about zero.
        seen, middle = after.softmaxes[name].observed_init, after.softmaxes[name].fit.midpoint
        assert seen.hi == pytest.approx(torch.tensor(made.after[1] - middle / 2).exp().item(), rel=1e-6)
    for t, wanted in zip(tokens, logits, strict=True):
        assert float((prepared.logits(t, mode="exact") - wanted).abs().max()) < 1e-10
    assert after.iterations()["softmax_init"] < before.iterations()["softmax_init"]


def test_what_has_no_key_bias_stays_as_it_is() -> None:
    prepared = prepare(tiny_llama(0))
    was = {name: value.clone() for name, value in prepared.model.state_dict().items()}
    assert centre(prepared, [random_tokens(0)]) == {}
    assert all(torch.equal(value, was[name]) for name, value in prepared.model.state_dict().items())


def test_keys_of_their_own_projection_move() -> None:
    prepared = prepare(tiny_vit(3, qkv_bias=True).double())
    assert prepared.grid is not None
    images = torch.randn(8, *prepared.grid.image, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    wanted = prepared.logits(images, mode="exact")
    found = centre(prepared, [images])
    assert found
    assert all(isinstance(c, Centred) and width(c.after) <= width(c.before) for c in found.values())
    assert float((prepared.logits(images, mode="exact") - wanted).abs().max()) < 1e-10


@pytest.mark.parametrize("seed", range(20))
def test_a_shift_is_the_least_sum_of_powers(seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, 200, 5, generator=make, dtype=torch.float64)
    heights = torch.randn(3, 200, generator=make, dtype=torch.float64) ** 3

    def powers(shift: torch.Tensor) -> torch.Tensor:
        return ((heights + torch.einsum("kre,ke->kr", rows, shift)) ** POWER).sum(-1)

    shift = levelled(rows, heights)
    best = powers(shift)
    assert (best < powers(torch.zeros_like(shift))).all()
    for _ in range(20):
        other = shift + 0.05 * torch.randn(shift.shape, generator=make, dtype=torch.float64)
        assert (best <= powers(other) * (1 + 1e-6)).all()


def test_rows_that_ask_nothing_move_nothing() -> None:
    assert torch.equal(levelled(torch.zeros(2, 7, 3).double(), torch.ones(2, 7).double()), torch.zeros(2, 3).double())
