# SPDX-License-Identifier: Apache-2.0
"""What a list of stages says as a graph: who writes and reads a value, which layer a stage belongs to, its sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from heatfhe.errors import ConfigError
from heatfhe.records import FAMILIES, Site, make_site
from heatfhe.stages.types import Activation, Attention, Head, Norm, Stage

S = TypeVar("S")


def of(stages: Sequence[Stage], kind: type[S]) -> tuple[S, ...]:
    """Stages of one kind, in depth order."""
    return tuple(stage for stage in stages if isinstance(stage, kind))


def writers(stages: Sequence[Stage]) -> dict[str, Stage]:
    """The stage that writes each value."""
    return {stage.writes: stage for stage in stages}


def readers(stages: Sequence[Stage], value: str) -> tuple[Stage, ...]:
    """The stages that read a value, in depth order."""
    return tuple(stage for stage in stages if value in stage.inputs)


def centred(stages: Sequence[Stage]) -> bool:
    """Whether every reading of the residual stream removes its mean, so that it may be carried without one."""
    found = {norm.centred for norm in of(stages, Norm)}
    if len(found) > 1:
        raise ConfigError("a circuit's norms either all subtract the mean or none does")
    return found == {True}


def layers(stages: Sequence[Stage]) -> dict[str, int]:
    """Block index of every norm, attention and activation by name: a norm belongs to what comes after it.

    An attention begins a block; what leads to the head lies one past the last block.
    """
    out: dict[str, int] = {}
    ahead = len(of(stages, Attention))
    block = ahead
    for stage in reversed(stages):
        if isinstance(stage, Attention):
            block = ahead = ahead - 1
        elif isinstance(stage, Activation):
            block = max(0, ahead - 1)
        elif isinstance(stage, Head):
            block = ahead
        if isinstance(stage, (Norm, Attention, Activation)):
            out[stage.name] = block
    return out


def solved(stages: Sequence[Stage]) -> frozenset[str]:
    """Names of all values that go into, and come out of, approximations: where a bootstrap's error would enter."""
    return frozenset(f"{stage.label}/{part}" for stage in stages for part in stage.solved)


def sites(stages: Sequence[Stage], max_counts: Mapping[str, int] | None = None) -> tuple[Site, ...]:
    """Every site in depth order; ``max_counts`` raises the largest count of a family (never below its own)."""
    tops = {name: max(f.max_count, (max_counts or {}).get(name, 0)) for name, f in FAMILIES.items()}
    block = layers(stages)
    return tuple(
        make_site(stage.label, family, block[stage.label], tops[family])
        for stage in stages
        for family in stage.families
    )
