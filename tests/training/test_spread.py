# SPDX-License-Identifier: Apache-2.0
"""Rows whose variance stands out of their norm's: their range term, and a squeeze that brings them in."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from heatfhe.errors import ConfigError
from heatfhe.sites import Prepared
from heatfhe.sites.guards import astray
from heatfhe.training import recipe
from heatfhe.training.loop import configure
from tests.training.short import fresh, go, short, windows


def test_the_worst_row_of_each_sequence_counts_on_both_sides() -> None:
    rows = torch.tensor([[1.0, 2.0, math.e**3], [math.e**-2, 1.0, 1.5]], dtype=torch.float64)
    assert float(astray(rows, 1.0, 2.0)) == pytest.approx(((3 - math.log(2)) ** 2 + (2 - math.log(2)) ** 2) / 2)
    assert float(astray(rows * 7.0, 7.0, 2.0)) == pytest.approx(float(astray(rows, 1.0, 2.0)))  # in any units
    assert float(astray(rows, 1.0, 21.0)) == 0.0


def outstanding() -> Prepared:
    """A model whose first position is five times as large as the others, before any attention has seen it."""
    prepared = fresh()
    with torch.no_grad():
        prepared.model.transformer.wpe.weight[0] *= 5.0
    return prepared


def widest(prepared: Prepared) -> float:
    """The largest ratio of two variances that meet at one norm."""
    found: dict[str, float] = {}

    def tap(name: str, value: torch.Tensor) -> torch.Tensor:
        if name.endswith("/z"):
            found[name] = float(value.max() / value.min())
        return value

    with torch.no_grad(), prepared.tapped(tap):
        prepared.logits(torch.from_numpy(windows().rows[:, :-1]), mode="exact")
    return max(found.values())


def test_a_squeeze_narrows_a_norm_that_one_position_widens() -> None:
    left = {}
    for spread in (0.0, 2.0):
        prepared = outstanding()
        base = short(variance_spread=spread, counts="calibrated")
        phase = replace(base.squeeze, updates=60, lr=1e-2, final_lr=1e-2, lambda_range=1.0)
        off: dict[str, Any] = {name: replace(base.phases[name], updates=0) for name in ("heat", "cooldown")}
        go(prepared, replace(base, squeeze=phase, **off))
        left[spread] = widest(prepared)
    assert widest(outstanding()) > 50
    assert left[0.0] > 50
    assert left[2.0] < 0.5 * left[0.0]


def test_only_a_squeeze_that_asks_for_it_has_the_term() -> None:
    rows = torch.from_numpy(windows(count=4).rows[:, :-1])
    medians = {"h.0.ln_1": 1e-3, "h.1.ln_2": 1e-3}
    for spread, there in ((2.0, True), (0.0, False)):
        prepared = outstanding()
        base = replace(recipe("tiny"), variance_spread=spread)
        configure(prepared, base.squeeze, base, medians)
        with torch.no_grad():
            prepared(rows)
        assert ("spread" in prepared.switch.terms) is there
        configure(prepared, replace(base.cooldown, halting="none"), base)  # no medians: they are of another model
        with torch.no_grad():
            prepared(rows)
        assert "spread" not in prepared.switch.terms


@pytest.mark.parametrize("spread", [1.0, -2.0, 101.0])
def test_a_spread_that_holds_nothing_is_refused(spread: float) -> None:
    with pytest.raises(ConfigError, match="variance_spread is 0 or lies in"):
        replace(recipe("tiny"), variance_spread=spread)


def test_recipes_from_before_keep_their_digest() -> None:
    body = recipe("tiny").as_json()
    del body["variance_spread"]
    assert type(recipe("tiny")).from_json(body).digest == recipe("tiny").digest
    assert replace(recipe("tiny"), variance_spread=2.0).digest != recipe("tiny").digest
