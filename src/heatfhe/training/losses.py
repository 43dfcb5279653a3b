# SPDX-License-Identifier: Apache-2.0
"""The terms of the objective, each under its own name: task, iterations, range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from heatfhe.halting import BackOff, gpu_kernels
from heatfhe.sites import Mode, Prepared
from heatfhe.training.recipe import Phase, Recipe


@dataclass(frozen=True, slots=True)
class Terms:
    """One micro-batch's loss terms, unweighted."""

    task: Tensor
    iterations: Tensor
    range: Tensor

    def total(self, phase: Phase, lambda_iter: float) -> Tensor:
        """task + lambda_iter * iterations + lambda_range * range."""
        return self.task + lambda_iter * self.iterations + phase.lambda_range * self.range


def task_loss(logits: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy per token, in nats; ``weights`` multiply each window's, which still counts in the mean."""
    if logits.is_cuda and _FUSED is not None:
        fused: Tensor = _FUSED.cross_entropy(logits, targets, logits.shape[-1], weights)
        return fused
    pair = logits.float().flatten(0, -2), targets.flatten()
    if weights is None:
        return functional.cross_entropy(*pair)
    return weighted_mean(functional.cross_entropy(*pair, reduction="none").view(targets.shape), weights)


def targets(prepared: Prepared, rows: Tensor) -> Tensor:
    """What logits should say of rows: the token after each (B, T), or the label of an image (B, 1)."""
    return rows[:, 1:] if prepared.grid is None else rows[:, -1:].long()


@torch.no_grad()
def window_losses(prepared: Prepared, rows: Tensor, size: int, mode: Mode = "deployed") -> Tensor:
    """The task loss of each window (N, context + 1) or image, ``size`` at a time: (N,) in float64.

    It is infinite of one that diverges. Of an exact model, which nothing makes diverge, the loss itself.
    """
    found: list[Tensor] = []
    for part in rows.split(size):
        logits = prepared.logits(part[:, :-1], mode=mode)
        own = [task_loss(one[None], row[None]) for one, row in zip(logits, targets(prepared, part), strict=True)]
        if mode != "exact" and prepared.calibration is not None:
            wild = prepared.calibration.diverged(logits).any(-1)
            own = [loss.new_tensor(math.inf) if bad else loss for loss, bad in zip(own, wild.tolist(), strict=True)]
        found += own
    return torch.stack(found).double()


def distillation_loss(logits: Tensor, teacher: Tensor, weights: Tensor | None = None) -> Tensor:
    """KL of the student from the teacher per token, at temperature one; ``weights`` as in task_loss."""
    if logits.is_cuda and _FUSED is not None:
        fused: Tensor = _FUSED.divergence(logits, teacher, logits.shape[-1], weights)
        return fused
    wanted = functional.log_softmax(teacher.float(), dim=-1)
    given = functional.log_softmax(logits.float(), dim=-1)
    return weighted_mean((wanted.exp() * (wanted - given)).sum(dim=-1), weights)


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over windows and tokens of (B, T) losses, each window's times its weight."""
    return values.mean() if weights is None else (values * weights[:, None]).mean()


def prior(prepared: Prepared, recipe: Recipe, targets: BackOff, update: int) -> Tensor:
    """Every site's log prior at this update, (sites, width + 1), on the CPU."""
    return prepared.halting.log_prior(
        targets.above_floor(), recipe.prior(update), geometric_at_zero=recipe.geometric_at_zero
    )


def iteration_loss(
    prepared: Prepared, recipe: Recipe, targets: BackOff, update: int, weights: Mapping[str, float] | None = None
) -> Tensor:
    """Mean over sites of the KL from the learned distribution to its prior at this update, times the sites' weights."""
    device = prepared.halting.logits.device
    apart = prepared.halting.divergence(prior(prepared, recipe, targets, update).to(device))
    return (apart * site_weights(prepared, weights).to(device)).mean() if weights else apart.mean()


def site_weights(prepared: Prepared, weights: Mapping[str, float] | None) -> Tensor:
    """One for each site in order, on the CPU; ones where nothing is said."""
    return torch.tensor([1.0 if not weights else weights[site.name] for site in prepared.sites])


def losses(
    forward: nn.Module,
    prepared: Prepared,
    teacher: nn.Module | None,
    rows: Tensor,
    phase: Phase,
    recipe: Recipe,
    pulled: BackOff | None,
    update: int,
    *,
    odd: Tensor | None = None,
    weights: Mapping[str, float] | None = None,
) -> Terms:
    """All terms on a micro-batch of windows (B, context + 1) or images; ``forward`` is the model, wrapped or not.

    ``odd`` marks windows whose own tokens are not learned: where the others learn the text, they learn the teacher.
    ``weights`` are those of the sites in the iteration loss.
    """
    tokens, labels = rows[:, :-1], targets(prepared, rows)
    logits = forward(tokens)
    if phase.distil and teacher is not None:
        with torch.no_grad():
            wanted = prepared.behind_prefix(tokens, teacher)
        task = distillation_loss(logits, wanted)
    elif odd is None or not odd.any():
        task = task_loss(logits, labels)
    else:
        task = _mixed_loss(prepared, logits, rows, teacher, odd.to(logits.device))
    terms = prepared.range_terms()
    excess = torch.stack(list(terms.values())).sum() if terms else task.new_zeros(())
    iterations = task.new_zeros(())
    if pulled is not None and phase.halting == "soft":
        iterations = iteration_loss(prepared, recipe, pulled, update, weights)
    return Terms(task, iterations, excess)


def _mixed_loss(prepared: Prepared, logits: Tensor, rows: Tensor, teacher: nn.Module | None, odd: Tensor) -> Tensor:
    """The mean over windows of the text's loss and, for odd ones, of the divergence from the teacher.

    The teacher runs on the odd windows alone; without one they add nothing.
    """
    if teacher is None:
        return task_loss(logits, rows[:, 1:], ~odd)
    with torch.no_grad():
        wanted = prepared.behind_prefix(rows[odd, :-1], teacher)
    task = distillation_loss(logits[odd], wanted) * odd.sum()
    if not odd.all():
        task = task + task_loss(logits[~odd], rows[~odd, 1:]) * (~odd).sum()
    return task / len(odd)


_FUSED = gpu_kernels("heatfhe.training.fused")
