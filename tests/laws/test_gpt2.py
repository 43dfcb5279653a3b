# SPDX-License-Identifier: Apache-2.0
"""Laws 1, 2, 4 and 6 over random GPT-2: odd heads, hidden widths of no pattern, scaled scores, every activation."""

from __future__ import annotations

import pytest

from heatfhe.stages import Activation, Attention, Head
from tests.gpt2_tiny import odd_gpt2, random_tokens
from tests.laws.random_models import SEEDS, check_law_1, check_law_2, check_laws_4_and_6
from tests.random_export import exported_gpt2 as exported


@pytest.mark.parametrize("seed", SEEDS)
def test_law_1_restored_is_the_original(seed: int) -> None:
    check_law_1(odd_gpt2(seed), random_tokens(seed, rows=2), by_model=seed % 2 == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_law_2_deployed_is_the_circuit(seed: int) -> None:
    check_law_2(*exported(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_4_and_6_the_circuit_is_its_plan_and_the_trace_is_public(seed: int) -> None:
    _, tokens, circuit = exported(seed)
    check_laws_4_and_6(tokens, circuit, "AB"[seed % 2])


def test_five_seeds_see_every_variant() -> None:
    """So that make test meets odd heads, both heads, both scalings and every activation."""
    seen: dict[str, set[object]] = {}
    for seed in range(5):
        found = exported(seed)[2]
        (scales, functions, heads) = (
            [s.scale for s in found.stages if isinstance(s, Attention)],
            [s.function for s in found.stages if isinstance(s, Activation)],
            [s.weight for s in found.stages if isinstance(s, Head)],
        )
        seen.setdefault("heads", set()).add(found.shape.heads)
        seen.setdefault("scaled", set()).add((scales[0] is None, len(set(scales)) > 1))
        seen.setdefault("functions", set()).update(functions)
        seen.setdefault("head", set()).update(heads)
        seen.setdefault("square", set()).add(found.shape.hidden == 4 * found.shape.width)
    assert {1, 3, 5} <= seen["heads"]
    assert seen["scaled"] == {(True, False), (False, False), (False, True)}
    assert seen["functions"] == {"gelu_new", "gelu", "silu", "quick_gelu", "relu"}
    assert seen["head"] == {"wte.weight", "lm_head.weight"}
    assert seen["square"] == {False}
