# SPDX-License-Identifier: Apache-2.0
"""Sums of rotations and shared drops: the same values from fewer steps, under the same keys, for less."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heatfhe.engine import ClearEngine
from heatfhe.errors import ConfigError
from heatfhe.planning import CostTable, LinearMap, Plan, Program, Step, cost_table, plan, preset, tally
from heatfhe.planning.merged import merged
from heatfhe.planning.program import Port
from tests.engine.counting import CountingEngine
from tests.engine.maps import linear_map
from tests.planning.clear_run import clear_params, generate, teacher_forced
from tests.tiny import tiny_circuit

SLOTS, LEVEL = 32, 5
TABLE = cost_table("native-cpu-11")


def doublings(*by: int, first: int = 0, number: int = 1) -> list[Step]:
    """A chain of them from a value on; numbers of values go up by two."""
    steps, value = [], first
    for k in by:
        steps.append(Step(kind="rotate", results=(number,), args=(value,), level=LEVEL, by=(k,), name="sum"))
        steps.append(Step(kind="add", results=(number + 1,), args=(value, number), level=LEVEL, name="sum"))
        value, number = number + 1, number + 2
    return steps


def program(steps: list[Step], *outputs: int, seconds: float = 1.0) -> Program:
    levels = {0: LEVEL} | {r: s.level for s in steps for r in s.results}
    return Program(
        name="prompt", steps=tuple(steps), inputs={"x": Port(values=(0,), level=LEVEL)}, predicted_seconds=seconds,
        outputs={f"y{i}": Port(values=(v,), level=levels[v]) for i, v in enumerate(outputs)},
    )  # fmt: skip


def values(p: Program, x: np.ndarray) -> list[np.ndarray]:
    """What a program makes of a value; integers, so that every order of summing gives the same."""
    engine = ClearEngine(clear_params(SLOTS))
    held: dict[int, Any] = {0: engine.value(x, LEVEL)}
    for s in p.steps:
        args: list[Any] = [held[a] for a in s.args]
        more: dict[str, Any] = {"rotate": s.by[:1], "add_rotations": (s.by,), "drop": (s.level,)}
        held[s.results[0]] = getattr(engine, s.kind)(*args, *more.get(s.kind, ()))
    return [held[v].slots for port in p.outputs.values() for v in port.values]


def keyed(*rotations: int) -> list[LinearMap]:
    """A linear map whose rotations have keys."""
    return [linear_map("keys", {0: {k: np.ones(SLOTS) for k in rotations}})]


EVERY = keyed(*range(1, SLOTS))


def kinds(p: Program) -> list[tuple[str, tuple[int, ...]]]:
    return [(s.kind, s.by) for s in p.steps]


def test_doublings_become_sums_of_rotations_that_have_keys() -> None:
    one = program(doublings(1, 2, 4, 8, 16), 10)
    assert kinds(merged(one, TABLE, SLOTS)) == [("add_rotations", (k,)) for k in (1, 2, 4, 8, 16)]
    two = merged(one, TABLE, SLOTS, keyed(3, 12))
    assert kinds(two) == [("add_rotations", b) for b in ((1, 2, 3), (4, 8, 12), (16,))]
    three = merged(one, TABLE, SLOTS, EVERY)
    assert sorted(len(by) for _, by in kinds(three)) == [3, 7]
    x = np.random.default_rng(0).integers(-9, 9, SLOTS).astype(float)
    wanted = np.full(SLOTS, x.sum())
    for p in (one, two, three):
        assert np.array_equal(values(p, x)[0], wanted)
    assert three.predicted_seconds < two.predicted_seconds < one.predicted_seconds
    rotate, add = TABLE.price({"rotate": 1}, LEVEL), TABLE.price({"add": 1}, LEVEL)
    more = TABLE.price({"linear.rotate_hoisted": 1}, LEVEL)
    assert two.predicted_seconds == pytest.approx(1.0 - 5 * (rotate + add) + 3 * rotate + 4 * more)


def test_what_others_read_or_follows_the_position_stays() -> None:
    read = doublings(1, 2, 4)
    seen = program([*read, Step(kind="add", results=(9,), args=(2, 6), level=LEVEL)], 9)
    assert kinds(merged(seen, TABLE, SLOTS, EVERY))[0] == ("add_rotations", (1,))
    given = program(read, 6, 4)  # a value in between leaves the program
    assert kinds(merged(given, TABLE, SLOTS, EVERY)) == [("add_rotations", (1, 2, 3)), ("add_rotations", (4,))]
    turned = program(read, 6, 5)  # and so does a rotation
    assert ("rotate", (4,)) in kinds(merged(turned, TABLE, SLOTS, EVERY))
    moving = program([replace(read[0], modulus=4), *read[1:]], 6)
    assert kinds(merged(moving, TABLE, SLOTS, EVERY))[:2] == [("rotate", (1,)), ("add", ())]
    still = program(doublings(SLOTS, 1), 4)  # a rotation by nothing has no key
    assert kinds(merged(still, TABLE, SLOTS, EVERY))[0] == ("rotate", (SLOTS,))
    back = program(doublings(1, SLOTS - 1), 4)  # 1 - 1: the value itself twice
    assert kinds(merged(back, TABLE, SLOTS, EVERY)) == [("add_rotations", (1,)), ("add_rotations", (SLOTS - 1,))]


def test_a_drop_is_made_once() -> None:
    drops = [Step(kind="drop", results=(k,), args=(0,), level=level) for k, level in ((1, 3), (2, 3), (3, 2))]
    both = Step(kind="add", results=(4,), args=(1, 2), level=3)
    found = merged(program([*drops, both], 4, 2, 3), TABLE, SLOTS)
    assert [(s.kind, s.args) for s in found.steps] == [("drop", (0,)), ("drop", (0,)), ("add", (1, 1))]
    assert [port.values for port in found.outputs.values()] == [(4,), (1,), (3,)]


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_give_the_same_integers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps: list[Step] = []
    known = [0]
    for _ in range(12):
        size = int(rng.integers(1, 5))
        by = [int(2 ** rng.integers(0, 5)) * int(rng.choice([1, -1])) for _ in range(size)]
        steps += doublings(*by, first=int(rng.choice(known)), number=2 * len(steps) + 1)
        known += [s.results[0] for s in steps[-2 * size :] if rng.random() < 0.3]
    p = program(steps, *(int(v) for v in rng.choice([r for s in steps for r in s.results], 3, replace=False)))
    x = rng.integers(-9, 9, SLOTS).astype(float)
    found = merged(p, TABLE, SLOTS, keyed(*range(1, SLOTS, int(rng.integers(1, 4)))))
    assert len(found.steps) < len(p.steps)
    for a, b in zip(values(p, x), values(found, x), strict=True):
        assert np.array_equal(a, b)


def unmerged(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Plan:
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["heatfhe.planning.plan"], "merged", lambda program, *_: program)
        return plan(**options)


@pytest.mark.parametrize("name", ["insecure-native-11", "insecure-native-12"])
def test_whole_plans_ask_for_the_same_keys_and_cost_less(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    circuit, params = tiny_circuit(), preset(name)
    options: dict[str, Any] = {"circuit": circuit, "params": params, "programs": ("generate", "prompt", "logits")}
    before, after = unmerged(monkeypatch, **options), plan(**options)
    assert after.rotations == before.rotations
    assert after.bootstrap_periods == before.bootstrap_periods
    for program_name in before.programs:
        old, new = before.program(program_name), after.program(program_name)
        assert new.predicted_seconds < old.predicted_seconds
        assert "add_rotations" in {s.kind for s in new.steps}
        assert [s.bound for s in new.bootstraps()] == [s.bound for s in old.bootstraps()]
        table = cost_table(after.cost)
        shown, was = (sum(t.seconds for t in tally(p, program_name, table).values()) for p in (after, before))
        saved = old.predicted_seconds - new.predicted_seconds
        assert was - shown == pytest.approx(saved, rel=1e-6)
    tokens = np.array([[3, 7, 5, 1]])
    wanted = circuit.run(tokens)
    assert np.abs(teacher_forced(after, circuit, tokens) - wanted).max() < 1e-8 * np.abs(wanted).max()
    once, twice = (generate(p, circuit, [3, 7], 3) for p in (before, after))
    assert max(np.abs(a - b).max() for a, b in zip(once.one_hots, twice.one_hots, strict=True)) < 1e-8
    again = Plan.from_json(after.as_json())
    assert again.digest == after.digest
    engine = CountingEngine(params)
    assert engine.add_rotations(engine.value(), (1, 2, 3)).level == params.levels


def test_a_table_without_a_price_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"circuit": tiny_circuit(), "params": clear_params(64), "programs": ("logits",)}
    for table in ("paper-a100", "cheddar-h200", "openfhe-cpu-12"):
        assert not cost_table(table).sums_rotations
        assert plan(**options, cost=table).digest == unmerged(monkeypatch, **options, cost=table).digest


def test_prices_of_one_rotation_more() -> None:
    assert TABLE.price({"rotate_summed": 2}, 3) == 2 * TABLE.seconds["linear.rotate_hoisted"][3]
    own = replace(TABLE, seconds={**TABLE.seconds, "rotate_summed": (7.0,)})
    assert own.price({"rotate_summed": 2}, 3) == 14.0
    assert CostTable.from_json(own.as_json()) == own
    old = cost_table("paper-a100")
    assert old.price({"rotate_summed": 1}, 3) == old.price({"rotate_hoisted": 1}, 3)


@pytest.mark.parametrize("by", [(), (1, 1), (0, 1)])
def test_sums_that_no_engine_makes_are_refused(by: tuple[int, ...]) -> None:
    made = plan(tiny_circuit(), preset("insecure-native-11"), programs=("logits",))
    chosen = made.program("logits")
    at = next(i for i, s in enumerate(chosen.steps) if s.kind == "add_rotations")
    steps = [*chosen.steps]
    steps[at] = replace(steps[at], by=by)
    with pytest.raises(ConfigError, match="rotat"):
        replace(made, programs={"logits": replace(chosen, steps=tuple(steps))})
