# SPDX-License-Identifier: Apache-2.0
"""An update on one GPU without waiting: a micro-batch is one CUDA graph, results are read once at the end.

Shapes, counts and constants do not change within a phase, so forward, all losses and backward are captured once and
replayed. What changes with an update comes in through buffers (windows, which of them are odd, prior, its weights).
Micro-batches with an odd window, few of all, have a graph of their own, in which the teacher runs too. Whether
everything was finite stays on the device, where the optimizer looks it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from heatfhe.halting import gpu_kernels, mode
from heatfhe.sites import Prepared
from heatfhe.training.losses import distillation_loss, targets, task_loss
from heatfhe.training.recipe import Phase

WARM_UP = 3


class CapturedBatch:
    """Replays one micro-batch. Gradients accumulate in the parameters' own buffers, which must not be replaced.

    With ``mixed``, micro-batches may hold odd windows: they learn the teacher where the phase learns the text.
    """

    def __init__(
        self,
        prepared: Prepared,
        teacher: nn.Module | None,
        phase: Phase,
        rows: Tensor,
        *,
        share: float,
        narrow: bool,
        mixed: bool = False,
    ) -> None:
        self.rows = rows.clone()
        self.odd = torch.ones(len(rows), device=rows.device)
        self._prepared, self._teacher, self._phase, self._share, self._narrow = prepared, teacher, phase, share, narrow
        halting = prepared.halting
        self._prior = halting.logits.new_zeros((len(halting.sites), halting.width + 1))
        self._weight = halting.logits.new_zeros(())
        self._site_weights = halting.logits.new_ones(len(halting.sites))
        self.parameters = [p for p in prepared.parameters() if p.requires_grad]
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        self.terms = torch.zeros(3, device=rows.device)
        self.modes = torch.zeros(len(halting.sites), device=rows.device, dtype=torch.int64)
        self.graph = self._graph(mixed=False)
        self.mixed_graph = self._graph(mixed=True) if mixed and not phase.distil else None

    def _graph(self, *, mixed: bool) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._step(mixed)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(mixed)
        return graph

    def pull(self, log_prior: Tensor, weight: float, site_weights: Tensor | None = None) -> None:
        """Set the prior of the next replays and the weight of the iteration loss, whole and, if given, of each site."""
        if site_weights is not None:
            self._site_weights.copy_(site_weights.pin_memory(), non_blocking=True)
        self._prior.copy_(log_prior.pin_memory(), non_blocking=True)
        self._weight.fill_(weight)

    def update(
        self, parts: Sequence[Tensor], optimizer: Optimizer, clip: float, odd: Sequence[Tensor] | None = None
    ) -> tuple[dict[str, float], bool, dict[str, int]]:
        """One update over micro-batches: mean loss terms, whether it was finite and so applied, modes before it.

        ``odd``, on the CPU, marks the odd windows of every micro-batch.
        """
        torch._foreach_zero_([p.grad for p in self.parameters])
        sums = torch.zeros_like(self.terms)
        for i, rows in enumerate(parts):
            self.rows.copy_(rows, non_blocking=True)
            if self.mixed_graph is not None and odd is not None and odd[i].any():
                self.odd.copy_(odd[i].float().pin_memory(), non_blocking=True)
                self.mixed_graph.replay()
            else:
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

    def _step(self, mixed: bool) -> None:
        prepared, phase = self._prepared, self._phase
        with torch.autocast("cuda", torch.bfloat16, enabled=self._narrow, cache_enabled=False):
            task = self._task(self.rows[:, :-1], targets(prepared, self.rows), mixed)
        terms = prepared.range_terms()
        excess = torch.stack([t.float() for t in terms.values()]).sum() if terms else task.new_zeros(())
        loss, iterations = task + phase.lambda_range * excess, task.new_zeros(())
        if phase.halting == "soft":
            iterations = (prepared.halting.divergence(self._prior) * self._site_weights).mean()
            loss = loss + self._weight * iterations
        (loss * self._share).backward()
        with torch.no_grad():
            # Into buffers of their own: either graph's results are read after replays of the other.
            self.modes.copy_(mode(prepared.halting.probabilities()))
            self.terms.copy_(torch.stack([task.detach().float(), excess.detach().float(), iterations.detach()]))

    def _task(self, tokens: Tensor, labels: Tensor, mixed: bool) -> Tensor:
        """The task loss, by the kernels of heatfhe.training.fused where triton is installed."""
        teacher = self._teacher if self._phase.distil or mixed else None
        models = [self._prepared.model, *([] if teacher is None else [teacher])]
        kernels = gpu_kernels("heatfhe.training.fused")
        wanted: Tensor | None = None
        with nullcontext() if kernels is None else kernels.aligned_heads(*models):
            logits = self._prepared(tokens)
            if teacher is not None:
                with torch.no_grad():
                    wanted = self._prepared.behind_prefix(tokens, teacher)
        text, taught = task_loss, distillation_loss
        if kernels is not None:
            width = self._prepared.architecture.shape.vocabulary
            text, taught = partial(_within, kernels.cross_entropy, width), partial(_within, kernels.divergence, width)
        if not mixed:
            return text(logits, labels) if wanted is None else taught(logits, wanted)
        loss = text(logits, labels, 1.0 - self.odd)
        return loss if wanted is None else loss + taught(logits, wanted, self.odd)


def _within(
    loss: Callable[..., Tensor], width: int, logits: Tensor, wanted: Tensor, weights: Tensor | None = None
) -> Tensor:
    """A fused loss over the vocabulary alone, called as its plain twin is."""
    return loss(logits, wanted, width, weights)


def usable(parameters: Iterable[Tensor], processes: int, noise: float) -> bool:
    """Whether a phase can run captured: one process, everything on a GPU, nothing random inside."""
    return processes == 1 and noise == 0.0 and all(p.is_cuda for p in parameters)
