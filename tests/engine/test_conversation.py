# SPDX-License-Identifier: Apache-2.0
"""Running a plan: levels checked against the plan, dead values freed, misuse refused before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import heatfhe
from heatfhe.engine import ClearEngine, Conversation, Runner
from heatfhe.errors import ConfigError, EngineError, WireError
from heatfhe.planning import Plan, ProgramName, plan
from tests.engine.counting import CountingEngine
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(tiny_circuit(), clear_params(64), placement="greedy")


class Steps:
    """Counts what a reporter hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def start(self, task: str, total: int | None = None) -> None:
        self.heard.append(f"start {task} {total}")

    def advance(self, task: str, **facts: float | int | str) -> None:
        self.heard.append(str(facts["kind"]))

    def done(self, task: str) -> None:
        self.heard.append("done")


def test_every_step_is_reported_and_traced(made: Plan) -> None:
    steps, trace = Steps(), []  # type: ignore[var-annotated]
    engine = CountingEngine(made.params)
    source = made.source(tiny_circuit())
    out = Runner(made, engine, source, trace=trace.append).run("prompt", {"x": [engine.value()]}, 0, steps)
    count = len(made.program("prompt").steps)
    assert steps.heard[0] == f"start prompt {count}"
    assert len(steps.heard) == count + 2
    assert set(out) == set(made.cache)
    adds_to_nothing = sum(len(p.values) for n, p in made.program("prompt").inputs.items() if "/" in n)
    assert count - len(trace) >= adds_to_nothing  # at position 0 nothing is added to an empty cache


def test_levels_are_compared_with_the_plan(made: Plan) -> None:
    class Leaky(CountingEngine):
        def rotate(self, a: Any, by: int) -> Any:
            return type(a)(a.level - 1)

    engine = Leaky(made.params)
    with pytest.raises(EngineError, match=r"step \d+ .*ended at level \d, the plan says \d"):
        Runner(made, engine, made.source(tiny_circuit())).run("prompt", {"x": [engine.value()]}, 0)


def test_dead_values_are_freed(made: Plan) -> None:
    program = made.program("generate")
    last = program.last_use()
    alive, most = set(), 0
    for i, step in enumerate(program.steps):
        alive |= {r for r in step.results if r in last}
        alive -= {a for a in step.args if last[a] == i}
        most = max(most, len(alive))
    assert most < 60  # far fewer than the program's values


def test_misuse_is_refused(made: Plan) -> None:
    circuit = tiny_circuit()
    engine = ClearEngine(made.params)
    runner = Runner(made, engine, made.source(circuit))
    x = [engine.value(made.packing.pack_residual(circuit.folded.token[1]))]
    with pytest.raises(ConfigError, match="outside the plan's cache of 16"):
        runner.run("prompt", {"x": x}, 16)
    with pytest.raises(ConfigError, match="needs the value 'x'"):
        runner.run("prompt", {}, 0)
    with pytest.raises(ConfigError, match=r"needs the value 'h\.0\.attn/k'"):
        runner.run("prompt", {"x": x}, 3)
    with pytest.raises(ConfigError, match="1 ciphertexts expected, got 2"):
        runner.run("prompt", {"x": x * 2}, 0)
    with pytest.raises(EngineError, match="comes at level 2, the plan needs 8"):
        runner.run("prompt", {"x": [engine.drop(x[0], 2)]}, 0)
    with pytest.raises(ConfigError, match="the plan is for"):
        Runner(made, ClearEngine(clear_params(64, levels=9)), made.source(circuit))
    with pytest.raises(ConfigError, match="nothing was generated yet"):
        Conversation(Runner(made, engine, made.source(circuit))).generate()


def test_an_input_outside_its_bound_names_step_and_place(made: Plan) -> None:
    circuit = tiny_circuit()
    engine = ClearEngine(made.params)
    huge = [engine.value(1e3 * made.packing.pack_residual(circuit.folded.token[1]))]
    with pytest.raises(EngineError, match=r"step \d+ of 'generate' \(bootstrap\w*, h\.0\.\w+.*met"):
        Conversation(Runner(made, engine, made.source(circuit))).generate(huge)


def test_a_conversation_goes_on_from_its_bytes_as_if_never_interrupted(made: Plan) -> None:
    circuit = tiny_circuit()
    runner = Runner(made, ClearEngine(made.params), made.source(circuit))
    rows = [runner.engine.value(made.packing.pack_residual(circuit.folded.token[t])) for t in (3, 1)]
    sealed = [runner.engine.dump(row) for row in rows]
    whole, parted = Conversation(runner), Conversation.restore(runner, {}, 0)
    whole.prompt([rows[0]])
    wanted = [whole.generate([rows[1]]), whole.generate(), whole.generate()]
    got = [parted.answer(ProgramName.PROMPT, sealed[0])]
    for token in (sealed[1], None, None):
        stored, position = parted.values(), parted.position
        assert ("next#0" in stored) == (token is None)
        parted = Conversation.restore(runner, stored, position)
        assert parted.values() == stored
        got.append(parted.answer(ProgramName.GENERATE, token))
    assert got == [(), *(tuple(runner.engine.dump(v) for v in row) for row in wanted)]
    assert (parted.position, parted.values()) == (4, whole.values())


def test_inputs_from_the_wire_are_refused_as_such(made: Plan) -> None:
    runner = Runner(made, ClearEngine(made.params), made.source(tiny_circuit()))
    talk = Conversation(runner)
    with pytest.raises(WireError, match="no generated token to go on from"):
        talk.answer(ProgramName.GENERATE, None)
    low = runner.engine.dump(runner.engine.value(made.packing.pack_residual([0.0] * made.shape.width), 2))
    with pytest.raises(WireError, match="comes at level 2, the plan needs 8"):
        talk.answer(ProgramName.PROMPT, low)
    assert talk.position == 0


def test_the_verb_runs_a_text_as_a_conversation_does() -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(64), placement="greedy", programs=("generate", "prompt", "logits"))
    engine = ClearEngine(made.params)
    rows = [[engine.value(made.packing.pack_residual(circuit.folded.token[t]))] for t in (3, 1, 2)]

    def words(parts: Any) -> Any:
        return made.packing.unpack_vocabulary([p.slots for p in parts])

    tokens = [int(words(parts).argmax()) for parts in heatfhe.run(made, circuit, engine, rows, count=3)]
    assert tokens == list(circuit.generate([3, 1, 2], 3).tokens)
    logits = [words(parts) for parts in heatfhe.run(made, circuit, engine, iter(rows), program="logits")]
    np.testing.assert_allclose(logits, circuit.run(np.array([[3, 1, 2]]))[0], atol=1e-6)
    with pytest.raises(ConfigError, match="logits or generated tokens, not 'sample'"):
        heatfhe.run(made, circuit, engine, rows, program="sample")
    with pytest.raises(ConfigError, match="nothing was generated yet"):
        next(heatfhe.run(made, circuit, engine, []))
