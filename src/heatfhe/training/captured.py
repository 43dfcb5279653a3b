# SPDX-License-Identifier: Apache-2.0
"""An update on one GPU without waiting: a micro-batch step is one CUDA graph, results are read once at the end.

Shapes, counts and constants do not change within a phase, so forward, all losses and backward are captured once and
replayed. What changes with an update comes in through buffers (windows, prior, its weight). Whether everything was
finite stays on the device too, where the optimizer looks it up.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from heatfhe.halting import gpu_kernels, mode
from heatfhe.sites import Prepared
from heatfhe.training.losses import distillation_loss, task_loss
from heatfhe.training.recipe import Phase

WARM_UP = 3


class CapturedStep:
    """Replays one micro-batch step. Gradients accumulate in the parameters' own buffers, which must not be replaced."""

    def __init__(
        self, prepared: Prepared, teacher: nn.Module | None, phase: Phase, rows: Tensor, *, share: float, narrow: bool
    ) -> None:
        self.rows = rows.clone()
        self._prepared, self._teacher, self._phase, self._share, self._narrow = prepared, teacher, phase, share, narrow
        halting = prepared.halting
        self._prior = halting.logits.new_zeros((len(halting.sites), halting.width + 1))
        self._weight = halting.logits.new_zeros(())
        self.parameters = [p for p in prepared.parameters() if p.requires_grad]
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.terms, self.modes = self._step()

    def pull(self, log_prior: Tensor, weight: float) -> None:
        """Set the prior of the next replays and the weight of the iteration loss."""
        self._prior.copy_(log_prior.pin_memory(), non_blocking=True)
        self._weight.fill_(weight)

    def update(
        self, parts: Iterable[Tensor], optimizer: Optimizer, clip: float
    ) -> tuple[dict[str, float], bool, dict[str, int]]:
        """One update over micro-batches: mean loss terms, whether it was finite and so applied, modes before it."""
        torch._foreach_zero_([p.grad for p in self.parameters])
        sums = torch.zeros_like(self.terms)
        for rows in parts:
            self.rows.copy_(rows, non_blocking=True)
            self.graph.replay()
            sums += self.terms * self._share
        weights, logits = (
            [p for g in optimizer.param_groups if (g["name"] == "logits") == own for p in g["params"]]
            for own in (False, True)
        )
        norms = [clip_grad_norm_(ps, clip, foreach=True) for ps in (logits, weights) if ps]
        finite = torch.isfinite(torch.stack([*norms, sums.sum()])).all()
        optimizer.found_inf = (~finite).float()  # fused AdamW leaves everything alone then
        optimizer.step()
        task, excess, iterations, gradient, *modes = torch.cat([sums, norms[-1][None], self.modes.float()]).tolist()
        mean = {"task": task, "iter": iterations, "range": excess, "gradient": gradient}
        names = (site.name for site in self._prepared.sites)
        return mean, bool(finite), {name: int(m) for name, m in zip(names, modes, strict=True)}

    def _step(self) -> tuple[Tensor, Tensor]:
        prepared, phase = self._prepared, self._phase
        with torch.autocast("cuda", torch.bfloat16, enabled=self._narrow, cache_enabled=False):
            task = self._task(self.rows[:, :-1], self.rows[:, 1:])
        terms = prepared.range_terms()
        excess = torch.stack([t.float() for t in terms.values()]).sum() if terms else task.new_zeros(())
        loss, iterations = task + phase.lambda_range * excess, task.new_zeros(())
        if phase.halting == "soft":
            iterations = prepared.halting.divergence(self._prior).mean()
            loss = loss + self._weight * iterations
        (loss * self._share).backward()
        with torch.no_grad():
            modes = mode(prepared.halting.probabilities())
        return torch.stack([task.detach().float(), excess.detach().float(), iterations.detach()]), modes

    def _task(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The task loss, by the kernels of heatfhe.training.fused where triton is installed."""
        distil = self._phase.distil and self._teacher is not None
        models = [self._prepared.model, *([self._teacher] if distil and self._teacher is not None else [])]
        kernels = gpu_kernels("heatfhe.training.fused")
        with nullcontext() if kernels is None else kernels.aligned_heads(*models):
            logits = self._prepared(tokens)
            if distil and self._teacher is not None:
                with torch.no_grad():
                    labels = self._teacher(input_ids=tokens, use_cache=False).logits
        if kernels is None:
            return distillation_loss(logits, labels) if distil else task_loss(logits, labels)
        loss: Tensor = (kernels.divergence if distil else kernels.cross_entropy)(
            logits, labels, self._prepared.architecture.shape.vocabulary
        )
        return loss


def usable(parameters: Iterable[Tensor], processes: int, noise: float) -> bool:
    """Whether a phase can run captured: one process, everything on a GPU, nothing random inside."""
    return processes == 1 and noise == 0.0 and all(p.is_cuda for p in parameters)
