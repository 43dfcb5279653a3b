# SPDX-License-Identifier: Apache-2.0
"""The simplest placement: walk forward and refresh an operand when it is too low, as late as possible.

It is the baseline of the field, and bad on solvers: it refreshes what runs out first, however wide, and it is not even
monotone in the number of levels.
"""

from __future__ import annotations

from heatfhe.ckks import Params
from heatfhe.errors import PlanError
from heatfhe.planning.cost import CostTable
from heatfhe.planning.graph import Graph
from heatfhe.planning.placement.model import Choice, Model, Rules, settle
from heatfhe.planning.placement.result import Placement


def greedy(graph: Graph, params: Params, cost: CostTable, rules: Rules | None = None) -> Placement:
    """Refresh as late as possible; with pairing, an equally low live value goes along for free."""
    rules = rules or Rules()
    model = Model(graph, params, cost, rules)
    return settle(model, greedy_choices(model), "greedy" if rules.pairing else "greedy, unpaired")


def greedy_choices(model: Model) -> dict[int, Choice]:
    """The refreshes of the greedy walk, each by the node that makes the later of its values.

    The walk lifts values only when they are needed; ``settle`` then moves every refresh to where its value is made,
    which serves all readers and costs no more. An operand that must not be refreshed sends the walk back to the nearest
    value above it that may, which is then lifted where it is made.
    """
    walk = _Walk(model)
    while True:
        while walk.here < len(model.graph.nodes):
            walk.advance()
        low = [v for v, floor in model.graph.required.items() if walk.now[v] < floor]
        if not low:
            return walk.choices()
        walk.finish(low[0], model.graph.required[low[0]])


class _Walk:
    """The state of one greedy walk: the level each value was made at, and has now."""

    def __init__(self, model: Model) -> None:
        self.model, self.here = model, 0
        self.made: list[int] = []
        self.now: list[int] = []
        self.forced: dict[int, int] = {}  # value -> option, refreshed where it is made
        self.late: dict[int, tuple[int, Choice]] = {}  # value -> when it was lifted, and how
        self.last_read = [max(users, default=-1) for users in model.graph.users()]

    def advance(self) -> None:
        """Run the next node, or lift what it lacks."""
        model, v = self.model, self.here
        node = model.graph.nodes[v]
        short = [(self.now[u] - c, u) for u, c in model.reads(v) if self.now[u] < c]
        if short:
            self.lift(min(short)[1], v)
            return
        level = node.fixed if node.fixed is not None else min(self.now[u] - c for u, c in model.reads(v))
        self.made.append(level)
        self.now.append(model.options[v][self.forced[v]].after if v in self.forced else level)
        self.here += 1

    def finish(self, v: int, floor: int) -> None:
        """Give an output the level it must end with."""
        if v in self.late or v in self.forced or not self.best(v, floor):
            self.force(v, floor)
        else:
            self.lift(v, self.here)

    def best(self, u: int, above: int) -> list[tuple[int, int]]:
        """Options that bring value u to this level or more, the highest first."""
        options = self.model.options[u]
        return sorted(
            ((-o.after, k) for k, o in enumerate(options) if o.start <= self.made[u] and o.after >= above),
        )

    def lift(self, u: int, v: int) -> None:
        """Refresh value u just before node v, with a partner if one is as low."""
        if u in self.late or u in self.forced or not self.best(u, self.now[u] + 1):
            self.force(u, 1)
            return
        partner = self.partner(u, v)
        if partner is not None:
            for a, b in ((u, partner), (partner, u)):
                self.late[a] = (v, (b,))
                self.now[a] = self.model.pair_after(a)
            return
        after, k = self.best(u, self.now[u] + 1)[0]
        self.late[u] = (v, (-1, k))
        self.now[u] = -after

    def partner(self, u: int, v: int) -> int | None:
        """A live value no higher than u that can share its bootstrap; the latest of the lowest."""
        model = self.model
        if not model.pairable[u] or model.pair_after(u) <= self.now[u]:
            return None
        found = [
            (self.now[w], -w)
            for w in range(len(self.made))
            if w != u
            and self.last_read[w] >= v
            and self.last_read[min(u, w)] > max(u, w)
            and w not in self.late
            and w not in self.forced
            and model.pairable[w]
            and model.start[w] <= self.now[w] <= self.now[u]
        ]
        return -min(found)[1] if found else None

    def force(self, u: int, floor: int) -> None:
        """Go back to the nearest value above u whose refresh would help, and refresh it where it is made."""
        seen = u
        while u in self.forced or not self.best(u, self.made[u] + 1):
            reads = self.model.reads(u)
            if not reads:
                name = self.model.graph.nodes[seen].name
                raise PlanError(f"{name}: greedy finds nothing to refresh that would give it {floor} levels")
            u = min(reads, key=lambda read: self.made[read[0]] - read[1] - (99 if read[0] not in self.forced else 0))[0]
        self.forced[u] = self.best(u, self.made[u] + 1)[0][1]
        self.late = {a: (v, how) for a, (v, how) in self.late.items() if v < u and a != u and u not in how[:1]}
        del self.made[u:]
        self.now = [*self.made]
        for a, (_, how) in self.late.items():
            self.now[a] = self.model.pair_after(a) if len(how) == 1 else self.model.options[a][how[1]].after
        for a, k in self.forced.items():
            if a < u:
                self.now[a] = self.model.options[a][k].after
        self.here = u

    def choices(self) -> dict[int, Choice]:
        """What to refresh, by the node after which it happens."""
        out: dict[int, Choice] = {v: (-1, k) for v, k in self.forced.items()}
        for a, (_, how) in self.late.items():
            if len(how) == 2 or a > how[0]:
                out[a] = how
        return out
