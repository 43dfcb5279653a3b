# SPDX-License-Identifier: Apache-2.0
"""Training on the tokens that a model bears worst: they are found, and come to be borne."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from heatfhe.odd import HARD
from heatfhe.progress import SILENT
from heatfhe.sites import Prepared
from heatfhe.training import Windows, train
from heatfhe.training.calibrations import borne_badly
from tests.training.short import CONTEXT, fresh, short, windows


def with_a_loud_head(token: int = 4) -> Prepared:
    """The model with a head that scores one token, beside itself, far above all others: a bracket's, say."""
    prepared = fresh()
    block: Any = prepared.model.transformer.h[0]  # type: ignore[union-attr]
    embedding = prepared.model.transformer.wte.weight  # type: ignore[union-attr]
    with torch.no_grad():
        embedding[token] *= 3.0  # what its norm makes of it hardly depends on its position
        way = embedding[token] - embedding[token].mean()
        way /= way.norm()
        weight, width = block.attn.c_attn.weight, len(way)
        for start in (0, width):  # one entry of a query and of a key
            weight[:, start] = 2.0 * way
    return prepared


def test_hard_windows_tame_the_head_that_scores_one_token() -> None:
    """Of 48 tokens one is very hard; windows that repeat it are trained on, and its sums come down to their bound."""

    def height(prepared: Prepared) -> float:
        seen = {}

        def tap(name: str, value: torch.Tensor) -> torch.Tensor:
            seen[name] = value
            return value

        with prepared.tapped(tap):
            prepared.logits(np.full((1, CONTEXT), 4), mode="exact")
        return float(seen["h.0.attn/scores"][0, :, -1].amax()) / 2

    loud = with_a_loud_head()
    squeeze = replace(short().squeeze, updates=30, lambda_range=1.0, lr=1e-2)
    chosen = short(odd_share=0.3, odd_kinds=("shuffled", HARD), denominator_bound=2.0, squeeze=squeeze)
    found = borne_badly(loud, chosen, SILENT)
    assert found is not None
    assert found.tokens[found.weights.argmax()] == 4
    assert found.weights.max() > 0.9
    assert borne_badly(loud, short(odd_share=0.3), SILENT) is None
    none = replace(chosen.squeeze, updates=0)  # too short a run to look at 48 words
    assert not len(borne_badly(loud, replace(chosen, squeeze=none, cooldown=none), SILENT).tokens)  # type: ignore[union-attr]
    rows, ends = windows().rows, {}
    text = Windows(np.where(rows == 4, 5, rows))  # which never has it
    for kinds in (("shuffled", HARD), ("shuffled",)):
        prepared = with_a_loud_head()
        before = height(prepared)
        train(prepared, text, replace(chosen, odd_kinds=kinds), tensorboard=False, argmax=False)
        ends[kinds] = height(prepared)
    assert before > 6.0
    assert ends["shuffled", HARD] < 3.0, ends
    assert ends["shuffled",] > 4.0, ends


def test_a_recipe_with_hard_windows_runs_without_odd_ones() -> None:
    """As ``--odd 0`` asks for, and a run that brings odd windows of its own."""
    chosen = short(odd_share=0.0, odd_kinds=("shuffled", HARD))
    mixed = windows().mixed(windows(seed=1, count=4).rows)
    for text in (windows(), mixed):
        assert sum(train(fresh(), text, chosen, tensorboard=False, argmax=False).iterations.values()) > 0
