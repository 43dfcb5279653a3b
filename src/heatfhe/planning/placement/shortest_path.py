# SPDX-License-Identifier: Apache-2.0
"""Placement as a shortest path over levels, residual branches contracted to matrices.

A part of the graph with one entry and one exit is a matrix: the least price for each pair (level of the entry, level of
the exit). Parts in a row multiply in the (min, +) sense; branches between one fork and one join add. That is the level
digraph of Orion (Ebel, Garimella, Reagen, ASPLOS 2025, section 5.2). Solver loops are no such branches (N and D of a
Goldschmidt iteration cross), so what cannot be split further is placed greedily for each pair of levels. No pairing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks import Params
from heatfhe.errors import PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph, Node
from heatfhe.planning.placement.greedy import greedy_choices
from heatfhe.planning.placement.model import Choice, Model, Rules, settle
from heatfhe.planning.placement.result import Placement

Matrix = NDArray[np.float64]  # [level of the entry, level of the exit]


def shortest_path(graph: Graph, params: Params, cost: CostTable, rules: Rules | None = None) -> Placement:
    """The cheapest placement that refreshes whole forks alike, inside solvers as greedy would."""
    whole = Model(graph, params, cost, replace(rules or Rules(), pairing=False))
    graph, kept = _without_passages(whole)
    model = Model(graph, params, cost, whole.rules)
    build = _Builder(model)
    nodes = [
        v for v, node in enumerate(graph.nodes) if node.inputs or (model.options[v] and node.fixed != model.levels)
    ]
    choices: dict[int, Choice] = {}
    if nodes:
        part = build.part(nodes, None)
        row = part.matrix[model.levels]
        level = int(np.argmin(row))
        if np.isinf(row[level]):
            raise PlanError(f"{graph.nodes[nodes[-1]].name}: no path over levels reaches it; use the exact placement")
        choices = part.choices(model.levels, level)
    return settle(whole, {kept[v]: choice for v, choice in choices.items()}, "shortest path")


def _without_passages(model: Model) -> tuple[Graph, list[int]]:
    """The graph without values that have one input and may not be refreshed, and the old number of every node.

    Such a value only passes levels on: its readers may as well read its input, at its cost more. Without it a fork
    behind it is a fork at its input, which has a matrix.
    """
    nodes, required = model.graph.nodes, model.graph.required
    users = model.graph.users()
    through: dict[int, tuple[int, int]] = {}
    number: dict[int, int] = {}
    kept: list[int] = []
    out: list[Node] = []
    for v, node in enumerate(nodes):
        reads: dict[int, int] = {}
        for u, c in model.reads(v):
            source, more = through.get(u, (u, 0))
            reads[source] = max(reads.get(source, 0), c + more)
        if len(reads) == 1 and not model.options[v] and v not in required and users[v]:
            through[v] = next(iter(reads.items()))
            continue
        number[v] = len(out)
        kept.append(v)
        inputs = tuple(number[u] for u in reads)
        out.append(replace(node, inputs=inputs, costs=tuple(reads.values())))
    return Graph(nodes=tuple(out), required={number[v]: level for v, level in required.items()}), kept


class _Part(Protocol):
    """A part with one entry and one exit."""

    matrix: Matrix

    def choices(self, a: int, b: int) -> dict[int, Choice]:
        """The refreshes that cost matrix[a, b]."""
        ...


@dataclass(slots=True)
class _Row:
    """Parts one after the other."""

    first: _Part
    second: _Part
    matrix: Matrix

    def choices(self, a: int, b: int) -> dict[int, Choice]:
        middle = int(np.argmin(self.first.matrix[a] + self.second.matrix[:, b]))
        return {**self.first.choices(a, middle), **self.second.choices(middle, b)}


@dataclass(slots=True)
class _Join:
    """Branches from one entry into one node, which may then be refreshed."""

    model: Model
    node: int
    branches: list[tuple[_Part, int]]
    plain: Matrix
    matrix: Matrix

    def choices(self, a: int, b: int) -> dict[int, Choice]:
        out: dict[int, Choice] = {}
        made = max(b, self.model.graph.required.get(self.node, 0))
        if self.matrix[a, b] < self.plain[a, made]:
            best = min(
                (self._refreshed(a, k), k) for k, o in enumerate(self.model.options[self.node]) if o.after >= made
            )
            out[self.node] = (-1, best[1])
            made = self.model.options[self.node][best[1]].start
        for part, c in self.branches:
            out.update(part.choices(a, made + c))
        return out

    def _refreshed(self, a: int, k: int) -> float:
        option = self.model.options[self.node][k]
        return float(self.plain[a, option.start]) + option.price


@dataclass(slots=True)
class _Tangle:
    """What has no simpler form: greedy answers for every pair of levels, numbered from zero inside."""

    nodes: list[int]
    matrix: Matrix
    found: dict[tuple[int, int], dict[int, Choice]]

    def choices(self, a: int, b: int) -> dict[int, Choice]:
        inside = self.found[(a, b)]
        return {self.nodes[v]: choice for v, choice in inside.items()}


class _Builder:
    """Splits a graph into parts."""

    def __init__(self, model: Model) -> None:
        self.model, self.levels = model, model.levels
        self.known: dict[object, tuple[Matrix, dict[tuple[int, int], dict[int, Choice]]]] = {}

    def part(self, nodes: list[int], entry: int | None) -> _Part:
        """The part that makes these nodes, in order, from the entry; the last one is its exit."""
        cuts = self._cuts(nodes, entry)
        if cuts:
            pieces, start, previous = [], 0, entry
            for cut in [*cuts, len(nodes) - 1]:
                pieces.append(self.part(nodes[start : cut + 1], previous))
                start, previous = cut + 1, nodes[cut]
            row: _Part = pieces[0]
            for piece in pieces[1:]:
                row = _Row(row, piece, _min_plus(row.matrix, piece.matrix))
            return row
        branches = self._branches(nodes)
        return self._join(nodes[-1], entry, branches) if branches is not None else self._tangle(nodes, entry)

    def _cuts(self, nodes: list[int], entry: int | None) -> list[int]:
        """Positions after which nothing but the value just made is read."""
        last: dict[int, int] = {}
        for i, v in enumerate(nodes):
            for u, _ in self.model.reads(v):
                last[u] = i
        out, furthest = [], -1 if entry is None else last.get(entry, -1)
        for i, v in enumerate(nodes[:-1]):
            if furthest <= i < last.get(v, i):
                out.append(i)
            furthest = max(furthest, last.get(v, i))
        return out

    def _branches(self, nodes: list[int]) -> list[list[int]] | None:
        """Disjoint branches that each end in one value the exit reads; None if there are none such."""
        inner, exit_ = nodes[:-1], nodes[-1]
        root = {v: v for v in inner}

        def find(v: int) -> int:
            while root[v] != v:
                v = root[v]
            return v

        read: set[int] = set()
        for v in inner:
            for u, _ in self.model.reads(v):
                if u in root:
                    read.add(u)
                    root[find(u)] = find(v)
        groups: dict[int, list[int]] = {}
        for v in inner:
            groups.setdefault(find(v), []).append(v)
        ends = {u for u, _ in self.model.reads(exit_)}
        for group in groups.values():
            exits = [v for v in group if v in ends]
            loose = [v for v in group if v not in ends and v not in read]
            if exits != group[-1:] or loose:
                return None
        return list(groups.values())

    def _join(self, v: int, entry: int | None, branches: list[list[int]]) -> _Join:
        size = self.levels + 1
        cost = dict(self.model.reads(v))
        parts: list[tuple[_Part, int]] = [(self.part(branch, entry), cost[branch[-1]]) for branch in branches]
        inside = {branch[-1] for branch in branches}
        plain = np.full((size, size), np.inf)
        for b in range(min(self.model.bottom[v], self.levels) + 1):
            column = np.full(size, self.model.work[v][b])
            for part, c in parts:
                column = column + (part.matrix[:, b + c] if b + c < size else np.inf)
            for u, c in cost.items():
                if u == entry:
                    column[: min(b + c, size)] = np.inf
                elif u not in inside and b + c > (self.model.graph.nodes[u].fixed or 0):
                    column[:] = np.inf
            plain[:, b] = column
        matrix = plain.copy()
        for option in self.model.options[v]:
            fresh = plain[:, option.start] + option.price
            matrix[:, : option.after + 1] = np.minimum(matrix[:, : option.after + 1], fresh[:, None])
        floor = self.model.graph.required.get(v, 0)
        matrix[:, :floor] = matrix[:, floor : floor + 1]
        return _Join(self.model, v, parts, plain, matrix)

    def _tangle(self, nodes: list[int], entry: int | None) -> _Tangle:
        key = self._key(nodes, entry)
        if key not in self.known:
            self.known[key] = self._greedy(nodes, entry)
        matrix, found = self.known[key]
        return _Tangle(nodes, matrix, found)

    def _key(self, nodes: list[int], entry: int | None) -> object:
        place = {v: i for i, v in enumerate(nodes)}

        def local(u: int) -> tuple[str, int]:
            if u in place:
                return ("in", place[u])
            return ("entry", 0) if u == entry else ("fixed", self.model.graph.nodes[u].fixed or 0)

        def facts(node: Node) -> object:
            flags = (node.period, node.bound, node.parts, node.last, node.complex, node.refreshable, node.fixed)
            return (*flags, node.costs, tuple(sorted(node.work.items())))

        graph = self.model.graph
        return tuple(
            (facts(graph.nodes[v]), tuple(local(u) for u in graph.nodes[v].inputs), graph.required.get(v))
            for v in nodes
        )

    def _greedy(self, nodes: list[int], entry: int | None) -> tuple[Matrix, dict[tuple[int, int], dict[int, Choice]]]:
        size = self.levels + 1
        matrix = np.full((size, size), np.inf)
        found: dict[tuple[int, int], dict[int, Choice]] = {}
        starts = range(size) if entry is not None else (self.levels,)
        for a in starts:
            for b in range(size):
                try:
                    price, choices = self._greedy_pair(nodes, entry, a, b)
                except PlanError:
                    break
                matrix[a, b], found[(a, b)] = price, choices
        for a in range(size):  # an entry may be dropped, an exit too
            for b in range(size - 1, -1, -1):
                for x, y in ((a - 1, b), (a, b + 1)):
                    if x >= 0 and y < size and matrix[x, y] < matrix[a, b]:
                        matrix[a, b], found[(a, b)] = matrix[x, y], found[(x, y)]
        return matrix, found

    def _greedy_pair(self, nodes: list[int], entry: int | None, a: int, b: int) -> tuple[float, dict[int, Choice]]:
        graph = self.model.graph
        outside = sorted({u for v in nodes for u, _ in self.model.reads(v)} - set(nodes))
        number = {u: i for i, u in enumerate([*outside, *nodes])}
        small = []
        for u in outside:
            level = a if u == entry else graph.nodes[u].fixed
            small.append(replace(graph.nodes[u], inputs=(), costs=(), work={}, fixed=level, refreshable=False))
        for v in nodes:
            small.append(replace(graph.nodes[v], inputs=tuple(number[u] for u in graph.nodes[v].inputs)))
        asked = {number[v]: graph.required[v] for v in nodes if v in graph.required}
        asked[number[nodes[-1]]] = max(b, asked.get(number[nodes[-1]], 0))
        model = Model(Graph(nodes=tuple(small), required=asked), self.model.params, self.model.cost, self.model.rules)
        choices = greedy_choices(model)
        price = settle(model, choices, "greedy").price
        return price, {v - len(outside): choice for v, choice in choices.items()}


def _min_plus(a: Matrix, b: Matrix) -> Matrix:
    """The (min, +) product."""
    out: Matrix = (a[:, :, None] + b[None, :, :]).min(axis=1)
    return out
