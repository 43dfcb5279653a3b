# SPDX-License-Identifier: Apache-2.0
"""From a recording and a placement to steps: levels settled, drops explicit, bootstraps in their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heatfhe.ckks import Params
from heatfhe.planning.placement.result import Placement, Refresh
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.program import Port, Program, Step
from heatfhe.planning.recorder import Op
from heatfhe.planning.recording import Recording

Held = tuple[tuple[int, ...], int]  # value numbers, one per ciphertext, and their level


class Assembler:
    """Walks the nodes in order and writes the steps of each at the levels its placement chose."""

    def __init__(self, recording: Recording, placement: Placement, params: Params, inputs: Mapping[str, int]) -> None:
        self.recording, self.placement, self.params = recording, placement, params
        self.levels_of_inputs = inputs
        self.steps: list[Step] = []
        self.inputs: dict[str, Port] = {}
        self.now: dict[int, Held] = {}  # node -> its value as it stands
        self.dropped: dict[tuple[int, int], tuple[int, ...]] = {}  # (node, level) -> the value at that level
        self.viewed: dict[tuple[int, int], tuple[int, ...]] = {}  # (view, level) -> the view at that level
        self.numbers = 0

    def program(self, name: str, outputs: Mapping[str, int]) -> Program:
        """The whole program; ``outputs`` gives the levels of outputs that must have a certain one."""
        events = self.placement.at()
        for node in range(len(self.recording.groups)):
            self._node(node)
            if node in events:
                self._refresh(events[node])
        given = {}
        for key, value in self.recording.outputs.items():
            level = outputs.get(key, self.now[self.recording.home[value]][1])
            given[key] = Port(values=self._at(value, level), level=level)
        return Program(
            name=name, steps=tuple(self.steps), inputs=self.inputs, outputs=given,
            predicted_seconds=self.placement.seconds,
        )  # fmt: skip

    def _new(self, count: int = 1) -> tuple[int, ...]:
        self.numbers += count
        return tuple(range(self.numbers - count, self.numbers))

    def _node(self, node: int) -> None:
        r = self.recording
        group = r.groups[node]
        facts = r.facts[group.root]
        level = self.placement.before[node]
        if facts.input:
            level = self.levels_of_inputs.get(facts.input, level)
            self.inputs[facts.input] = Port(values=self._new(facts.parts), level=level)
            self.now[node] = (self.inputs[facts.input].values, level)
            return
        held: dict[int, Held] = {}
        for k in group.ops:
            op = r.ops[k]
            after = level + group.spent[op.results[0]]
            args = [self._local(held, a, after + op.row.levels, op) for a in op.args]
            for value, numbers in zip(op.results, self._write(op, args, after)):
                held[value] = (numbers, after)
        self.now[node] = held[group.root]

    def _local(self, held: dict[int, Held], value: int, level: int, op: Op) -> tuple[int, ...]:
        if value not in held:
            return self._at(value, level)
        numbers, have = held[value]
        return numbers if have == level else self._drop(numbers, level, op)

    def _at(self, value: int, level: int) -> tuple[int, ...]:
        """A node's value, or a view of it, at a level it can be dropped to."""
        r = self.recording
        node = r.home[value]
        if r.groups[node].root == value:
            numbers, have = self.now[node]
            if have == level:
                return numbers
            if (node, level) not in self.dropped:
                op = r.ops[r.made_by[value]]
                self.dropped[node, level] = self._drop(numbers, level, op)
            return self.dropped[node, level]
        if (value, level) not in self.viewed:
            op = r.ops[r.made_by[value]]
            higher = [have for view, have in self.viewed if view == value and have > level]
            if higher and op.kind != "select":  # rotated already, for a reader at a higher level
                self.viewed[value, level] = self._drop(self.viewed[value, min(higher)], level, op)
                return self.viewed[value, level]
            made = self._write(op, [self._at(a, level) for a in op.args], level)
            for result, numbers in zip(op.results, made):
                self.viewed[result, level] = numbers
        return self.viewed[value, level]

    def _step(
        self, op: Op, kind: str, results: tuple[int, ...], args: tuple[int, ...], level: int, **more: Any
    ) -> None:
        """One step on behalf of an operation."""
        more |= {"operator": op.operator, "name": op.name}
        self.steps.append(Step(kind=kind, results=results, args=args, level=level, **more))

    def _each(self, op: Op, kind: str, numbers: tuple[int, ...], level: int, **more: Any) -> tuple[int, ...]:
        """The same step on every ciphertext of a value."""
        out = self._new(len(numbers))
        for a, b in zip(numbers, out):
            self._step(op, kind, (b,), (a,), level, **more)
        return out

    def _drop(self, numbers: tuple[int, ...], level: int, op: Op) -> tuple[int, ...]:
        return self._each(op, "drop", numbers, level)

    def _write(self, op: Op, args: list[tuple[int, ...]], level: int) -> list[tuple[int, ...]]:
        """One step per ciphertext of the result."""
        if op.kind == "join":
            return [tuple(numbers for held in args for numbers in held)]
        if op.kind == "select":
            return [(args[0][op.number],)]
        parts = max(self.recording.facts[v].parts for v in op.results)
        results = [self._new(parts) for _ in op.results]
        for part in range(parts):
            made = tuple(numbers[part] for numbers in results)
            read = tuple(a[part] if len(a) > 1 else a[0] for a in args)
            own: dict[str, Any] = {name: getattr(op, name) for name in ("plains", "by", "modulus", "number")}
            self._step(
                op, op.kind, made, read, level, part=part, product=op.maps[part].weight if op.maps else None, **own
            )
        return results

    # -- bootstraps -------------------------------------------------------------------------------------------------

    def _refresh(self, event: Refresh) -> None:
        values = [self.recording.groups[node].root for node in event.values]
        before = [self._scaled(node, scale) for node, scale in zip(event.values, event.scales)]
        bounds = [self._bound(value, scale) for value, scale in zip(values, event.scales)]
        op = self.recording.ops[self.recording.made_by[values[-1]]]
        fresh = self.params.levels
        if len(event.values) == 2:
            (a,), (b,) = before
            pair = self._bootstrap(op, (a, b), event.period, _joined(bounds, self.recording.rows))
            after: list[tuple[int, ...]] = [(pair[0],), (pair[1],)]
            fresh -= self.params.pair_levels
        elif event.folded:
            numbers: list[int] = []
            for k in range(0, len(before[0]), 2):
                numbers += self._bootstrap(op, before[0][k : k + 2], event.period, bounds[0])
            if self.params.pair_levels and len(before[0]) % 2:
                numbers[-1:] = self._drop((numbers[-1],), fresh - self.params.pair_levels, op)
            after = [tuple(numbers)]
            fresh -= self.params.pair_levels
        else:
            after = [tuple(self._bootstrap(op, (a,), event.period, bounds[0])[0] for a in before[0])]
        for node, numbers_, scale in zip(event.values, after, event.scales):
            self.now[node] = self._unscaled(numbers_, scale, fresh, op)
            self.dropped = {k: v for k, v in self.dropped.items() if k[0] != node}
            self.viewed = {k: v for k, v in self.viewed.items() if self.recording.home[k[0]] != node}

    def _bootstrap(self, op: Op, args: tuple[int, ...], period: int, bound: tuple[float, float]) -> tuple[int, ...]:
        out = self._new(len(args))
        pair = len(args) == 2
        kind, level = "bootstrap_pair" if pair else "bootstrap", self.params.levels - pair * self.params.pair_levels
        self._step(op, kind, out, args, level, period=period, bound=bound[0], rows=bound[1])
        return out

    def _bound(self, value: int, scale: float) -> tuple[float, float]:
        bound, rows = self.recording.bound(value)
        return bound * scale, rows

    def _scaled(self, node: int, scale: float) -> tuple[int, ...]:
        """The value times its scale, before a bootstrap: a product that costs a level, or an integer multiple."""
        numbers, level = self.now[node]
        if scale == 1.0:
            return numbers
        op = self.recording.ops[self.recording.made_by[self.recording.groups[node].root]]
        return self._times(numbers, scale, level - 1 if scale < 1 else level, op)

    def _unscaled(self, numbers: tuple[int, ...], scale: float, level: int, op: Op) -> Held:
        if scale == 1.0:
            return numbers, level
        after = level - 1 if scale > 1 else level
        return self._times(numbers, 1.0 / scale, after, op), after

    def _times(self, numbers: tuple[int, ...], factor: float, level: int, op: Op) -> tuple[int, ...]:
        if factor >= 1.0:
            return self._each(op, "times", numbers, level, number=round(factor))
        return self._each(op, "multiply_plain", numbers, level, plains=(Public(factor),))


def _joined(bounds: list[tuple[float, float]], rows: int) -> tuple[float, float]:
    """A bound that covers two values: the larger, following the row length only if both do alike."""
    (a, p), (b, q) = bounds
    if p == q:
        return max(a, b), p
    return max(x * max(1.0, rows**-k) for x, k in bounds), 0.0


def assemble(
    recording: Recording,
    placement: Placement,
    params: Params,
    *,
    name: str,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
) -> Program:
    """Write the program; ``inputs`` and ``outputs`` fix the levels of named values."""
    return Assembler(recording, placement, params, inputs).program(name, outputs)
