# SPDX-License-Identifier: Apache-2.0
"""A placement: every bootstrap, the level of every value, what it costs, and the replay that proves it legal."""

from __future__ import annotations

from dataclasses import dataclass

from heatfhe.ckks import Params
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """One bootstrap of one value, or of two real values as the two halves of a complex one.

    It happens right after node ``at`` has run: nodes after it read the refreshed values, nodes up to it the old ones.
    ``scales[i]`` multiplies value i before and its inverse after: below one it costs a level before (a plaintext
    product; the inverse is an integer), above one a level after. ``after`` are the levels once all that is done.
    ``folded`` marks a value of several ciphertexts that share complex bootstraps among themselves.
    ``toll`` is what the bits it does not keep count, in seconds that nobody spends.
    """

    at: int
    values: tuple[int, ...]
    period: int
    bootstraps: int
    seconds: float
    scales: tuple[float, ...]
    after: tuple[int, ...]
    folded: bool = False
    toll: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.values) == len(self.scales) == len(self.after) <= 2:
            raise ConfigError(f"bootstrap at node {self.at}: one or two values, each with a scale and a level")
        if self.values[-1] != self.at or (len(self.values) == 2 and self.values[0] >= self.at):
            raise ConfigError(f"bootstrap at node {self.at}: happens right after the later of its values is made")

    @property
    def paired(self) -> bool:
        """Whether real and imaginary halves carry different data."""
        return len(self.values) == 2 or self.folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the bootstraps of one program go.

    ``before[v]`` is the level at which value v is made (for an input: the level it comes with). A node runs with each
    input i dropped to ``before[v] + costs[i]``.
    """

    algorithm: str
    params: str
    cost: str
    before: tuple[int, ...]
    refreshes: tuple[Refresh, ...]
    work_seconds: float

    @property
    def refresh_seconds(self) -> float:
        """Predicted seconds of all bootstraps."""
        return sum(r.seconds for r in self.refreshes)

    @property
    def seconds(self) -> float:
        """Predicted seconds of the program."""
        return self.work_seconds + self.refresh_seconds

    @property
    def price(self) -> float:
        """What a placement makes small: seconds, and what missing bits count."""
        return self.seconds + sum(r.toll for r in self.refreshes)

    @property
    def bootstraps(self) -> int:
        """How many bootstraps run, a paired one counted once."""
        return sum(r.bootstraps for r in self.refreshes)

    @property
    def pairs(self) -> int:
        """How many of them carry two real values."""
        return sum(r.paired for r in self.refreshes)

    @property
    def refreshed(self) -> frozenset[int]:
        """Every value that is refreshed."""
        return frozenset(v for r in self.refreshes for v in r.values)

    def at(self) -> dict[int, Refresh]:
        """The bootstrap that follows each node, where there is one."""
        return {r.at: r for r in self.refreshes}

    def available(self, graph: Graph) -> list[tuple[int, ...]]:
        """For every node the level each of its inputs has when it is read, before the drop."""
        now: list[int] = []
        events = self.at()
        out: list[tuple[int, ...]] = []
        for v, node in enumerate(graph.nodes):
            out.append(tuple(now[u] for u in node.inputs))
            now.append(self.before[v])
            if v in events:
                for u, level in zip(events[v].values, events[v].after):
                    now[u] = level
        return out


def check(graph: Graph, placement: Placement, params: Params, *, spare_last: bool = True) -> None:
    """Replay a placement forward and refuse it unless every node has the levels it spends and every rule is kept."""
    nodes = graph.nodes
    if len(placement.before) != len(nodes):
        raise PlanError(f"placement has {len(placement.before)} levels for a graph of {len(nodes)} nodes")
    if len(placement.at()) != len(placement.refreshes):
        raise PlanError("placement refreshes twice after one node")
    events, now = placement.at(), [0] * len(nodes)
    for v, node in enumerate(nodes):
        level = placement.before[v]
        if level < 0 or (node.fixed is not None and level != node.fixed):
            raise PlanError(f"{node.name}: made at level {level}, which it cannot be")
        for u, c in zip(node.inputs, node.costs):
            if now[u] < level + c:
                raise PlanError(f"{node.name}: reads {nodes[u].name} at level {now[u]}, needs {level + c}")
        now[v] = level
        if v in events:
            for u, after, scale in zip(events[v].values, events[v].after, events[v].scales):
                _check_refresh(graph, events[v], u, now[u], scale, params, spare_last)
                pairing = params.pair_levels if events[v].paired else 0
                if after > params.levels - pairing - (1 if scale > 1 else 0):
                    raise PlanError(f"{nodes[u].name}: a bootstrap cannot leave level {after}")
                now[u] = after
    for v, level in graph.required.items():
        if now[v] < level:
            raise PlanError(f"{nodes[v].name}: ends at level {now[v]}, must have {level}")


def _check_refresh(
    graph: Graph, event: Refresh, u: int, level: int, scale: float, params: Params, spare_last: bool
) -> None:
    node = graph.nodes[u]
    if not node.refreshable or (node.last and spare_last):
        raise PlanError(f"{node.name}: must not be refreshed")
    if len(event.values) == 2 and (node.complex or node.parts != 1):
        raise PlanError(f"{node.name}: is not one real ciphertext, so it cannot share a bootstrap")
    if event.folded and node.complex:
        raise PlanError(f"{node.name}: is complex already, its ciphertexts cannot share a bootstrap")
    if node.bound * scale > params.reach * (1 + 1e-9):
        raise PlanError(f"{node.name}: magnitude {node.bound * scale:g} is outside the reach {params.reach:g}")
    if scale < 1 and level < 1:
        raise PlanError(f"{node.name}: has no level left for the division before its bootstrap")
