# SPDX-License-Identifier: Apache-2.0
"""One phase of a run: a plain loop of updates. Everything an update needs is a function of the position."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from heatfhe.errors import ConfigError, TrainingError
from heatfhe.odd import Hard
from heatfhe.progress import SILENT, Reporter
from heatfhe.sites import Prepared, RangeBounds
from heatfhe.training import checkpoint, sharding
from heatfhe.training.captured import CapturedBatch, usable
from heatfhe.training.checkpoint import Position
from heatfhe.training.data import Windows
from heatfhe.training.diagnose import Prices, Sizes, first_to_leave, noise_tap, priced_weights
from heatfhe.training.journal import Journal
from heatfhe.training.losses import Terms, losses, prior, site_weights, targets, task_loss
from heatfhe.training.recipe import Phase, Recipe
from heatfhe.training.recompute import recomputed

PATIENCE_FOR_COLLAPSE = 20  # updates in a row without a usable gradient, or worse than guessing, before a run gives up
TYPICAL = 2.0  # times the median variance of a norm: what a squeeze's bound on it begins at


@dataclass
class Run:
    """The pieces of one run, held together while it lasts."""

    prepared: Prepared
    teacher: nn.Module | None
    windows: Windows
    held_out: Windows | None
    recipe: Recipe
    accelerator: Any  # accelerate.Accelerator
    position: Position
    journal: Journal
    folder: Path | None
    identity: dict[str, str]
    reporter: Reporter = SILENT
    stop: Callable[[], bool] = bool
    sharded: bool = False
    carried: Sizes | None = None
    prices: Prices | None = None
    hard: Hard | None = None
    optimizer: Optimizer | None = None
    sizes: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # carried, under this phase's calibration

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return bool(self.accelerator.is_main_process)

    def save(self) -> None:
        """Write a checkpoint, from the main process alone; sharded weights are gathered from all.

        Every process waits until it is there: one that went on, stopped and started again would find the checkpoint
        before it, and tidy away the half-written one.
        """
        if self.folder is None or self.optimizer is None:
            return
        if self.is_main or self.sharded:
            state = (self.prepared, self.optimizer, self.position, self.identity)
            checkpoint.save(self.folder / "checkpoint", *state, write=self.is_main)
        self.accelerator.wait_for_everyone()

    def asked_to_stop(self) -> bool:
        """Whether any process was asked to stop: all of them stop after the same update."""
        asked = self.stop()
        if self.accelerator.num_processes > 1:
            asked = bool(self.accelerator.reduce(torch.tensor(float(asked), device=self.accelerator.device), "sum") > 0)
        return asked


class Stopped(Exception):
    """The run was asked to stop and has written its checkpoint."""


def run_phase(
    run: Run,
    name: str,
    phase: Phase,
    resumed: dict[str, Any] | None,
    refits: Mapping[int, Callable[[], None]] = MappingProxyType({}),
) -> None:
    """Run a phase from the position on; ``resumed`` is the optimizer's state from a checkpoint of this phase.

    ``refits`` are called before the updates they stand under, and may change the model's constants.
    """
    with recomputed(run.prepared) if run.recipe.recompute else nullcontext():
        _run_updates(run, name, phase, resumed, refits)


def _run_updates(
    run: Run, name: str, phase: Phase, resumed: dict[str, Any] | None, refits: Mapping[int, Callable[[], None]]
) -> None:
    recipe, prepared, position = run.recipe, run.prepared, run.position
    _turn_to(run, phase)
    run.optimizer = make_optimizer(prepared, phase, recipe)
    if resumed is not None:
        checkpoint.restore_optimizer(run.optimizer, resumed)
    optimizer = run.optimizer
    micro = _micro_batches(run, phase)
    forward: nn.Module | None = None
    captured: CapturedBatch | None = None
    if usable(prepared.parameters(), run.accelerator.num_processes, recipe.noise):
        captured = _capture(run, phase, micro)
    else:
        forward = prepared if run.sharded else run.accelerator.prepare(prepared)
    bad = 0
    run.reporter.start(name, phase.updates - position.update)
    while position.update < phase.updates:
        began = time.monotonic()
        if position.update in refits:  # a run resumed here has not been refitted: checkpoints are older
            refits[position.update]()
            _turn_to(run, phase)
            captured = _capture(run, phase, micro) if captured is not None else None
        for group in optimizer.param_groups:
            group["lr"] = phase.logit_lr if group["name"] == "logits" else phase.rate(position.update)
        _take_prices(run, phase)
        lambda_iter = recipe.lambda_iter(position.update) if phase.halting == "soft" else 0.0
        if captured is not None:
            mean, finite = _replay(run, captured, phase, micro, lambda_iter)
        else:
            assert forward is not None
            mean = _accumulate(run, forward, phase, micro, lambda_iter)
            finite = _apply(run, optimizer, mean)
        position.skipped += not finite
        position.update += 1
        position.step += 1
        _report(run, name, phase, mean, finite, time.monotonic() - began)
        bad = bad + 1 if not finite or mean["task"] > useless(prepared) else 0
        if bad >= PATIENCE_FOR_COLLAPSE:
            raise TrainingError(_collapse(run, name, bad))
        ended = position.update == phase.updates
        if run.held_out is not None and (position.update % recipe.validate_every == 0 or ended):
            position.validation = validate(run, phase)
            if run.is_main:
                facts = {"phase": name, "loss": position.validation, "iterations": _iterations(run, phase)}
                run.journal.write("validation", position.step, facts)
        if position.update % recipe.checkpoint_every == 0 and not ended:
            run.save()
        if run.asked_to_stop():
            run.save()
            raise Stopped
    run.reporter.done(name)


def _turn_to(run: Run, phase: Phase) -> None:
    """The model, and the sizes at which noise meets it, as a phase and the constants of this moment have them."""
    recipe, prepared = run.recipe, run.prepared
    configure(prepared, phase, recipe, run.position.variances)
    run.sizes = {}
    if run.carried is not None and recipe.noise and phase.halting != "none" and prepared.calibration is not None:
        run.sizes = run.carried(prepared.calibration)


def _take_prices(run: Run, phase: Phase) -> None:
    """What iterations cost at the counts of this moment, every so many updates of a soft phase."""
    recipe, position, calibration = run.recipe, run.position, run.prepared.calibration
    if not recipe.price_share or phase.halting != "soft" or position.update % recipe.price_every:
        return
    assert run.prices is not None
    assert calibration is not None
    prices = run.prices(calibration.with_counts(run.prepared.modes()))
    position.weights = priced_weights(prices, recipe.price_share)
    if run.is_main:
        # Under the first update it holds for, so that a run resumed before that update writes it anew, once.
        run.journal.write("prices", position.step + 1, {"seconds": dict(prices), "weights": position.weights})


def useless(prepared: Prepared) -> float:
    """A loss per token that no working model has: twice that of guessing every token alike."""
    return 2.0 * math.log(prepared.architecture.shape.vocabulary)


def _collapse(run: Run, name: str, bad: int) -> str:
    rows = run.windows.batch(run.recipe.seed, max(0, run.position.rows - 1), 1).to(run.accelerator.device)
    return (
        f"{name}: the run has collapsed: {bad} updates in a row had no finite gradient, or a loss over "
        f"{useless(run.prepared):.3g}. First to leave its domain: {first_to_leave(run.prepared, rows[:, :-1])}. "
        "Lower lambda_iter or the learning rate, or raise lambda_range"
    )


def configure(
    prepared: Prepared, phase: Phase, recipe: Recipe, variances: Mapping[str, float] = MappingProxyType({})
) -> None:
    """Turn the model to a phase: its mode, its range bounds, what learns.

    A norm's variance is bounded by the recipe's value, or by its own in ``variances`` (before a calibration) or in the
    calibration where that is wider: what counts for an inverse root is how far rows spread, not where they lie.
    """
    bounds = None
    if phase.lambda_range > 0:
        bounds = RangeBounds(
            activation=recipe.activation_bound,
            score=phase.score_bound,
            denominator=recipe.denominator_bound,
            variance=recipe.variance_bound,
            spread=recipe.variance_spread or math.inf,
            divisor=recipe.delta_2 or 2,
        )
    prepared.switch.variance_bounds = dict(variances)
    prepared.switch.medians = {n: v / TYPICAL for n, v in variances.items()} if phase.halting == "none" else {}
    if prepared.calibration is not None:
        prepared.switch.variance_bounds = {n: c.observed.hi / c.width for n, c in prepared.calibration.norms.items()}
    prepared.switch.slack = recipe.slack
    push = recipe.push / max(1, phase.tokens_per_update)
    if phase.halting == "none":
        prepared.set_mode("exact", bounds=bounds)
    else:
        prepared.set_mode("training", halting=phase.halting, bounds=bounds, push=push)
    for parameter in prepared.weights():
        parameter.requires_grad_(recipe.train_weights)
    for parameter in prepared.halting_logits():
        parameter.requires_grad_(phase.halting == "soft" and phase.logit_lr > 0)
    prepared.model.eval()  # no dropout: fine-tuning is short, and every update must be repeatable


def make_optimizer(prepared: Prepared, phase: Phase, recipe: Recipe) -> Optimizer:
    """AdamW over what learns in this phase, with fresh moments.

    Those of a phase before would belong to another loss: after a squeeze its second moments are so small that the first
    text gradients move weights by many times the learning rate (seen to blow up a GPT-2 within ten updates).
    """
    groups = []
    if recipe.train_weights:
        weights = [p for p in prepared.weights() if p.requires_grad]
        decayed, plain = [p for p in weights if p.ndim >= 2], [p for p in weights if p.ndim < 2]
        groups += [{"params": decayed, "weight_decay": recipe.weight_decay, "name": "matrices"}]
        groups += [{"params": plain, "weight_decay": 0.0, "name": "vectors"}]
    logits = [p for p in prepared.halting_logits() if p.requires_grad]
    if logits:
        groups.append({"params": logits, "weight_decay": 0.0, "name": "logits"})
    if not groups:
        raise ConfigError(
            f"{recipe.name}: nothing learns in a phase with frozen weights and fixed counts; leave it out"
        )
    fused = all(p.is_cuda for g in groups for p in g["params"])  # type: ignore[attr-defined]
    optimizer = AdamW(groups, lr=phase.lr, betas=recipe.betas, eps=recipe.eps, fused=fused)
    return optimizer


def _micro_batches(run: Run, phase: Phase) -> tuple[int, int]:
    """(micro-batches per update, windows in each) for one process."""
    windows = phase.tokens_per_update // run.recipe.context
    processes = run.accelerator.num_processes
    if windows % processes:
        raise ConfigError(
            f"{windows} windows per update do not split over {processes} processes; change tokens_per_update"
        )
    own = windows // processes
    size = max(1, min(own, run.recipe.micro_tokens // run.recipe.context))
    while own % size:
        size -= 1
    return own // size, size


def _accumulate(
    run: Run, forward: nn.Module, phase: Phase, micro: tuple[int, int], lambda_iter: float
) -> dict[str, float]:
    """Forward and backward over one update's micro-batches; returns the mean of every loss term."""
    recipe, prepared, position, accelerator = run.recipe, run.prepared, run.position, run.accelerator
    count, size = micro
    processes, rank = accelerator.num_processes, accelerator.process_index
    total = count * size * processes
    batch, marks = run.windows.marked_batch(recipe.seed, position.rows, total)
    rows, odd = batch[rank::processes].to(accelerator.device), marks[rank::processes]
    position.rows += total
    assert run.optimizer is not None
    run.optimizer.zero_grad(set_to_none=True)
    prepared.switch.push = recipe.push / (count * size * recipe.context)
    sums = torch.zeros(3, device=accelerator.device, dtype=torch.float64)
    for i in range(count):
        part, own = rows[i * size : (i + 1) * size], odd[i * size : (i + 1) * size]
        with _noise(run), _synced(run, forward, i == count - 1):
            terms: Terms = losses(
                forward, prepared, run.teacher, part, phase, recipe, position.targets, position.update, odd=own,
                weights=position.weights,
            )  # fmt: skip
            accelerator.backward(terms.total(phase, lambda_iter) / count)
        with torch.no_grad():
            sums += torch.stack([terms.task, terms.iterations, terms.range]).double() / count
        position.micro_steps += 1
        if position.targets is not None and phase.halting == "soft":
            position.targets = position.targets.observe(prepared.modes(), position.update)
    if run.sharded:
        sharding.average_logits(prepared)
    if processes > 1:
        sums = accelerator.reduce(sums, "mean")
    task, iterations, excess = sums.tolist()
    return {"task": task, "iter": iterations, "range": excess}


