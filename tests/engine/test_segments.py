# SPDX-License-Identifier: Apache-2.0
"""What an engine may record of a program: the same at every position, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pytest

from heatfhe.engine import ClearEngine, Conversation, Runner
from heatfhe.engine.segments import segments
from heatfhe.planning import Plan, plan
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit


class Recording(ClearEngine):
    """Plays what was recorded: the body of the first call, whose position has passed, on the values of this one."""

    records = True  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bodies: dict[Hashable, Callable[..., Any]] = {}
        self.played = 0

    def replay(self, name: Hashable, body: Callable[..., Any], values: Sequence[Any]) -> Sequence[Any]:
        self.played += name in self.bodies
        out: Sequence[Any] = self.bodies.setdefault(name, body)(values)
        return out


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(tiny_circuit(), clear_params(64), placement="greedy")


def tokens(made: Plan, engine: Any, *, recorded: bool) -> list[Any]:
    circuit = tiny_circuit()
    decode = Conversation(Runner(made, engine, made.source(circuit), recorded=recorded))
    level = made.program("generate").inputs["x"].level
    rows = [engine.value(made.packing.pack_residual(circuit.folded.token[t]), level) for t in (1, 2, 3)]
    for row in rows[:-1]:
        decode.prompt([row])
    out = [decode.generate([rows[-1]])]
    return [part.slots for parts in (*out, *(decode.generate() for _ in range(3))) for part in parts]


def test_a_recording_of_one_position_is_right_at_the_others(made: Plan) -> None:
    engine = Recording(made.params)
    plain = tokens(made, ClearEngine(made.params), recorded=False)
    recorded = tokens(made, engine, recorded=True)
    assert engine.played > 20
    for a, b in zip(plain, recorded, strict=True):
        assert np.array_equal(a, b)


def test_segments_cover_the_program_in_order_and_know_what_they_hand_on(made: Plan) -> None:
    program = made.program("generate")
    parts = segments(program, lambda step: step.kind == "rotate")
    assert [p.first for p in parts][1:] == [p.stop for p in parts][:-1]
    assert (parts[0].first, parts[-1].stop) == (0, len(program.steps))
    held = {v for port in program.inputs.values() for v in port.values}
    for part in parts:
        assert set(part.inputs) <= held  # what a part reads, one before it handed on
        assert {program.steps[i].kind == "rotate" for i in range(part.first, part.stop)} != {True, False}
        held |= set(part.outputs)
    assert {v for port in program.outputs.values() for v in port.values} <= held


def test_stretches_of_one_operator(made: Plan) -> None:
    program = made.program("generate")
    whole = segments(program, lambda step: step.kind == "rotate")
    parts = segments(program, lambda step: step.kind == "rotate", lambda step: step.operator)
    assert {p.first for p in whole} < {p.first for p in parts}
    for part in parts:
        assert len({program.steps[i].operator for i in range(part.first, part.stop)}) == 1


def test_nothing_is_recorded_where_it_is_not_wanted(made: Plan) -> None:
    engine = Recording(made.params)
    tokens(made, engine, recorded=False)
    assert not engine.bodies
