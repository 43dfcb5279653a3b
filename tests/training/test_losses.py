# SPDX-License-Identifier: Apache-2.0
"""The objective's terms against their formulas, and their weights in the total."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from heatfhe.halting import BackOff
from heatfhe.ranges import calibrate
from heatfhe.sites import Prepared
from heatfhe.training import Terms, distillation_loss, recipe, task_loss
from heatfhe.training.loop import configure
from heatfhe.training.losses import iteration_loss, losses
from tests.gpt2_tiny import random_tokens
from tests.training.short import fresh, windows

RECIPE = recipe("tiny")


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    made = fresh()
    made.adopt(calibrate(made, [random_tokens(s) for s in range(2)], delta_2=2, argmax=False))
    return made


def test_task_loss_is_cross_entropy_per_token() -> None:
    logits = torch.zeros(2, 3, 48)
    assert float(task_loss(logits, torch.zeros(2, 3, dtype=torch.long))) == pytest.approx(math.log(48))
    logits[..., 5] = 20.0
    assert float(task_loss(logits, torch.full((2, 3), 5))) == pytest.approx(0.0, abs=1e-6)


def test_distillation_is_a_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 3, 48, generator=generator) for _ in range(2))
    assert float(distillation_loss(a, a)) == pytest.approx(0.0, abs=1e-6)
    assert float(distillation_loss(a + 3.0, a)) == pytest.approx(0.0, abs=1e-5)  # a shift changes no prediction
    p, q = (torch.softmax(x.double(), -1) for x in (b, a))
    assert float(distillation_loss(a, b)) == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), rel=1e-5)


def test_the_iteration_loss_is_the_mean_over_sites(prepared: Prepared) -> None:
    targets = BackOff.start(prepared.sites)
    with torch.no_grad():
        early, late = (float(iteration_loss(prepared, RECIPE, targets, u)) for u in (0, RECIPE.heat.updates))
        by_site = prepared.halting.divergence(prepared.halting.log_prior(targets.above_floor(), 0.6))
    assert early == pytest.approx(float(by_site.sum()) / len(prepared.sites))
    assert late > early  # a sharper prior is further from the ramp


def test_terms_are_weighted_as_the_phase_says() -> None:
    terms = Terms(task=torch.tensor(2.0), iterations=torch.tensor(3.0), range=torch.tensor(5.0))
    phase = replace(RECIPE.heat, lambda_range=0.5)
    assert float(terms.total(phase, 0.25)) == 2.0 + 0.25 * 3.0 + 0.5 * 5.0


@torch.no_grad()
def test_each_phase_has_its_own_terms(prepared: Prepared) -> None:
    rows = torch.from_numpy(windows(count=4).rows)
    targets = BackOff.start(prepared.sites)
    tight = replace(RECIPE, activation_bound=0.01, denominator_bound=0.01, variance_bound=0.01)
    found = {}
    for name, phase in tight.phases.items():
        configure(prepared, phase, tight)
        found[name] = losses(prepared, prepared, None, rows, phase, tight, targets, 0)
    assert float(found["heat"].iterations) > 0
    assert float(found["squeeze"].iterations) == float(found["cooldown"].iterations) == 0
    assert all(float(terms.range) > 0 for terms in found.values())
    configure(prepared, replace(tight.heat, lambda_range=0.0), tight)
    assert float(losses(prepared, prepared, None, rows, tight.heat, tight, targets, 0).range) == 0


@torch.no_grad()
def test_distilling_needs_the_teacher_alone(prepared: Prepared) -> None:
    rows = torch.from_numpy(windows(count=4).rows)
    configure(prepared, RECIPE.squeeze, RECIPE)
    twin = fresh()  # the same weights: nothing to learn yet
    terms = losses(prepared, prepared, twin.model, rows, RECIPE.squeeze, RECIPE, None, 0)
    assert float(terms.task) == pytest.approx(0.0, abs=1e-6)


@torch.no_grad()
def test_odd_windows_learn_the_teacher_and_the_others_the_text(prepared: Prepared) -> None:
    """Window by window: the mean of the text's losses and, for odd windows, of the divergences from the teacher."""
    rows = torch.from_numpy(windows(count=4).rows)
    teacher = fresh(seed=2).model
    configure(prepared, RECIPE.cooldown, RECIPE)
    logits, wanted = prepared(rows[:, :-1]), teacher(input_ids=rows[:, :-1]).logits
    text = [float(task_loss(logits[i : i + 1], rows[i : i + 1, 1:])) for i in range(4)]
    taught = [float(distillation_loss(logits[i : i + 1], wanted[i : i + 1])) for i in range(4)]
    for marks in ([0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [1, 1, 1, 1]):
        odd = torch.tensor(marks, dtype=torch.bool)
        found = losses(prepared, prepared, teacher, rows, RECIPE.cooldown, RECIPE, None, 0, odd=odd)
        assert float(found.task) == pytest.approx(sum((text, taught)[m][i] for i, m in enumerate(marks)) / 4, rel=1e-5)
        weighted = task_loss(logits, rows[:, 1:], (~odd).float()) + distillation_loss(logits, wanted, odd.float())
        assert float(weighted) == pytest.approx(float(found.task), rel=1e-5)  # as a captured step writes it
        alone = losses(prepared, prepared, None, rows, RECIPE.cooldown, RECIPE, None, 0, odd=odd)
        assert float(alone.task) == pytest.approx(
            sum(t for t, m in zip(text, marks, strict=True) if not m) / 4, abs=1e-6
        )
    assert abs(text[0] - taught[0]) > 0.1  # they are different things


@torch.no_grad()
def test_a_distilling_phase_distils_every_window(prepared: Prepared) -> None:
    rows = torch.from_numpy(windows(count=4).rows)
    teacher = fresh(seed=2).model
    configure(prepared, RECIPE.squeeze, RECIPE)
    arguments = (prepared, prepared, teacher, rows, RECIPE.squeeze, RECIPE, None, 0)
    odd = torch.tensor([False, True, False, False])
    assert float(losses(*arguments, odd=odd).task) == float(losses(*arguments).task)
