# SPDX-License-Identifier: Apache-2.0
"""A micro-batch step as one CUDA graph: forward, task and range loss, backward in one launch instead of thousands.

Shapes, counts and constants do not change within a phase, so a step is captured once and replayed. What changes with
every update (the prior, its targets, learning rates) stays outside: the iteration loss is a few small kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

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
            self.terms = self._step()
        self.zero()

    def __call__(self, rows: Tensor) -> Tensor:
        """Run on other windows of the same shape; returns (task, range), valid until the next call."""
        self.rows.copy_(rows)
        self.graph.replay()
        return self.terms

    def zero(self) -> None:
        """Set every gradient to zero, in place."""
        torch._foreach_zero_([p.grad for p in self.parameters])

    def _step(self) -> Tensor:
        tokens, labels = self.rows[:, :-1], self.rows[:, 1:]
        with torch.autocast("cuda", torch.bfloat16, enabled=self._narrow, cache_enabled=False):
            logits = self._prepared(tokens)
            if self._phase.distil and self._teacher is not None:
                with torch.no_grad():
                    wanted = self._teacher(input_ids=tokens, use_cache=False).logits
                task = distillation_loss(logits, wanted)
            else:
                task = task_loss(logits, labels)
        terms = self._prepared.range_terms()
        excess = torch.stack([t.float() for t in terms.values()]).sum() if terms else task.new_zeros(())
        ((task + self._phase.lambda_range * excess) * self._share).backward()
        return torch.stack([task.detach().float(), excess.detach().float()])


def usable(parameters: Iterable[Tensor], processes: int, noise: float) -> bool:
    """Whether a phase can run captured: one process, everything on a GPU, nothing random inside."""
    return processes == 1 and noise == 0.0 and all(p.is_cuda for p in parameters)
