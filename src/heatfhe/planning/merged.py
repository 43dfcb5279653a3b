# SPDX-License-Identifier: Apache-2.0
"""Steps that cost less together, once levels and bootstraps are settled: sums over rotations, and drops made twice.

A sum over 2^n slots is written as n doublings, v + rotate(v, k). An engine that adds several rotations of one value
decomposes it once and divides once, and each rotation costs it a product with a key. So two doublings, by j and k,
become the sum of the value and its rotations by j, k and j + k; three become eight terms, where a plan has the keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from heatfhe.planning.cost import CostTable
from heatfhe.planning.pack import LinearMap
from heatfhe.planning.program import Program, Step

TOGETHER = 3  # doublings that may become one step: four would be dearer than two twos


def merged(program: Program, table: CostTable, slots: int, maps: Iterable[LinearMap] = ()) -> Program:
    """The program with drops shared and doublings summed where a table says that it pays, under the program's own keys.

    Those are its rotations and those of its linear ``maps``: what other programs of a plan need changes nothing here.
    The predicted seconds follow. A table that knows no price of a sum of rotations, as none of version 1 does, leaves a
    program as it is.
    """
    if not table.sums_rotations:
        return program
    shared = _share_drops(program)
    own = {k for s in program.steps for k in s.by} | {k for m in maps for k in m.rotations}
    out = _sum_rotations(shared, table, _Keys(slots, frozenset(k % slots for k in own)))
    saved = _turning(shared, table) - _turning(out, table)
    return replace(out, predicted_seconds=max(0.0, program.predicted_seconds - saved))


def _share_drops(program: Program) -> Program:
    """One drop of a value to a level, however many operations ask for it."""
    first: dict[tuple[int, int], int] = {}
    same: dict[int, int] = {}
    steps = []
    for step in program.steps:
        step = replace(step, args=tuple(same.get(a, a) for a in step.args)) if same.keys() & set(step.args) else step
        if step.kind == "drop":
            place = (step.args[0], step.level)
            if place in first:
                same[step.results[0]] = first[place]
                continue
            first[place] = step.results[0]
        steps.append(step)
    outputs = {
        name: replace(port, values=tuple(same.get(v, v) for v in port.values)) for name, port in program.outputs.items()
    }
    return replace(program, steps=tuple(steps), outputs=outputs)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Rotations that have keys."""

    slots: int
    have: frozenset[int]

    def rotations(self, by: Sequence[int]) -> tuple[int, ...]:
        """What a value is rotated by, over all choices of doublings but none; nothing if that cannot be one step."""
        sums = {0}
        for k in by:
            sums |= {(s + k) % self.slots for s in sums}
        once = len(sums) == 2 ** len(by)  # no rotation is met twice
        return tuple(sorted(sums - {0})) if once and sums - {0} <= self.have else ()


def _sum_rotations(program: Program, table: CostTable, keys: _Keys) -> Program:
    """Chains of doublings as sums of rotations, in groups that cost least together."""
    made = {v: i for i, step in enumerate(program.steps) for v in step.results}
    uses = Counter(a for step in program.steps for a in step.args)
    uses.update(v for port in program.outputs.values() for v in port.values)
    turns = _doublings(program.steps, made, uses, keys.slots)
    out: dict[int, Step] = {}
    gone: set[int] = set()
    for chain in _chains(program.steps, turns, uses):
        at = 0
        by = [program.steps[turns[i]].by[0] for i in chain]
        for size in _sizes(by, program.steps[chain[0]].level, table, keys):
            group = chain[at : at + size]
            rotations = keys.rotations(by[at : at + size])
            last = program.steps[group[-1]]
            start = program.steps[turns[group[0]]].args
            out[group[-1]] = replace(last, kind="add_rotations", args=start, by=rotations)
            gone.update(i for add in group for i in (turns[add], add) if i != group[-1])
            at += size
    steps = tuple(out.get(i, step) for i, step in enumerate(program.steps) if i not in gone)
    return replace(program, steps=steps)


def _doublings(steps: Sequence[Step], made: Mapping[int, int], uses: Mapping[int, int], slots: int) -> dict[int, int]:
    """Sums of a value and its own rotation that nobody else reads: the step that adds, and the one that rotates."""
    out = {}
    for i, step in enumerate(steps):
        if step.kind != "add":
            continue
        for value, turned in (step.args, step.args[::-1]):
            turn = steps[made[turned]] if turned in made else step
            plain = turn.kind == "rotate" and not turn.modulus and turn.by[0] % slots
            if plain and turn.args == (value,) and uses[turned] == 1:
                out[i] = made[turned]
                break
    return out


def _chains(steps: Sequence[Step], turns: Mapping[int, int], uses: Mapping[int, int]) -> Iterator[list[int]]:
    """Doublings of doublings, from the first to the last; what lies between is read by the next alone."""
    follows = {steps[at].args[0]: add for add, at in turns.items()}
    made = {steps[add].results[0] for add in turns}
    for add, at in turns.items():
        if steps[at].args[0] in made and uses[steps[at].args[0]] == 2:
            continue  # inside another's chain
        chain = [add]
        while (value := steps[chain[-1]].results[0]) in follows and uses[value] == 2:
            chain.append(follows[value])
        yield chain


def _sizes(by: Sequence[int], level: int, table: CostTable, keys: _Keys) -> list[int]:
    """How many doublings of a chain are summed at a time, so that all of them cost least."""
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for end in range(1, len(by) + 1):
        options = []
        for size in range(1, min(TOGETHER, end) + 1):
            if rotations := keys.rotations(by[end - size : end]):
                seconds, sizes = best[end - size]
                work = {"rotate": 1, "rotate_summed": len(rotations) - 1}
                options.append((seconds + table.price(work, level), [*sizes, size]))
        best.append(min(options))
    return best[-1][1]


def _turning(program: Program, table: CostTable) -> float:
    """Seconds of what this module may rewrite, drops apart: sums and rotations."""
    levels = program.levels()
    return sum(
        table.price(s.row.counted(len(s.args), len(s.by), None), levels[s.args[0]])
        for s in program.steps
        if s.kind in ("add", "rotate", "add_rotations") and not s.moves
    )
