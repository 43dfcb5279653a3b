# SPDX-License-Identifier: Apache-2.0
"""From recorded operations to the Graph a placement works on: which operations form one node, and which are views.

Three rules. A group is one node. A free operation on a value nobody else reads joins that value's node; on a value with
other readers it is a *view*, computed again from whatever level the value has when the view is read. A sum joins the
nodes of those operands that nobody else reads: refreshing the sum is never worse than refreshing them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from heatfhe.errors import ConfigError
from heatfhe.planning.graph import Graph, Node
from heatfhe.planning.pack import LinearMap
from heatfhe.planning.recorder import Facts, Op, Recorder
from heatfhe.planning.weights import Weight

MARGIN = 1.02  # over sampled domains: the samples may miss the very top


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One node's operations in order, the value it makes, and the levels from each value it touches to that value."""

    ops: tuple[int, ...]
    root: int
    spent: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A program as recorded: operations, what is known of each value, and their partition into nodes and views.

    ``home[v]`` is the node a value belongs to: its own, or the one it is a view of. ``packed`` says that every value
    holds rows of all lengths at once, so that no magnitude follows the position.
    """

    ops: tuple[Op, ...]
    facts: tuple[Facts, ...]
    products: Mapping[Weight, LinearMap]
    outputs: Mapping[str, int]
    groups: tuple[Group, ...]
    home: Mapping[int, int]
    made_by: Mapping[int, int]
    rows: int
    packed: bool = False

    def bound(self, value: int) -> tuple[float, float]:
        """Largest magnitude at the last position of the context, and the power of the row length it follows."""
        first, last = (float(b) * MARGIN for b in self.facts[value].bounds()[:, 0])
        if self.packed or first == last or self.rows == 1 or first <= 0 or last <= 0:
            return max(first, last), 0.0
        return last, round(math.log(last / first) / math.log(self.rows), 6)

    def graph(self, *, levels: int, fixed: Mapping[str, int], required: Mapping[str, int]) -> Graph:
        """What a placement sees. ``fixed`` are levels of inputs (``levels`` if not given), ``required`` of outputs."""
        nodes = []
        for group in self.groups:
            facts = self.facts[group.root]
            first = self.ops[group.ops[-1]]
            costs = {} if facts.input else self._costs(group)
            bound, power = self.bound(group.root)
            nodes.append(
                Node(
                    name=self.name(group),
                    operator=first.operator,
                    inputs=tuple(costs),
                    costs=tuple(costs.values()),
                    period=facts.period,
                    bound=max(bound, bound * self.rows**-power),
                    least=facts.least,
                    parts=facts.parts,
                    last=facts.last,
                    complex=facts.complex,
                    refreshable=facts.refreshable and not facts.complex,  # a bootstrap keeps the real part alone
                    fixed=fixed.get(facts.input, levels) if facts.input else None,
                    work=self._work(group),
                )
            )
        asked: dict[int, int] = {}
        for name, value in self.outputs.items():
            node = self.home[value]
            asked[node] = max(asked.get(node, 0), required.get(name, 0))
        return Graph(nodes=tuple(nodes), required=asked)

    def name(self, group: Group) -> str:
        """The place and number of a node."""
        op = self.ops[group.ops[-1]]
        return op.name if self.facts[group.root].input else f"{op.name}:{op.kind}{group.root}"

    def _costs(self, group: Group) -> dict[int, int]:
        costs: dict[int, int] = {}
        inside = set(group.ops)
        for k in group.ops:
            op = self.ops[k]
            for a in op.args:
                if self.made_by[a] not in inside:
                    home = self.home[a]
                    costs[home] = max(costs.get(home, 0), group.spent[op.results[0]] + op.row.levels)
        return costs

    def _work(self, group: Group) -> dict[str, int]:
        total: Counter[str] = Counter()
        inside = set(group.ops)
        views: set[int] = set()  # charged to their readers, each once
        waiting = [a for k in group.ops for a in self.ops[k].args]
        while waiting:
            a = waiting.pop()
            k = self.made_by[a]
            if k not in inside and k not in views and self._is_view(a):
                views.add(k)
                waiting += self.ops[k].args
        for k in (*group.ops, *views):
            total.update(work(self.ops[k], self.facts))
        return dict(total)

    def _is_view(self, value: int) -> bool:
        return self.made_by[value] not in self.groups[self.home[value]].ops


def work(op: Op, facts: Sequence[Facts]) -> dict[str, int]:
    """Engine instructions of one operation, in the words of cost tables."""
    parts = max(facts[r].parts for r in op.results)
    one = op.row.counted(len(op.args), len(op.by), op.maps[0] if op.maps else None)
    return {word: count * parts for word, count in one.items()}


def finish(recorder: Recorder) -> Recording:
    """Drop what no output needs, gather sums of products, and partition the rest into nodes."""
    ops = _fused(_alive(recorder))
    made_by = {r: k for k, op in enumerate(ops) for r in op.results}
    readers = Counter(a for op in ops for a in set(op.args))
    readers.update(set(recorder.outputs.values()))
    node_of: list[int] = []  # op -> node, -1 for a view
    members: list[list[int]] = []
    roots: list[int] = []
    home: dict[int, int] = {}
    grouped: dict[int, int] = {}
    merged: dict[int, int] = {}

    def settled(node: int) -> int:
        while node in merged:
            node = merged[node]
        return node

    def new(k: int) -> int:
        members.append([k])
        roots.append(ops[k].results[0])
        return len(members) - 1

    def mine(value: int) -> bool:
        """Whether a value is the root of a node and has this one reader, so that the reader may join the node."""
        k = made_by[value]
        node = node_of[k]
        return node >= 0 and ops[k].kind != "input" and roots[settled(node)] == value and readers[value] == 1

    for k, op in enumerate(ops):
        free = op.row.linear and op.row.args == 1
        if op.group >= 0 and op.kind != "input":
            node = grouped.setdefault(op.group, len(members))
            if node == len(members):
                members.append([])
                roots.append(-1)
            members[node].append(k)
            roots[node] = op.results[-1]
        elif free and len(op.results) == 1 and mine(op.args[0]) and not recorder.facts[op.args[0]].last:
            node = settled(node_of[made_by[op.args[0]]])
            members[node].append(k)
            roots[node] = op.results[0]
        elif free or (op.row.linear and len({home[a] for a in op.args}) == 1):
            node_of.append(-1)
            for r in op.results:
                home[r] = home[op.args[0]]
            continue
        else:
            node = new(k)
            if op.row.linear:  # a sum or difference
                for a in op.args:
                    same = recorder.facts[a].period == recorder.facts[op.results[0]].period
                    whole = recorder.facts[a].parts == recorder.facts[op.results[0]].parts
                    if mine(a) and same and whole and not recorder.facts[a].last:
                        other = settled(node_of[made_by[a]])
                        members[node] += members[other]
                        members[other] = []
                        merged[other] = node
        node_of.append(node)
        for r in op.results:
            home[r] = node
    order = sorted((n for n in range(len(members)) if members[n]), key=lambda n: made_by[roots[n]])
    number = {n: i for i, n in enumerate(order)}
    places = {v: number[settled(n)] for v, n in home.items()}
    groups = tuple(_group(ops, sorted(members[n]), roots[n]) for n in order)
    _check_single(ops, groups, recorder.outputs)
    return Recording(
        ops=tuple(ops), facts=tuple(recorder.facts), products=dict(recorder.products), outputs=dict(recorder.outputs),
        groups=groups, home=places, made_by=made_by, rows=recorder.rows,
    )  # fmt: skip


def _alive(recorder: Recorder) -> list[Op]:
    needed = set(recorder.outputs.values())
    out: list[Op] = []
    for op in reversed(recorder.ops):
        if any(r in needed for r in op.results):
            needed.update(op.args)
            out.append(op)
    return out[::-1]


def _fused(ops: list[Op]) -> list[Op]:
    """Sums of plaintext products, and of products, of one group become one instruction with one rescale."""
    readers = Counter(a for op in ops for a in op.args)
    at = {r: k for k, op in enumerate(ops) for r in op.results}
    out: list[Op | None] = list(ops)
    for k, op in enumerate(ops):
        if op.kind != "add" or op.group < 0:
            continue
        pieces = [p for a in op.args if (p := out[at[a]]) is not None and p.group == op.group and readers[a] == 1]
        summed = {p.row.summed for p in pieces}
        if len(pieces) == len(op.args) and len(summed) == 1 and (kind := summed.pop()):
            args, plains = (tuple(x for p in pieces for x in getattr(p, side)) for side in ("args", "plains"))
            out[k] = replace(op, kind=kind, args=args, plains=plains)
            for a in op.args:
                out[at[a]] = None
    return [op for op in out if op is not None]


def _group(ops: list[Op], members: list[int], root: int) -> Group:
    spent = {root: 0}
    inside = {r for k in members for r in ops[k].results}
    for k in reversed(members):
        op = ops[k]
        deepest = max(spent.get(r, -1) for r in op.results)
        if deepest < 0:
            raise ConfigError(f"{op.name}: {op.kind} is computed in a group and never used there")
        for r in op.results:
            spent[r] = deepest
        for a in op.args:
            if a in inside:
                spent[a] = max(spent.get(a, 0), deepest + op.row.levels)
    return Group(ops=tuple(members), root=root, spent=spent)


def _check_single(ops: list[Op], groups: tuple[Group, ...], outputs: Mapping[str, int]) -> None:
    """Every group hands one value on."""
    owner = {r: i for i, g in enumerate(groups) for k in g.ops for r in ops[k].results}
    reads = [(i, a) for i, g in enumerate(groups) for k in g.ops for a in ops[k].args]
    views = [(-1, a) for k, op in enumerate(ops) for a in op.args if not any(r in owner for r in op.results)]
    for i, a in [*reads, *views, *((-1, v) for v in outputs.values())]:
        if a in owner and owner[a] != i and groups[owner[a]].root != a:
            raise ConfigError(f"{ops[groups[owner[a]].ops[0]].name}: a group hands more than one value on")
