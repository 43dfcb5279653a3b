# SPDX-License-Identifier: Apache-2.0
"""Running a plan: levels checked against the plan, dead values freed, misuse refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from heatfhe.engine import ClearEngine, Conversation, Runner
from heatfhe.errors import ConfigError, EngineError
from heatfhe.planning import Plan, plan
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