def _capture(run: Run, phase: Phase, micro: tuple[int, int]) -> CapturedBatch:
    count, size = micro
    run.prepared.switch.push = run.recipe.push / (count * size * run.recipe.context)
    rows = run.windows.batch(run.recipe.seed, run.position.rows, size).to(run.accelerator.device)
    narrow = run.recipe.precision == "bf16"
    mixed = run.windows.odd is not None
    return CapturedBatch(run.prepared, run.teacher, phase, rows, share=1.0 / count, narrow=narrow, mixed=mixed)


def _replay(
    run: Run, captured: CapturedBatch, phase: Phase, micro: tuple[int, int], lambda_iter: float
) -> tuple[dict[str, float], bool]:
    """As _accumulate and _apply, on a captured micro-batch."""
    recipe, prepared, position = run.recipe, run.prepared, run.position
    count, size = micro
    batch, odd = run.windows.marked_batch(recipe.seed, position.rows, count * size)
    rows = batch.to(run.accelerator.device, non_blocking=True)
    position.rows += count * size
    if position.targets is not None and phase.halting == "soft":
        weights = site_weights(prepared, position.weights) if position.weights else None
        captured.pull(prior(prepared, recipe, position.targets, position.update), lambda_iter, weights)
    assert run.optimizer is not None
    mean, finite, modes = captured.update(rows.split(size), run.optimizer, recipe.clip, odd.split(size))
    for _ in range(count):
        position.micro_steps += 1
        if position.targets is not None and phase.halting == "soft":
            position.targets = position.targets.observe(modes, position.update)
    return mean, finite


