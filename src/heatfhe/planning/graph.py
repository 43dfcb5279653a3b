# SPDX-License-Identifier: Apache-2.0
"""Planning's view of one program: operations with level costs, and what a bootstrap of each value would cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heatfhe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One contracted operation and the value it makes (a node's index is its value's id).

    ``costs[i]`` levels are spent on the way from input i to the result. ``period`` is the number of distinct slots of
    the value (its sparse bootstrap class), ``bound`` its largest magnitude, ``parts`` how many ciphertexts hold it;
    ``least`` is the smallest size that noise on it counts beside, as domains and counts say, or 0 if they do not.
    ``last`` marks the last result of a solver, ``complex`` a value that is not real and cannot be paired. ``work``
    counts engine instructions, for prices by level. An input of the program has no inputs and a ``fixed`` level.
    """

    name: str
    operator: str
    inputs: tuple[int, ...] = ()
    costs: tuple[int, ...] = ()
    period: int
    bound: float = 1.0
    least: float = 0.0
    parts: int = 1
    last: bool = False
    complex: bool = False
    refreshable: bool = True
    fixed: int | None = None
    work: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.costs) or any(c < 0 for c in self.costs):
            raise ConfigError(f"{self.name}: needs one non-negative cost per input")
        if (self.fixed is None) != bool(self.inputs):
            raise ConfigError(f"{self.name}: an input has a fixed level and no inputs, any other node the reverse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Nodes in topological order, and the levels its outputs must still have (``required``, by node id)."""

    nodes: tuple[Node, ...]
    required: Mapping[int, int]

    def __post_init__(self) -> None:
        for i, node in enumerate(self.nodes):
            if any(not 0 <= u < i for u in node.inputs):
                raise ConfigError(f"{node.name}: reads a value made after it")
        if any(not 0 <= u < len(self.nodes) for u in self.required):
            raise ConfigError("an output is not a node of the graph")

    def users(self) -> list[list[int]]:
        """For every value the nodes that read it."""
        out: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for u in set(node.inputs):
                out[u].append(i)
        return out
