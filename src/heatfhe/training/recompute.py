# SPDX-License-Identifier: Apache-2.0
"""Activations computed again on the way back instead of kept: a block's memory is that of its input.

Each block of the model runs under torch's checkpoint. It is the non-reentrant one, whose graph stays whole: a range
term that a site adds on the side keeps its gradient. What runs again must see what the first pass saw, so the switch's
state is put back for it, and what it adds to the range terms a second time is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from heatfhe.sites import Prepared

_SEEN = ("distributions", "public", "tap")


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """The model's layers: its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=()))


@contextmanager
def recomputed(prepared: Prepared) -> Iterator[None]:
    """Inside, every block of a prepared model keeps its input alone for the backward pass. The gradients are the same,
    bit for bit where the forward pass is; a pass without gradient is as before."""
    found = blocks(prepared.model)
    for block in found:
        block.forward = partial(_kept_small, prepared, block.forward)
    try:
        yield
    finally:
        for block in found:
            del block.forward


def _kept_small(prepared: Prepared, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return own(*args, **kwargs)
    switch = prepared.switch
    seen = {name: getattr(switch, name) for name in _SEEN}
    again = False

    def body(*given: Any, **named: Any) -> Any:
        nonlocal again
        if not again:
            again = True
            return own(*given, **named)
        now = {name: getattr(switch, name) for name in (*_SEEN, "terms")}
        vars(switch).update(seen, terms={})
        try:
            return own(*given, **named)
        finally:
            vars(switch).update(now)

    # Nothing random runs inside (no dropout, and noise is refused), and a state of a generator cannot be captured.
    return checkpoint(body, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
