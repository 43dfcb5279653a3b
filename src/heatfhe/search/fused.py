# SPDX-License-Identifier: Apache-2.0
"""Functions of one tensor, elementwise or along its rows: compiled for a GPU, on a CPU run piece by piece in its cache.

Either way one pass over memory stands for dozens.

The layers of a model run the same functions with other constants. A function is traced as it is written, its constants
become one more input, and what is left is compiled once for all functions of that form: a GPT-2 of twelve layers asks
for a handful of compilations instead of a hundred. What runs is still what ``approx`` says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
Parts = tuple[Tensor, ...]
Rowwise = Callable[[Tensor], Parts]
Compile = Callable[[Any], Callable[..., Any]]
aten = torch.ops.aten
PIECE = 1 << 20  # bytes of a tensor that a core's cache holds beside a function's other values
TAKE_TENSORS = {aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor}  # overloads whose number may as well be a tensor


def _inductor(traced: Any) -> Callable[..., Any]:
    return torch.compile(traced, dynamic=False)


class Fused:
    """Compiled functions by name. Where no compiler works, the function itself runs, and a warning says so."""

    def __init__(self, compiler: Compile = _inductor) -> None:
        self._compiler = compiler
        self._named: dict[str, Rowwise] = {}
        self._forms: dict[str, Callable[..., Any]] = {}
        self.seconds = 0.0  # spent on tracing and compiling

    @property
    def forms(self) -> int:
        """How many different functions were compiled."""
        return len(self._forms)

    def __call__(self, name: str, function: Rowwise) -> Rowwise:
        """The function to call in its place; compiled at its first call, for tensors of that shape."""

        def first(x: Tensor) -> Parts:
            began = time.monotonic()
            made, found = self._made(name, function, x)
            self._named[name] = made
            self.seconds += time.monotonic() - began
            return found

        return self._named.get(name, first)

    def _made(self, name: str, function: Rowwise, x: Tensor) -> tuple[Rowwise, Parts]:
        try:
            traced, numbers = lifted(function, x)
            constants = torch.tensor(numbers, dtype=x.dtype, device=x.device)
            key = f"{tuple(x.shape)} {x.dtype} {traced.code}"
            run = self._forms[key] if key in self._forms else self._compiler(traced)
            found = tuple(run(x, constants))
            self._forms[key] = run
            return (lambda x: tuple(run(x, constants))), found
        except Exception as err:  # whatever a compiler raises: it is an optimisation and nothing else
            log.warning("%s: could not be compiled (%s) and runs several times slower", name, err)
            return function, function(x)


def lifted(function: Rowwise, x: Tensor) -> tuple[Any, list[float]]:
    """A function's trace at ``x`` as a module of x and a vector of constants, and the numbers in that vector."""
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(function)(x)
    graph, numbers = traced.graph, list[float]()
    entry = next(node for node in graph.nodes if node.op == "placeholder")
    with graph.inserting_after(entry):
        vector = graph.placeholder("constants")
    for node in list(graph.nodes):
        if node.target not in TAKE_TENSORS:
            continue
        for i, value in enumerate(node.args):
            if isinstance(value, float):
                with graph.inserting_before(node):
                    taken = graph.call_function(aten.select.int, (vector, 0, len(numbers)))
                node.update_arg(i, taken)
                numbers.append(value)
    traced.recompile()
    return traced, numbers


def piecewise(function: Rowwise, size: int = PIECE) -> Rowwise:
    """The same function, of one matrix (..., R, C) after the other or of as many together as ``size`` bytes hold.

    What lies between its operations then stays in a core's cache, where whole tensors go through memory once for every
    operation. ``bench/search_cpu.py`` has both.
    """

    def run(x: Tensor) -> Parts:
        matrices = x.flatten(0, -3) if x.dim() > 2 else x[None]
        each = max(1, size // max(1, matrices[:1].numel() * x.element_size()))
        pieces = [function(piece) for piece in matrices.split(each)]
        return tuple(torch.cat(column).view(*x.shape[:-2], *column[0].shape[1:]) for column in zip(*pieces))

    return run
