# SPDX-License-Identifier: Apache-2.0
"""What runs compiled on a GPU is the function itself with its constants as an input, compiled once for every form."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from heatfhe.approx import ReciprocalFit, SoftmaxFit, fit_activation, fit_exponential
from heatfhe.search import batched
from heatfhe.search.fused import Fused, lifted, piecewise


def powers(width: float, passes: int = 1) -> Any:
    half, reciprocal = width / 2.0 ** (1 + passes), ReciprocalFit(lo=0.1, hi=16.0)
    fit = SoftmaxFit(
        lo=0.1 - width, hi=0.1, delta_1=1, delta_2=1 << passes, exponential=fit_exponential(half), init=reciprocal,
        refine=reciprocal,
    )  # fmt: skip
    return partial(batched._powers, diagonal=0, fit=fit)


def activated(bound: float) -> Any:
    return partial(batched._activated, fit=fit_activation("gelu_new", bound))


def rows() -> Tensor:
    return 0.3 * torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def test_constants_become_an_input_and_no_bit_changes() -> None:
    for function in (powers(3.0), powers(5.0, passes=3), activated(4.0)):
        traced, numbers = lifted(function, rows())
        found = traced(rows(), torch.tensor(numbers))
        assert all(torch.equal(a, b) for a, b in zip(found, function(rows()), strict=True))
        assert len(numbers) > 4
        assert not any(f"{number!r}" in traced.code for number in numbers if number not in (1.0, 2.0))


def test_functions_that_differ_in_constants_alone_are_compiled_once() -> None:
    compiled = []
    fused = Fused(lambda traced: compiled.append(traced) or traced)
    for layer in range(4):
        function = powers(3.0 + layer, passes=1 + layer % 2)
        for _ in range(2):
            found = fused(f"h.{layer}", function)(rows())
            assert all(torch.equal(a, b) for a, b in zip(found, function(rows()), strict=True))
    assert len(compiled) == fused.forms == 2


def test_without_a_compiler_the_function_itself_runs(caplog: pytest.LogCaptureFixture) -> None:
    def broken(traced: Any) -> Any:
        raise RuntimeError("no Triton here")

    fused, function = Fused(broken), powers(3.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = fused("h.0", function)(rows())
            assert all(torch.equal(a, b) for a, b in zip(found, function(rows()), strict=True))
    assert [record.message for record in caplog.records] == [
        "h.0: could not be compiled (no Triton here) and runs several times slower"
    ]
    assert fused.forms == 0


@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_in_pieces_no_bit_changes(size: int) -> None:
    """Pieces of one matrix, of two with one left over, and the whole at once, of three and of four axes."""
    for function in (powers(3.0), powers(5.0, passes=3), activated(4.0)):
        for x in (rows(), rows()[0], rows()[0, 0]):
            found = piecewise(function, size)(x)
            assert all(torch.equal(a, b) for a, b in zip(found, function(x), strict=True))
            assert [part.shape for part in found] == [part.shape for part in function(x)]
