# SPDX-License-Identifier: Apache-2.0
"""What a program refreshes, value by value, in words: which stage it belongs to, and what it is there.

A program says which stage a step works for and nothing finer. Both softmaxes and norms add up a row once per solver,
by turns and sums, and do so nowhere else: what was made before the first such sum, between two, or after the last is
told apart by them, and a row from a number per row by its period.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.files import plain
from heatfhe.planning import Plan, Program, ProgramName, Step
from heatfhe.records import FAMILIES, Calibration

SOFTMAX, NORM, ATTENTION = "softmax", "layernorm", "attention"
OPERATORS = (NORM, "linear", "cache", ATTENTION, SOFTMAX, "gelu", "embedding", "argmax")  # of programs
WEIGHS = ("rotate_many", "multiply_sum", "multiply")  # the first use of a finished row


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """One value that a program refreshes: ``number`` in the order of refreshing, ``step`` of the program that does it.

    ``family`` is the solver among whose iterations it lies, empty outside of them.
    """

    number: int
    step: int
    stage: str
    operator: str
    part: str
    family: str
    period: int
    bound: float

    @property
    def name(self) -> str:
        """For people: ``h.3.attn, reciprocal of pass 1``."""
        return f"{self.stage}, {self.part}"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        return {"name": self.name, **plain(self)}


@dataclass(frozen=True, slots=True)
class _Sum:
    """One row added up: its steps, what went in and what came out."""

    first: int
    last: int
    given: int
    made: int


def refreshed_values(plan: Plan, calibration: Calibration, program: str = ProgramName.LOGITS) -> tuple[Refreshed, ...]:
    """Every value that a program refreshes, in order; a paired bootstrap refreshes two."""
    chosen = plan.program(program)
    makers = _makers(chosen)
    found: list[Refreshed] = []
    for at, step in enumerate(chosen.steps):
        if not step.row.refreshes:
            continue
        for value, after in zip(step.args, step.results):
            made = chosen.steps[makers[value]] if value in makers else step
            family, part = "", "output"
            if made.operator == SOFTMAX:
                family, part = _in_softmax(chosen, made, value, makers, wide=step.period > plan.packing.Hp)
            elif made.operator == NORM:
                count = calibration.norms[made.name].newton_count
                family, part = _in_norm(chosen, made, value, makers, wide=step.period > 1, newton_count=count)
            elif made.operator == ATTENTION:
                later = any(s.operator == SOFTMAX and s.name == made.name for s in chosen.steps[: makers[value]])
                part = "output" if later else "scores"
            if family and "sum" not in part:
                part += ", denominator" if _negated(chosen, after) else ", numerator"
            found.append(
                Refreshed(
                    number=len(found), step=at, stage=made.name, operator=made.operator, part=part, family=family,
                    period=step.period, bound=step.bound,
                )
            )  # fmt: skip
    return tuple(found)


def chosen_values(values: Sequence[Refreshed], only: str | None) -> frozenset[int]:
    """Numbers of the values in these families: of an operator (softmax, layernorm, …) or of a kind of solver, with
    commas; all where nothing is said."""
    if only is None:
        return frozenset(v.number for v in values)
    wanted = only.split(",")
    for word in wanted:
        if word not in OPERATORS and word not in FAMILIES:
            raise ConfigError(
                f"--only {word!r}: no such family; have the operators {', '.join(OPERATORS)}, and the solvers "
                f"{', '.join(FAMILIES)}"
            )
    return frozenset(v.number for v in values if v.operator in wanted or v.family in wanted)


def attention_rows(program: Program) -> dict[str, tuple[tuple[str, int], ...]]:
    """Of each attention, the row after every part of its softmax, as a name and the value number that is used next.

    ``exponential``, ``first division``, then ``pass 1``, …: a row before its division is what is added up, one before
    a pass is what is squared, and the last is what the values are weighed by.
    """
    makers, found = _makers(program), {}
    for stage in dict.fromkeys(s.name for s in program.steps if s.operator == SOFTMAX):
        sums = _sums(program, stage, SOFTMAX)
        rows = [("exponential", sums[0].given)]
        for number, later in enumerate(sums[1:]):
            square = program.steps[_through(program, makers, later.given, ("drop", "bootstrap", "bootstrap_pair"))]
            rows.append((_division(number), square.args[0]))
        own = (s for s in program.steps[sums[-1].last :] if s.name == stage and s.operator == ATTENTION)
        after = next(s for s in own if s.kind in WEIGHS)
        rows.append((_division(len(sums) - 1), after.args[0]))
        found[stage] = tuple(rows)
    return found


def _division(number: int) -> str:
    return "first division" if number == 0 else f"pass {number}"


def _makers(program: Program) -> dict[int, int]:
    """The step that makes each value."""
    return {value: at for at, step in enumerate(program.steps) for value in step.results}


def _through(program: Program, makers: dict[int, int], value: int, kinds: Collection[str]) -> int:
    """The step that made a value, seen through these kinds of steps, which change no number."""
    at = makers[value]
    while program.steps[at].kind in kinds:
        at = makers[program.steps[at].args[program.steps[at].results.index(value)]]
        value = program.steps[at].results[0]
    return at


def _negated(program: Program, value: int) -> bool:
    """Whether a value is next subtracted from a number: a Goldschmidt iteration does so with its denominator."""
    known = {value}
    for step in program.steps:
        if known & set(step.args):
            if step.kind == "negate":
                return True
            if step.kind in ("drop", "times"):
                known.update(step.results)
    return False


def _sums(program: Program, stage: str, operator: str) -> list[_Sum]:
    """Where a stage adds up rows: runs of turns and sums."""
    found: list[_Sum] = []
    run: list[int] = []
    own = [at for at, s in enumerate(program.steps) if s.name == stage and s.operator == operator]
    for at in [*own, -1]:
        kind = program.steps[at].kind if at >= 0 else ""
        if kind in ("rotate", "add_rotations") or (run and kind in ("add", "add_plain")):
            run.append(at)
        elif run:
            found.append(_Sum(run[0], run[-1], program.steps[run[0]].args[0], program.steps[run[-1]].results[0]))
            run = []
    return found


def _in_softmax(program: Program, made: Step, value: int, makers: dict[int, int], *, wide: bool) -> tuple[str, str]:
    sums = _sums(program, made.name, SOFTMAX)
    before = [s for s in sums if s.last <= makers[value]]
    if not before:
        return "", "exponential"
    number = len(before) - 1
    if wide:
        squared = made.kind == "multiply" and made.args[0] == made.args[1]
        return "", f"square of pass {number + 1}" if squared else f"row after {_division(number)}"
    family = "softmax_refine" if number else "softmax_init"
    what = "sum" if value == before[-1].made else "reciprocal"
    return family, f"{what} of pass {number}" if number else f"first {what}"


def _in_norm(
    program: Program, made: Step, value: int, makers: dict[int, int], *, wide: bool, newton_count: int
) -> tuple[str, str]:
    sums = [s for s in _sums(program, made.name, NORM) if s.last <= makers[value]]
    if wide:
        return "", "output" if sums else "input"
    if not sums or value == sums[-1].made:
        return "", "sum of squares"
    # Newton's iterations are the last levels before the product with the row.
    if _levels_after(program, made.name, value) - 1 < 2 * newton_count:
        return "norm_newton", "inverse root"
    return "norm_goldschmidt", "inverse root"


def _levels_after(program: Program, stage: str, value: int) -> int:
    """Levels from a value to the end of its norm."""
    spent = {value: 0}
    for step in program.steps:
        if step.name == stage and step.operator == NORM:
            known = [spent[a] for a in step.args if a in spent]
            if known:
                spent.update(dict.fromkeys(step.results, max(known) + step.row.levels))
    return max(spent.values())
