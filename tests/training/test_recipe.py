# SPDX-License-Identifier: Apache-2.0
"""Recipes: the paper's defaults, refusals at birth, JSON round trips, schedules, and presets that change one thing."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.errors import ConfigError
from heatfhe.files import json_digest
from heatfhe.odd import KINDS
from heatfhe.training import ABLATIONS, RECIPES, Phase, Recipe, ablation, recipe

PHASE: dict[str, Any] = {"updates": 1, "tokens_per_update": 1024, "lr": 1e-4, "final_lr": 1e-4}


def test_the_defaults_are_the_papers() -> None:
    r = Recipe()
    assert [p.updates for p in r.phases.values()] == [500, 3500, 1000]
    assert [p.tokens_per_update for p in r.phases.values()] == [32768, 4096, 4096]
    assert sum(p.updates * p.tokens_per_update for p in r.phases.values()) == pytest.approx(3.5e7, rel=0.01)
    assert [p.lambda_range for p in r.phases.values()] == [3e-2, 0.3, 0.3]
    assert [p.score_bound for p in r.phases.values()] == [10.0, 14.0, 14.0]
    assert (r.heat.lambda_iter, r.heat.logit_lr, r.iter_ramp, r.patience, r.gap) == (0.6, 2e-3, 500, 75, 150)
    assert (r.betas, r.eps, r.weight_decay, r.clip) == ((0.9, 0.99), 1e-10, 0.1, 1.0)
    assert (r.heat.lr, r.heat.final_lr, r.cooldown.lr, r.cooldown.final_lr) == (2.5e-4, 3e-5, 3e-5, 3e-5)
    assert sum(p.updates for p in r.phases.values()) == 5000


def test_every_field_is_documented() -> None:
    for kind in (Phase, Recipe):
        missing = [f.name for f in fields(kind) if f.name not in (kind.__doc__ or "") and f.name != "name"]
        assert not missing


@pytest.mark.parametrize("name", RECIPES)
def test_json_round_trip(name: str) -> None:
    made = recipe(name)
    again = Recipe.from_json(json.loads(json.dumps(made.as_json())))
    assert again == made
    assert again.digest == made.digest
    assert replace(made, seed=made.seed + 1).digest != made.digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"updates": -1}, "updates >= 0"),
        ({"tokens_per_update": 0}, "tokens_per_update >= 1"),
        ({"lr": float("nan")}, "lr must be a number"),
        ({"lambda_iter": -0.1}, "lambda_iter must be"),
        ({"score_bound": 0.0}, "score_bound must be above 0"),
        ({"halting": "gentle"}, "none, soft, hard"),
    ],
)
def test_a_phase_that_cannot_work_is_not_made(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Phase(**{**PHASE, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context": 1}, "at least 2 tokens"),
        ({"micro_tokens": 512}, "holds no whole window of 1024"),
        ({"prior_end": 1.0}, "between 0 and 1"),
        ({"noise": -1.0}, "at least 0"),
        ({"noise": 1e-4, "recompute": True}, "leave out recompute"),
        ({"fixed_share": 0.0}, "fixed_share in"),
        ({"fixed_total": -1}, "fixed_total of at least 0"),
        ({"tolerance": 2.0}, "tolerance lies in"),
        ({"margin": 1.0}, "margin lies in"),
        ({"activation_tolerance": 0.0}, "activation_tolerance lies in"),
        ({"slack": 0.5}, "slack lies in"),
        ({"odd_share": -0.01}, r"odd_share is the share of such windows among all, in \[0, 0.5\]; got -0.01"),
        ({"odd_share": 0.51}, "got 0.51"),
        ({"odd_share": float("nan")}, "got nan"),
        ({"odd_kinds": ("random", "rude")}, "'rude' is no kind of them; have: random, shuffled, repeated, replaced"),
        ({"odd_kinds": ()}, "an empty list is no kind"),
        ({"odd_calibration": -1}, "odd_calibration is a number of windows, got -1"),
        ({"odd_without": (3, -2)}, "odd_without holds numbers of tokens, got -2"),
        ({"solver": "quick"}, "plain, relaxed"),
        ({"counts": "guessed"}, "learned, calibrated, fixed"),
        ({"precision": "int8"}, "bf16, float32"),
        ({"validate_every": 0}, "validate_every must be at least 1"),
        ({"checkpoint_every": 0}, "checkpoint_every must be at least 1"),
        ({"heat": Phase(**{**PHASE, "tokens_per_update": 1500})}, "multiple of the context 1024"),
        ({"squeeze": Phase(**PHASE, halting="soft")}, "before any calibration"),
        ({"cooldown": Phase(**PHASE, halting="soft")}, "frozen counts"),
        ({"heat": Phase(**{**PHASE, "updates": 0})}, "follows a phase that found them"),
        ({"train_weights": False}, "frozen weights"),
    ],
)
def test_a_recipe_that_cannot_work_is_not_made(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Recipe(**changes)


def test_json_that_is_no_recipe_is_refused() -> None:
    for body in ({"pace": 3}, {"squeeze": {"updates": 1}}, {"squeeze": {**PHASE, "pace": 3}}):
        with pytest.raises(ConfigError, match="not a recipe"):
            Recipe.from_json(body)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="gpt2-small, default-model, images, tiny"):
        recipe("large")
    with pytest.raises(ConfigError, match="fixed-counts, control, control-distilled, noisy"):
        ablation("luck", recipe("tiny"))


@given(updates=st.integers(1, 5000), lr=st.floats(1e-6, 1e-2), share=st.floats(0, 1))
def test_the_rate_falls_from_lr_to_final_lr(updates: int, lr: float, share: float) -> None:
    phase = Phase(**{**PHASE, "updates": updates, "lr": lr, "final_lr": lr * share})
    rates = [phase.rate(i) for i in range(0, updates + 1, max(1, updates // 50))]
    assert rates[0] == pytest.approx(lr)
    assert phase.rate(updates) == pytest.approx(lr * share, abs=1e-18)
    assert all(a >= b - 1e-15 for a, b in pairwise(rates))


def test_prior_and_ramp() -> None:
    r = Recipe()
    assert (r.prior(0), r.prior(1750), r.prior(3500)) == (0.6, pytest.approx(0.75), pytest.approx(0.9))
    assert r.lambda_iter(0) == pytest.approx(0.6 / 500)
    assert r.lambda_iter(249) == pytest.approx(0.3)
    assert r.lambda_iter(499) == r.lambda_iter(3000) == pytest.approx(0.6)


def test_what_the_recipe_for_gpt2_small_changes() -> None:
    ours = {
        "squeeze.updates": 400, "squeeze.lambda_range": 0.1, "heat.updates": 3000, "heat.lr": 8e-5,
        "heat.final_lr": 8e-6, "heat.logit_lr": 3.5e-3, "heat.lambda_iter": 0.5, "heat.distil": True, "gap": 130,
        "cooldown.updates": 900, "cooldown.lr": 8e-6, "cooldown.final_lr": 1e-6, "cooldown.distil": True,
        "support": "site", "margin": 1.3, "slack": 2.0, "denominator_bound": 5.0,
        "odd_share": 0.1, "odd_calibration": 320,
        "odd_kinds": ["random", "shuffled", "repeated", "replaced", "runs", "hard"],
        "squeeze.score_bound": 12.0, "heat.score_bound": 16.0, "cooldown.score_bound": 16.0,
        "centre": True, "narrow": True, "micro_tokens": 32768, "validate_batches": 1, "checkpoint_every": 1000,
    }  # fmt: skip
    relaxed = {"solver": "relaxed", "least_init": 2, "heat.lambda_iter": 0.25, "gap": 155}
    for solver, more in (("plain", {}), ("relaxed", relaxed)):
        assert _changes(Recipe(), recipe("gpt2-small", solver)) == {**ours, **more}


def test_settling_rounds_change_a_digest_only_where_there_are_any() -> None:
    made = recipe("tiny")
    body = made.as_json()
    assert body["settle"] == 0
    assert Recipe.from_json({k: v for k, v in body.items() if k != "settle"}) == made
    assert replace(made, settle=3).digest != made.digest
    assert {name: recipe(name).settle for name in RECIPES if recipe(name).settle} == {"default-model": 6}
    with pytest.raises(ConfigError, match="settle is a number of rounds from 0 to 16"):
        replace(made, settle=-1)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_odd_windows_and_one_from_before_has_none(name: str) -> None:
    made = recipe(name)
    # Images have none: odd windows are made of tokens.
    share = {"gpt2-small": 0.1, "default-model": 0.1, "images": 0.0}.get(name, 0.05)
    kinds: tuple[str, ...] = ("random", "shuffled", "repeated", "replaced", "runs")
    if name in ("gpt2-small", "default-model"):
        kinds = (*kinds, "hard")
    assert (made.odd_share, made.odd_kinds) == (share, kinds)
    before = made.as_json()
    later = ("odd_share", "odd_kinds", "odd_calibration", "recompute", "activation_tolerance", "price_share")
    last = ("price_every", "centre", "narrow", "variance_spread", "enough", "least_refine", "ends_apart", "refit_at")
    last = (*last, "odd_without", "settle", "stairs")
    for field in (*later, *last):
        del before[field]
    old = Recipe.from_json(json.loads(json.dumps(before)))
    plain: dict[str, Any] = {"odd_share": 0.0, "odd_kinds": KINDS, "odd_calibration": 0}
    assert old == replace(made, **plain, **{name: getattr(Recipe(), name) for name in ("price_share", *last)})
    assert old.digest == json_digest(before)  # a checkpoint of that time still knows its recipe
    assert (old.digest != made.digest) == bool(share)


def test_presets_change_one_thing() -> None:
    base = recipe("gpt2-small")
    changed = {name: _changes(base, ablation(name, base)) for name in ABLATIONS}
    assert changed["heat"] == {}
    assert changed["squeezed"] == {"heat.updates": 0, "cooldown.updates": 0, "counts": "calibrated"}
    assert changed["depth-only"] == {"squeeze.updates": 0, "cooldown.updates": 0, "train_weights": False}
    assert changed["fixed-counts"] == {
        "squeeze.updates": 0, "heat.halting": "hard", "heat.lambda_iter": 0.0, "heat.logit_lr": 0.0, "counts": "fixed",
    }  # fmt: skip
    assert changed["noisy"] == {"noise": 1.7e-4}
    assert changed["stairs"] == {"stairs": 3}
    control = ablation("control", base)
    assert _changes(control, ablation("control-distilled", base)) == {"squeeze.distil": True}
    assert all(p.halting == "none" and p.lambda_range == 0 and not p.distil for p in control.phases.values())
    assert [p.updates * p.tokens_per_update for p in control.phases.values()] == [
        p.updates * p.tokens_per_update for p in base.phases.values()
    ]
    assert len({ablation(name, base).digest for name in ABLATIONS}) == len(ABLATIONS)


def test_scaled_shortens_phases_and_keeps_absent_ones_absent() -> None:
    half = ablation("depth-only", Recipe()).scaled(0.5)
    assert [p.updates for p in half.phases.values()] == [0, 1750, 0]
    assert (half.patience, half.gap, half.iter_ramp) == (38, 75, 250)
    with pytest.raises(ConfigError, match="share"):
        Recipe().scaled(0.0)


def _changes(base: Recipe, made: Recipe) -> dict[str, Any]:
    a, b = base.as_json(), made.as_json()
    out: dict[str, Any] = {}
    for key in a:
        if isinstance(a[key], dict):
            out |= {f"{key}.{k}": b[key][k] for k in a[key] if a[key][k] != b[key][k]}
        elif a[key] != b[key] and key != "name":
            out[key] = b[key]
    return out
