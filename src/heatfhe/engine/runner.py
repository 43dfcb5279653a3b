# SPDX-License-Identifier: Apache-2.0
"""Runs a plan's program on an engine, for one position: levels checked, dead values freed, nothing looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from heatfhe.engine.protocol import KeyRequest
from heatfhe.engine.segments import Segment, segments
from heatfhe.errors import ConfigError, EngineError
from heatfhe.planning import Given, PlaintextSource, Plan, Program, ProgramName, Step, Vector
from heatfhe.progress import SILENT, Reporter

SPARE = {ProgramName.PREFILL.value}  # programs whose plaintexts leave where those of single tokens need the room
C = TypeVar("C")
Values = Mapping[str, Sequence[C]]
Trace = Callable[[tuple[Any, ...]], None]
"""Receives every instruction as (kind, level, public arguments): what an observer of the server sees."""


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """A ciphertext of a cache before the first token: empty, or what a public prefix leaves there."""

    front: Vector | None


def key_request(source: Any) -> KeyRequest:
    """The evaluation keys that a plan needs, or the plan that a model's configuration describes, and no others."""
    return KeyRequest(**{f.name: getattr(source, f.name) for f in fields(KeyRequest)})


def _kind(step: Step) -> tuple[str, bool]:
    return step.operator, step.row.refreshes


def _marked(plain: float | Vector, spare: bool) -> float | Vector:
    return replace(plain, spare=True) if spare and isinstance(plain, Vector) else plain


def _free(step: Step, i: int, last: Mapping[int, int], values: dict[int, Any]) -> None:
    """Let go of what no later step reads."""
    for a in {*step.args, *step.results}:
        if last.get(a, i) <= i:
            values.pop(a, None)


