# SPDX-License-Identifier: Apache-2.0
"""What a run measures on its way from phase to phase: variances, shifts of keys, calibrations."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from heatfhe.odd import HARD, TRIED, Hard, Rows, Tap, hard_tokens, odd_rows
from heatfhe.progress import SILENT, Reporter
from heatfhe.ranges import calibrate, centre, refit
from heatfhe.records import Calibration
from heatfhe.sites import Prepared
from heatfhe.stages import Norm
from heatfhe.training import sharding
from heatfhe.training.constants import merge, narrowed
from heatfhe.training.loop import TYPICAL, Run
from heatfhe.training.recipe import Recipe

SEARCHED = 0.1  # of a run's tokens, at most, go into the search for hard ones
UNTRAINED = 1 << 32  # added to a run's seed for odd windows that calibrations see and nothing learns from
TYPICAL_BATCHES = 2  # micro-batches that a median variance is taken over: thousands of rows
CENTRED_TOKENS = 1 << 15  # of the text, and twice as many odd ones: far more rows than a head has weights to move


@torch.no_grad()
def borne_badly(prepared: Prepared, recipe: Recipe, reporter: Reporter) -> Hard | None:
    """The tokens that the model as it is bears worst (``heatfhe.odd``); None where the recipe does not ask for them.

    The search takes at most SEARCHED of the tokens that the run trains on: a short trial looks at fewer words.
    """
    if not (recipe.odd_share and HARD in recipe.odd_kinds):
        return None

    def run(tokens: Rows, tap: Tap) -> None:
        with prepared.tapped(tap):
            prepared.logits(tokens, mode="exact")

    words, length = prepared.architecture.shape.vocabulary, min(TRIED, recipe.context)
    trained = sum(phase.updates * phase.tokens_per_update for phase in recipe.phases.values())
    return hard_tokens(
        run, words, recipe.context, held=recipe.denominator_bound, divisor=recipe.delta_2 or 2,
        every=math.ceil(words * length / max(length, SEARCHED * trained)), batch=max(1, recipe.micro_tokens // length),
        without=recipe.odd_without, reporter=reporter,
    )  # fmt: skip


@torch.no_grad()
def typical_variances(run: Run) -> dict[str, float]:
    """TYPICAL times the median variance that enters each norm of the parent: where rows stick out in a squeeze."""
    prepared = run.prepared
    seen: dict[str, list[Tensor]] = {f"{norm.name}/z": [] for norm in prepared.architecture.of(Norm)}
    width = prepared.architecture.shape.width

    def tap(name: str, value: Tensor) -> Tensor:
        if name in seen:
            seen[name].append((value / width).flatten())
        return value

    with prepared.tapped(tap):
        for rows in sequences(run)[:TYPICAL_BATCHES]:
            prepared.logits(rows, mode="exact")
    return {name.removesuffix("/z"): TYPICAL * float(torch.cat(rows).median()) for name, rows in seen.items()}


def odd_windows(prepared: Prepared, recipe: Recipe, text: Rows, reporter: Reporter = SILENT) -> Rows:
    """As many odd windows as the recipe's calibrations see, as long as the rows of ``text``, for a model that it does
    not train: what is compared with its circuits has to hold on the same. None where it has no odd share."""
    hard = borne_badly(prepared, recipe, reporter)
    return _fresh(recipe, recipe.odd_calibration, text, prepared.architecture.shape.vocabulary, hard)


def _fresh(recipe: Recipe, count: int, text: Rows, vocabulary: int, hard: Hard | None) -> Rows:
    """Odd windows that nothing learns from."""
    return odd_rows(
        recipe.odd_kinds, count if recipe.odd_share else 0, text, vocabulary, recipe.seed + UNTRAINED, hard=hard,
        without=recipe.odd_without,
    )  # fmt: skip


def sequences(run: Run, odd: bool = False) -> list[torch.Tensor]:
    """The windows that every calibration sees: of the text, or odd ones, half of them such that nothing learns from."""
    r, windows, marks = run.recipe, run.windows.rows, run.windows.odd
    text = windows if marks is None else windows[~marks]
    rows = text[: r.calibration_windows]
    if odd:
        count, vocabulary = r.odd_calibration // 2, run.prepared.architecture.shape.vocabulary
        fresh = _fresh(r, count, text, vocabulary, run.hard)
        rows = fresh if marks is None else np.concatenate([windows[marks][: r.odd_calibration - count], fresh])
    sequences = torch.from_numpy(rows[:, :-1]).to(run.accelerator.device)
    return list(sequences.split(max(1, r.micro_tokens // r.context))) if len(rows) else []


def calibrated(run: Run, *, delta_2: int | None = None, argmax: bool = False) -> Calibration:
    """Constants and counts; odd windows ask for accuracy only where the counts stay as they are calibrated."""
    r, text, odd = run.recipe, sequences(run), sequences(run, odd=True)
    if r.counts == "calibrated":
        text, odd = text + odd, []
    return calibrate(
        run.prepared, text, r.tolerance, r.rule, r.solver, odd=odd, reporter=run.reporter, margin=r.margin,
        delta_2=delta_2, argmax=argmax, settle=r.settle, activation_tolerance=r.activation_tolerance,
    )  # fmt: skip


def refitted(run: Run, argmax: bool) -> Calibration:
    """The constants in use, except where the weights as they are have left their domain, or lie far below its end."""
    prepared = run.prepared
    assert prepared.calibration is not None
    seen = refit(
        prepared, sequences(run), odd=sequences(run, odd=True), argmax=argmax, margin=run.recipe.margin,
        settle=run.recipe.settle, reporter=run.reporter, activation_tolerance=run.recipe.activation_tolerance,
    )  # fmt: skip
    kept = merge(prepared.calibration, seen, ends_apart=run.recipe.ends_apart)
    tops = {site.name: site.max_count for site in prepared.sites}
    return narrowed(kept, seen, tops) if run.recipe.narrow and run.recipe.counts == "learned" else kept


def _from_one(shift: Tensor, parameter: Tensor) -> Tensor:
    """A shift as the first process found it, placed as a parameter is: replicas must stay equal to the last bit."""
    from accelerate.utils import broadcast

    return sharding.like(broadcast(shift), parameter)


def centred(run: Run) -> None:
    """Before domains are fitted: keys shifted so that a softmax's rows sum to about the same (``ranges.centre``)."""
    recipe = run.recipe
    if not (recipe.centre and recipe.train_weights):
        return
    batch = max(1, recipe.micro_tokens // recipe.context) * recipe.context
    count = max(1, CENTRED_TOKENS // batch)
    some = [*sequences(run)[:count], *sequences(run, odd=True)[: 2 * count]]
    found = centre(run.prepared, some, tau=recipe.delta_2 or 2, place=_from_one, reporter=run.reporter)
    spans = {name: {"before": list(c.before), "after": list(c.after)} for name, c in found.items()}
    # Under the first update it holds for, so that a run resumed before that update writes it anew, once.
    run.journal.write("centred", run.position.step + 1, {"log_means": spans})
