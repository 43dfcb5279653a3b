# SPDX-License-Identifier: Apache-2.0
"""Laws 1, 2, 4 and 6 over random Llamas: rotary positions, shared keys and values, gates, tied and untied heads."""

from __future__ import annotations

import pytest

from tests.laws.random_models import SEEDS, check_law_1, check_law_2, check_laws_4_and_6
from tests.llama_tiny import exported, random_tokens, tiny_llama


@pytest.mark.parametrize("seed", SEEDS)
def test_law_1_restored_is_the_original(seed: int) -> None:
    check_law_1(tiny_llama(seed), random_tokens(seed, rows=2), by_model=seed % 2 == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_law_2_deployed_is_the_circuit(seed: int) -> None:
    check_law_2(*exported(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_4_and_6_the_circuit_is_its_plan_and_the_trace_is_public(seed: int) -> None:
    _, tokens, circuit = exported(seed)
    check_laws_4_and_6(tokens, circuit, "AB"[seed % 2])
