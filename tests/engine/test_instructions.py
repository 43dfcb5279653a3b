# SPDX-License-Identifier: Apache-2.0
"""The table of plan instructions: every row says what the clear engine, which defines them, does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heatfhe.engine import ClearEngine, Engine
from heatfhe.planning import KINDS, Given
from heatfhe.planning.cost import IN_MAPS, INSTRUCTIONS, OPTIONAL, SINCE_2, plain_words
from tests.engine.counting import CountingEngine
from tests.engine.maps import linear_map
from tests.planning.clear_run import clear_params

SLOTS = 8
PARAMS = clear_params(SLOTS)
BY = (1, 3, 5)
NOT_STEPS = {"params", "records", "replay", "level", "dump", "parse", "synchronize"}
RUN = [kind for kind, row in KINDS.items() if row.call is not None]
WEIGHTS = np.linspace(0.1, 0.9, 6 * SLOTS).reshape(2, 3, SLOTS)
MAP = linear_map("m", {g: {b: WEIGHTS[g // 4, b] for b in (0, 1, 2)} for g in (0, 4)})


def called(kind: str, engine: Any, values: list[Any]) -> list[Any]:
    """The results of one instruction on these values, plaintexts being 0.25 and 0.5 in turn."""
    row = KINDS[kind]
    turns = len(BY) if row.gathers else row.results or len(BY)
    given = Given(
        args=values, plains=[(0.25, 0.5)[i % 2] for i in range(len(values))] if row.plain else [], number=-3, level=2,
        by=BY[:turns] if row.rotates else (), map=MAP, period=SLOTS, bound=4.0,
    )  # fmt: skip
    assert row.call is not None
    out = row.call(getattr(engine, kind), given)
    return [out] if row.results == 1 else list(out)


def operands(kind: str) -> int:
    row = KINDS[kind]
    return 3 * row.args if row.summed == kind else row.args


def test_every_step_of_an_engine_has_a_row() -> None:
    assert set(RUN) == {name for name in vars(Engine) if not name.startswith("_")} - NOT_STEPS


@pytest.mark.parametrize("kind", RUN)
def test_levels_results_and_magnitudes_are_the_clear_engines(kind: str) -> None:
    row, engine, rng = KINDS[kind], ClearEngine(PARAMS), np.random.default_rng(3)
    slots = [rng.uniform(-2, 2, SLOTS) for _ in range(operands(kind))]
    results = called(kind, engine, [engine.value(s, 5) for s in slots])
    assert len(results) == (row.results or len(BY))
    after = PARAMS.levels if row.refreshes else 2 if kind == "drop" else 5 - row.levels
    assert {r.level for r in results} == {after}
    if kind == "linear" or row.gathers:
        return  # its result's size is assumed by whoever records it; a sum of rotations is not recorded
    plains = [np.full((1, 1), (0.25, 0.5)[i % 2]) for i in range(len(slots))]
    found = np.abs(results[0].slots).max()
    bounds = [np.full((2, 1), np.abs(s).max()) for s in slots]
    assert found <= np.abs(row.magnitude(bounds, plains, -3, False)).max() * (1 + 1e-12)
    if row.sampled and not (row.rotates or row.conjugates or kind == "times_i"):  # exact, slot by slot
        exact = row.magnitude([s[None] for s in slots], plains, -3, True)
        assert np.allclose(exact[0], results[0].slots, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", RUN)
def test_work_is_what_a_counting_engine_counts(kind: str) -> None:
    row, engine = KINDS[kind], CountingEngine(PARAMS)
    called(kind, engine, [engine.value(5)] * operands(kind))
    work = row.counted(operands(kind), len(BY) if row.rotates else 0, MAP if kind == "linear" else None)
    assert work.keys() <= INSTRUCTIONS.keys() | SINCE_2.keys() | OPTIONAL.keys()
    assert {word.startswith(IN_MAPS) for word in work} <= {kind == "linear"}
    work = plain_words(work)
    for word in ("rotate", "hoist", "rotate_hoisted", "rotate_summed", "conjugate", "multiply_plain"):
        assert work.get(word, 0) == engine.counts[word]
    products = work.get("multiply", 0) + work.get("tensor", 0)
    assert products == engine.counts["multiply"]
    assert work.get("relinearise", 0) + work.get("multiply", 0) == engine.counts["relinearise"]


def test_what_an_empty_cache_leaves() -> None:
    assert {kind for kind in RUN if KINDS[kind].passes_empty} == {"add", "drop"}
    assert {kind for kind in RUN if KINDS[kind].linear} == {
        "add", "sub", "negate", "add_plain", "times", "times_i", "rotate", "rotate_many", "add_rotations", "conjugate",
    }  # fmt: skip