def _apply(run: Run, optimizer: Optimizer, mean: dict[str, float]) -> bool:
    """Clip and update; a batch without a finite loss and gradient is counted and leaves everything as it was."""
    finite = all(math.isfinite(v) for v in mean.values())
    groups = {group["name"]: group["params"] for group in optimizer.param_groups}
    logits, weights = groups.pop("logits", []), [p for params in groups.values() for p in params]
    for parameters in (logits, weights):
        if parameters:
            norm = float(sharding.whole(run.accelerator.clip_grad_norm_(parameters, run.recipe.clip)))
            finite = finite and math.isfinite(norm)
            mean["gradient"] = norm  # the weights' where they learn: they come last
    if finite:
        optimizer.step()
    return finite


@torch.no_grad()
def validate(run: Run, phase: Phase) -> float:
    """Held-out cross-entropy at the counts that would be deployed now, guards on as in the phase."""
    assert run.held_out is not None
    prepared, recipe = run.prepared, run.recipe
    saved = dict(prepared.switch.counts)
    if phase.halting == "soft":
        prepared.freeze()
        prepared.set_mode("training", halting="hard")
    size = max(1, recipe.micro_tokens // recipe.context)
    rows = torch.from_numpy(run.held_out.rows[: size * recipe.validate_batches]).to(run.accelerator.device)
    with run.accelerator.autocast():
        parts = rows.split(size)
        values = [task_loss(prepared(part[:, :-1]), targets(prepared, part)) * len(part) for part in parts]
    if phase.halting == "soft":
        prepared.switch.counts = saved
        configure(prepared, phase, recipe, run.position.variances)
    return float(torch.stack(values).sum()) / len(rows)


def _iterations(run: Run, phase: Phase) -> int:
    if run.prepared.calibration is None:
        return 0
    return run.prepared.total_count(run.prepared.modes() if phase.halting == "soft" else None)


def _report(run: Run, name: str, phase: Phase, mean: dict[str, float], finite: bool, seconds: float) -> None:
    if not run.is_main:
        return
    position = run.position
    iterations = _iterations(run, phase)
    facts = {"phase": name, **mean, "iterations": iterations, "lr": phase.rate(position.update - 1)}
    facts |= {
        "tokens_per_second": phase.tokens_per_update / max(seconds, 1e-9),
        "skipped": position.skipped,
        "finite": finite,
    }
    run.journal.write("update", position.step, facts)
    if phase.halting == "soft" and (position.update % 10 == 0 or position.update == phase.updates):
        run.journal.distributions(position.step, run.prepared)
    run.reporter.advance(
        name,
        loss=mean["task"],
        validation=math.nan if position.validation is None else position.validation,
        iterations=iterations,
        tokens_per_s=round(phase.tokens_per_update / max(seconds, 1e-9)),
    )


def _noise(run: Run) -> AbstractContextManager[None]:
    """The recipe's noise for this micro-batch, other on every process."""
    if not run.sizes:
        return nullcontext()
    accelerator = run.accelerator
    batch = run.position.micro_steps * accelerator.num_processes + accelerator.process_index
    public, whole = len(run.prepared.config.prefix), run.prepared.grid is not None
    return run.prepared.tapped(
        noise_tap(run.sizes, run.recipe.noise, run.recipe.seed, batch, public=public, whole=whole)
    )


def _synced(run: Run, forward: nn.Module, last: bool) -> Any:
    """Gradients meet over processes in the last micro-batch of an update alone."""
    if run.sharded:
        model: Any = run.prepared.model
        model.set_requires_gradient_sync(last)
        return nullcontext()
    return nullcontext() if last or run.accelerator.num_processes == 1 else run.accelerator.no_sync(forward)
