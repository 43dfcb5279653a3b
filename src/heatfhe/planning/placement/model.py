# SPDX-License-Identifier: Apache-2.0
"""What every placement algorithm shares: rules, the price of each choice, the levels a set of bootstraps leads to.

The model. A value is made at level b >= 0; every input i it reads had level b + costs[i] or more (dropping to that is
free). A bootstrap of a value takes place right after it is made and lifts it to ``params.levels``; two real values may
share one complex bootstrap right after the later of them is made, which lifts both to ``params.levels -
params.pair_levels`` for readers after that point. Given the bootstraps, running everything at the lowest level that its
readers need is cheapest, since no instruction costs less at a higher level: ``settle`` computes just that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from heatfhe.ckks import Params
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph, Node
from heatfhe.planning.instructions import KINDS
from heatfhe.planning.placement.result import Placement, Refresh

MAX_DIVISOR = 1024
"""A value may exceed a bootstrap's reach by this factor: it is divided before (one level) and multiplied after."""

SPLIT = {"add": 3, "conjugate": 1}
"""Work of taking the two values of a pair apart, where a table does not price pairs themselves."""

RESCALING = {word: 1 for kind in ("times", "multiply_plain") for word in KINDS[kind].counted(1, 0, None)}
"""Work of multiplying a value before a refresh and dividing it after, or the reverse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a placement may do.

    ``pairing`` lets two real values share one complex bootstrap. ``spare_last`` never refreshes the last result of a
    solver: noise put there is repaired by nobody. ``precision`` is the number of bits a refresh must keep of the least
    size that noise on its value counts beside, where that is known: a value too small for it is multiplied before the
    refresh and divided after it, for one of the levels won, and every bit still missing has the price of a refresh.
    ``noise`` is the standard deviation of a refresh by the bound of what it takes, where that is not the parameters'.
    """

    pairing: bool = True
    spare_last: bool = True
    precision: float | None = None
    noise: Callable[[float], float] | None = None

    def __post_init__(self) -> None:
        if self.precision is not None and not 0 <= self.precision <= 60:
            raise ConfigError(f"precision is a number of bits from 0 to 60, got {self.precision:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to refresh one value alone: from level ``start`` or more to level ``after``."""

    start: int
    after: int
    seconds: float
    bootstraps: int
    paired: bool = False
    toll: float = 0.0

    @property
    def price(self) -> float:
        """Seconds, and what missing bits count."""
        return self.seconds + self.toll


class Model:
    """A graph with every choice priced. Built once, read by all algorithms."""

    def __init__(self, graph: Graph, params: Params, cost: CostTable, rules: Rules) -> None:
        self.graph, self.params, self.cost, self.rules = graph, params, cost, rules
        self.levels = params.levels
        if not 0 <= params.pair_levels < params.levels:
            raise ConfigError(f"{params.name}: a paired bootstrap must leave at least one of {params.levels} levels")
        nodes = graph.nodes
        for node in nodes:
            if node.fixed is not None and node.fixed > self.levels:
                raise PlanError(
                    f"{node.name}: enters at level {node.fixed}, but {params.name} has only {self.levels} usable levels"
                )
        self.scale = [_scale(node, params, rules) for node in nodes]
        self.toll = [self._toll(i) for i in range(len(nodes))]
        self.full = [max(node.costs, default=0) for node in nodes]
        self.work = [self._prices(node, deep) for node, deep in zip(nodes, self.full)]
        self.apart = cost.price(SPLIT, self.levels) if rules.pairing and not cost.pairs else 0.0
        self.options = [self._options(i) for i in range(len(nodes))]
        self.pairable = [
            rules.pairing and bool(self.options[i]) and nodes[i].parts == 1 and not nodes[i].complex
            for i in range(len(nodes))
        ]
        self.start = [self._start(i) for i in range(len(nodes))]
        self.bottom, self.top = self._reach()

    def allowed(self, i: int) -> bool:
        """Whether the rules and the magnitudes let this value be refreshed."""
        node = self.graph.nodes[i]
        return node.refreshable and not (node.last and self.rules.spare_last) and self.scale[i] > 0

    def pair_after(self, i: int) -> int:
        """Level of a value after a shared bootstrap."""
        return self.levels - self.params.pair_levels - (1 if self.scale[i] > 1 else 0)

    def pair_price(self, u: int, v: int) -> float:
        """Price of one shared bootstrap of two values, missing bits included."""
        return self.pair_seconds(u, v) + self.toll[u] + self.toll[v]

    def pair_seconds(self, u: int, v: int) -> float:
        """Seconds of one shared bootstrap of two values, of the longer period."""
        nodes = self.graph.nodes
        period = max(nodes[u].period, nodes[v].period)
        one = self.cost.refresh(period, self.params.slots)
        return one + self._more(period) + self._rescaling(u) + self._rescaling(v)

    def _more(self, period: int) -> float:
        """What a pair of this period costs more than one refresh."""
        slots = self.params.slots
        return self.cost.refresh(period, slots, pair=True) - self.cost.refresh(period, slots) + self.apart

    def reads(self, i: int) -> list[tuple[int, int]]:
        """Distinct inputs of a node, each with the most levels spent on the way from it."""
        node = self.graph.nodes[i]
        deepest: dict[int, int] = {}
        for u, c in zip(node.inputs, node.costs):
            deepest[u] = max(c, deepest.get(u, 0))
        return list(deepest.items())

    def _prices(self, node: Node, deep: int) -> list[float]:
        """Price of a node's work for every level its result may have."""
        try:
            return [self.cost.price(node.work, b + deep) if node.work else 0.0 for b in range(self.levels + 1)]
        except PlanError as err:
            raise PlanError(f"{node.name}: {err}") from err

    def _start(self, i: int) -> int:
        return 1 if 0 < self.scale[i] < 1 else 0

    def _rescaling(self, i: int) -> float:
        """Price of multiplying a value before a refresh and dividing it after, or the reverse."""
        if self.scale[i] == 1.0:
            return 0.0
        level = 1 if self.scale[i] < 1 else self.levels
        once = self.cost.price(RESCALING, level)
        return once * self.graph.nodes[i].parts

    def _toll(self, i: int) -> float:
        """What the bits count that a refresh does not keep of a value, though asked to."""
        node, asked = self.graph.nodes[i], self.rules.precision
        if asked is None or not self.scale[i]:
            return 0.0
        short = max(0.0, asked - kept_bits(node, self.params, self.scale[i], self.rules.noise))
        return short * self.cost.refresh(self.params.slots, self.params.slots)

    def _options(self, i: int) -> tuple[Option, ...]:
        if not self.allowed(i):
            return ()
        node = self.graph.nodes[i]
        one = self.cost.refresh(node.period, self.params.slots)
        after = self.levels - (1 if self.scale[i] > 1 else 0)
        start, extra = self._start(i), self._rescaling(i)
        toll, whole = self.toll[i], node.parts * one + extra
        alone = Option(start=start, after=after, seconds=whole, bootstraps=node.parts, toll=toll)
        if not self.rules.pairing or node.complex or node.parts < 2:
            return (alone,)
        half = math.ceil(node.parts / 2)
        seconds = half * one + (node.parts // 2) * self._more(node.period) + extra
        after = self.pair_after(i)
        folded = Option(start=start, after=after, seconds=seconds, bootstraps=half, paired=True, toll=toll)
        if self.params.pair_levels == 0 and folded.seconds <= alone.seconds:
            return (folded,)
        return (alone, folded)

    def _reach(self) -> tuple[list[int], list[int]]:
        """Highest level each value can be made at, and highest it can then have; refuses what nothing can mend."""
        bottom: list[int] = []
        top: list[int] = []
        for i, node in enumerate(self.graph.nodes):
            made = node.fixed if node.fixed is not None else min(top[u] - c for u, c in self.reads(i))
            if made < 0:
                spent, passed = self._chain(i, top)
                raise self._too_deep(i, f"spends {spent} levels", passed)
            high = max([made, *(o.after for o in self.options[i] if o.start <= made)])
            if high < self.graph.required.get(i, 0):
                need = self.graph.required[i]
                raise self._too_deep(i, f"must end at level {need} and cannot be above {high}", [i])
            bottom.append(made)
            top.append(high)
        return bottom, top

    def _chain(self, i: int, top: Sequence[int]) -> tuple[int, list[int]]:
        """Levels from the last value before node i that may be refreshed to i's result, and the values in between."""
        spent, passed = 0, []
        u = i
        while u == i or (not self.options[u] and self.graph.nodes[u].inputs):
            u, c = min(self.reads(u), key=lambda read: top[read[0]] - read[1])
            spent += c
            passed.append(u)
        return spent, passed

    def _too_deep(self, i: int, what: str, passed: Sequence[int]) -> PlanError:
        node = self.graph.nodes[i]
        large = [k for k in passed if self.graph.nodes[k].refreshable and self.scale[k] <= 0]
        if large:
            k = max(large, key=lambda k: self.graph.nodes[k].bound)
            culprit, most = self.graph.nodes[k], self.params.reach * MAX_DIVISOR
            return PlanError(
                f"{culprit.name}: magnitude {culprit.bound:g} is beyond what a bootstrap of {self.params.name} takes "
                f"(reach {self.params.reach:g}, or {most:g} with a division before it), so {node.name} {what} "
                f"with no refresh, {self.levels} available; scale the value down by {culprit.bound / most:.3g} in the "
                "weights before it, or choose parameters with a wider reach"
            )
        hints = []
        more = self._enough(i)
        if more is not None:
            hints.append(f"parameters with {more} usable levels")
        if self.rules.spare_last and any(n.last for n in self.graph.nodes[: i + 1]):
            hints.append("letting the last result of a solver be refreshed")
        hints.append("a cut inside the operation")
        return PlanError(
            f"{node.name}: {what} between two refreshes, but a bootstrap of {self.params.name} leaves {self.levels}; "
            f"what would help: {', or '.join(hints)}"
        )

    def _enough(self, i: int) -> int | None:
        """The fewest usable levels with which node i could be made, all else equal."""
        nodes, fixed_limit = self.graph.nodes, self.levels
        for levels in range(self.levels + 1, self.levels + 65):
            gain = levels - fixed_limit
            top: list[int] = []
            for k in range(i + 1):
                node = nodes[k]
                if node.fixed is not None:
                    made = node.fixed + (gain if node.fixed == fixed_limit else 0)
                else:
                    made = min(top[u] - c for u, c in self.reads(k))
                if made < 0:
                    break
                top.append(max([made, *(o.after + gain for o in self.options[k] if o.start <= made)]))
            else:
                need = self.graph.required.get(i, 0)
                if top[i] >= (need + gain if need == fixed_limit else need):
                    return levels
        return None


def _scale(node: Node, params: Params, rules: Rules) -> float:
    """Factor applied before a refresh: below one if the value is too large, above if too small, 0 if out of reach.

    A small one is multiplied by the least power of two that keeps the bits asked for, or else as many as can be kept.
    """
    if node.bound > params.reach:
        divisor = math.ceil(node.bound / params.reach)
        return 1.0 / divisor if divisor <= MAX_DIVISOR else 0.0
    if rules.precision is None or not 0 < node.least <= node.bound:
        return 1.0
    largest = min(math.floor(params.reach / node.bound), MAX_DIVISOR)
    factors = [2.0**k for k in range(largest.bit_length())]
    return max(factors, key=lambda k: (min(rules.precision or 0.0, kept_bits(node, params, k, rules.noise)), -k))


def kept_bits(node: Node, params: Params, scale: float = 1.0, noise: Callable[[float], float] | None = None) -> float:
    """Bits that a refresh of a value times ``scale`` keeps of the least size that noise on it counts beside.

    ``noise`` gives its standard deviation for a bound; without it the parameters do: the native engine brings what is
    above one to one and back, OpenFHE every value; FIDESlib takes all within its reach as they are.
    """
    bound, size = node.bound * scale, node.least * scale
    unit = {"native": max(bound, 1.0), "openfhe": bound}.get(params.engine, 1.0)
    error = params.noise * unit if noise is None else noise(bound)
    return math.log2(size / error) if size and error else math.inf


Choice = tuple[int, ...]
"""What follows a value: () nothing, (-1, k) its own refresh by option k, (u,) a bootstrap shared with older value u."""


def settle(model: Model, choices: Mapping[int, Choice], algorithm: str) -> Placement:
    """The cheapest levels for a set of bootstraps, and what everything then costs; refuses a set that is not enough.

    A bootstrap nobody needs, because its value's readers ask for no more than it has, is left out.
    """
    nodes, graph = model.graph.nodes, model.graph
    need = [graph.required.get(i, 0) for i in range(len(nodes))]
    before = [0] * len(nodes)
    refreshes: list[Refresh] = []
    work = 0.0
    for v in range(len(nodes) - 1, -1, -1):
        node, choice = nodes[v], choices.get(v, ())
        level = need[v]
        if len(choice) == 2:
            option = model.options[v][choice[1]]
            if level > option.start:
                if level > option.after:
                    raise _short(node, level, option.after)
                level = option.start
                refreshes.append(
                    Refresh(
                        at=v,
                        values=(v,),
                        period=node.period,
                        bootstraps=option.bootstraps,
                        seconds=option.seconds,
                        toll=option.toll,
                        scales=(model.scale[v],),
                        after=(option.after,),
                        folded=option.paired,
                    )
                )
        elif len(choice) == 1:
            u = choice[0]
            if need[u] > model.start[u] or level > model.start[v]:
                for w, asked in ((u, need[u]), (v, level)):
                    if asked > model.pair_after(w):
                        raise _short(nodes[w], asked, model.pair_after(w))
                need[u], level = model.start[u], model.start[v]
                refreshes.append(
                    Refresh(
                        at=v,
                        values=(u, v),
                        period=max(nodes[u].period, node.period),
                        bootstraps=1,
                        seconds=model.pair_seconds(u, v),
                        toll=model.toll[u] + model.toll[v],
                        scales=(model.scale[u], model.scale[v]),
                        after=(model.pair_after(u), model.pair_after(v)),
                    )
                )
        if level > model.bottom[v]:
            raise _short(node, level, model.bottom[v])
        before[v] = level if node.fixed is None else node.fixed
        work += model.work[v][level]
        for u, c in model.reads(v):
            need[u] = max(need[u], level + c)
    refreshes.reverse()
    return Placement(
        algorithm=algorithm,
        params=model.params.name,
        cost=model.cost.name,
        before=tuple(before),
        refreshes=tuple(refreshes),
        work_seconds=work,
    )


def _short(node: Node, asked: int, have: int) -> PlanError:
    return PlanError(f"{node.name}: its readers need level {asked}, the chosen bootstraps leave {have}")
