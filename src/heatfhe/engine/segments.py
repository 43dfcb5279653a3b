# SPDX-License-Identifier: Apache-2.0
"""A program cut into stretches that are the same at every position, which an engine may record, and the steps between.

A step moves where a plaintext, a rotation or the bound of a bootstrap depends on the position. The public position is
all that a program depends on, so everything else can be recorded once and played again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise

from heatfhe.planning import Program, Step

SHORTEST = 2  # a single step gains nothing


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps first..stop: what they read from outside, what is read of theirs afterwards, and whether they are fixed."""

    first: int
    stop: int
    fixed: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def segments(
    program: Program, moves: Callable[[Step], bool], kind: Callable[[Step], Hashable] | None = None
) -> tuple[Segment, ...]:
    """The program's steps, in order; steps of different kinds are never in one segment."""
    fixed = [not moves(step) for step in program.steps]
    kinds = [(still, kind(step) if kind else None) for still, step in zip(fixed, program.steps)]
    edges = [0, *(i for i in range(1, len(fixed)) if kinds[i] != kinds[i - 1]), len(fixed)]
    last = program.last_use()
    out = []
    for first, stop in pairwise(edges):
        made = [v for step in program.steps[first:stop] for v in step.results]
        read = dict.fromkeys(a for step in program.steps[first:stop] for a in step.args)
        out.append(
            Segment(
                first=first,
                stop=stop,
                fixed=fixed[first] and stop - first >= SHORTEST,
                inputs=tuple(a for a in read if a not in set(made)),
                outputs=tuple(v for v in made if last.get(v, -1) >= stop),
            )
        )
    return tuple(out)