@dataclass
class Runner:
    """A plan on an engine.

    Where the engine records, what is the same at every position is played back as a whole (``recorded``). A reporter
    hears of a stretch when all of it is done; with ``by_operator`` each is of one operator, refreshes apart, so that a
    reporter that waits for the engine can tell the operators' seconds.
    """

    plan: Plan
    engine: Any
    source: PlaintextSource
    trace: Trace | None = None
    recorded: bool = True
    by_operator: bool = False
    parts: dict[str, tuple[Segment, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine.params.digest != self.plan.params.digest:
            raise ConfigError(
                f"the plan is for {self.plan.params.name}, the engine runs {self.engine.params.name}; "
                "plan again or open that set"
            )

    def run(
        self, program: str, inputs: Values[Any], position: int, reporter: Reporter = SILENT
    ) -> dict[str, list[Any]]:
        """Execute one program at one public position and return its outputs by name, one value per ciphertext.

        Cached values that are missing from ``inputs`` stand for an empty cache, or one with the public prefix alone:
        positions here do not count it. Every result's level is compared with the plan's: a difference is an error of
        the engine, raised with the step's number and place.
        """
        if not 0 <= position < self.plan.context:
            raise ConfigError(
                f"position {position} lies outside the plan's cache of {self.plan.context}; "
                "shorten the text or plan a larger context"
            )
        chosen = self.plan.program(program)
        values = self._given(program, inputs, position)
        position += self.plan.prefix
        last = chosen.last_use()
        reporter.start(program, len(chosen.steps))
        for part in self._segments(chosen):
            whole = (
                part.fixed and self.trace is None and not any(isinstance(values[a], _Unwritten) for a in part.inputs)
            )
            if whole:
                self._play(chosen, part, values, last, position)
            for i in range(part.first, part.stop):
                step = chosen.steps[i]
                if not whole:
                    self._step(i, step, program, values, position)
                _free(step, i, last, values)
                reporter.advance(program, operator=step.operator, kind=step.kind)
        reporter.done(program)
        return {name: [values[v] for v in port.values] for name, port in chosen.outputs.items()}

    def _segments(self, program: Program) -> tuple[Segment, ...]:
        """The program in parts: one, if nothing is recorded."""
        if not (self.recorded and self.engine.records):
            return (Segment(0, len(program.steps), False, (), ()),)
        if program.name not in self.parts:
            kind = _kind if self.by_operator else None
            self.parts[program.name] = segments(program, lambda step: step.moves, kind)
        return self.parts[program.name]

    def _play(
        self, program: Program, part: Segment, values: dict[int, Any], last: Mapping[int, int], position: int
    ) -> None:
        """A recorded part; the steps themselves run when the engine has no recording yet."""

        def body(given: Sequence[Any]) -> list[Any]:
            own = dict(zip(part.inputs, given))
            for i in range(part.first, part.stop):
                step = program.steps[i]
                self._step(i, step, program.name, own, position)
                _free(step, i, last, own)
            return [own[v] for v in part.outputs]

        name = (self.plan.digest, program.name, part.first, part.stop)
        values.update(zip(part.outputs, self.engine.replay(name, body, [values[a] for a in part.inputs])))

    def _step(self, i: int, step: Step, program: str, values: dict[int, Any], position: int) -> None:
        """One step, its results among the values."""
        try:
            results = self._execute(step, [values[a] for a in step.args], position, spare=program in SPARE)
        except EngineError as err:
            place = f"step {i} of {program!r} ({step.kind}, {step.name}) at position {position}"
            raise type(err)(f"{place}: {err}") from err
        for number, value in zip(step.results, results):
            if not isinstance(value, _Unwritten) and self.engine.level(value) != step.level:
                raise EngineError(
                    f"step {i} ({step.kind} of {step.name}) ended at level {self.engine.level(value)}, "
                    f"the plan says {step.level}"
                )
            values[number] = value

    def _given(self, program: str, inputs: Values[Any], position: int) -> dict[int, Any]:
        values: dict[int, Any] = {}
        for name, port in self.plan.program(program).inputs.items():
            given = inputs.get(name)
            if given is None:
                if "/" not in name or position:
                    raise ConfigError(f"program {program!r} at position {position} needs the value {name!r}")
                given = [_Unwritten(self.source.front(name, part)) for part in range(len(port.values))]
            if len(given) != len(port.values):
                raise ConfigError(f"{name}: {len(port.values)} ciphertexts expected, got {len(given)}")
            for number, value in zip(port.values, given):
                level = port.level if isinstance(value, _Unwritten) else self.engine.level(value)
                if level < port.level:
                    raise EngineError(f"{name}: comes at level {level}, the plan needs {port.level}")
                if level > port.level:
                    value = self.engine.drop(value, port.level)
                values[number] = value
        return values

    def _execute(self, step: Step, args: list[Any], position: int, *, spare: bool = False) -> list[Any]:
        row, bound = step.row, self.bound(step, position)
        unwritten = [a for a in args if isinstance(a, _Unwritten)]
        if unwritten:  # the first position alone, so this is public
            if not row.passes_empty:
                raise EngineError(f"{step.name}: {step.kind} of an empty cache")
            written = [a for a in args if not isinstance(a, _Unwritten)]
            if not written or unwritten[0].front is None:
                return [(written or unwritten)[0]]
            return [self.engine.add_plain(written[0], unwritten[0].front)]
        by = tuple(k * (position % step.modulus) % self.plan.packing.n for k in step.by) if step.modulus else step.by
        if self.trace is not None:
            seen = (step.kind, step.level, by, step.plains, step.part, step.product, step.number, step.period, bound)
            self.trace(seen)
        given = Given(
            args=args,
            plains=[_marked(self.source.plain(p, position, step.part), spare) for p in step.plains],
            by=by,
            number=step.number,
            level=step.level,
            map=None if step.product is None else replace(self.source.linear_map(step.product), spare=spare),
            period=step.period,
            bound=bound,
        )
        assert row.call is not None
        out = row.call(getattr(self.engine, step.kind), given)
        return [out] if row.results == 1 else list(out)

    def bound(self, step: Step, position: int) -> float:
        """The magnitude a bootstrap must allow at this position."""
        return step.bound * float(((position + 1) / self.plan.packing.context) ** step.rows)
