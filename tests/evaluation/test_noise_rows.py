# SPDX-License-Identifier: Apache-2.0
"""Rows of noise: the first is exact, errors grow in proportion, and under mild noise tokens are the circuit's own."""

from __future__ import annotations

import numpy as np
import pytest

from heatfhe.engine import ClearEngine
from heatfhe.errors import ConfigError
from heatfhe.evaluation.noise_rows import RowNoise, free_rows, logit_rows, noisy_engine
from heatfhe.planning import Plan, plan
from heatfhe.planning.params import preset
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
PARAMS = preset("insecure-native-11")


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(CIRCUIT, PARAMS, programs=("logits", "generate", "prompt"))


def test_the_first_row_is_exact_and_errors_grow_with_the_noise(made: Plan) -> None:
    tokens = [3, 7, 5]
    found = logit_rows(made, CIRCUIT, noisy_engine(made, (0.0, 1e-9, 1e-7)), tokens)
    clear = CIRCUIT.run(np.array([tokens]))[0]
    for rows, true in zip(found, clear):
        errors = np.abs(rows - true).max(axis=-1)
        assert errors[0] < 1e-9
        assert 10 < errors[2] / errors[1] < 1000  # a hundred times the noise


def test_a_seed_repeats(made: Plan) -> None:
    first, second, other = (
        logit_rows(made, CIRCUIT, noisy_engine(made, (0.0, 1e-6), seed=s), [3])[0] for s in (1, 1, 2)
    )
    assert np.array_equal(first, second)
    assert np.array_equal(first[0], other[0])
    assert not np.array_equal(first[1], other[1])


def test_tokens_under_mild_noise_are_the_circuits_own(made: Plan) -> None:
    found = free_rows(made, CIRCUIT, noisy_engine(made, (0.0, 1e-8)), [3, 7], 3)
    assert found.tokens.shape == found.leaders.shape == (2, 3)
    wanted = CIRCUIT.generate([3, 7], 3).tokens
    assert found.tokens[0].tolist() == found.tokens[1].tolist() == [int(t) for t in wanted]
    assert found.leaders.min() > 0.5


def test_texts_of_equal_length_run_as_one_batch(made: Plan) -> None:
    """As each alone, at the same noise; rows of different texts have their own."""
    texts = np.array([[3, 7, 5], [9, 1, 30]])
    exact = logit_rows(made, CIRCUIT, noisy_engine(made, (0.0, 1e-7)), texts)
    clear = CIRCUIT.run(texts)
    for position, rows in enumerate(exact):
        assert rows.shape == (2, 2, 32)
        assert np.abs(rows[0] - clear[:, position]).max() < 1e-9
        assert (np.abs(rows[1] - clear[:, position]).max(axis=-1) > 1e-9).all()
    found = free_rows(made, CIRCUIT, noisy_engine(made, (0.0, 1e-8)), texts, 2)
    assert found.tokens.shape == found.leaders.shape == (2, 2, 2)
    for i, text in enumerate(texts.tolist()):
        assert found.tokens[0, i].tolist() == [int(t) for t in CIRCUIT.generate(text, 2).tokens]


def test_noise_is_of_the_bound_where_that_exceeds_one() -> None:
    noise, rng = RowNoise((0.0, 1e-3)), np.random.default_rng(0)
    small, large = (noise(np.zeros((2, 4096)), bound, rng) for bound in (0.01, 8.0))
    assert not small[0].any()
    assert small[1].std() == pytest.approx(1e-3, rel=0.1)
    assert large[1].std() == pytest.approx(8e-3, rel=0.1)


def test_rows_that_do_not_fit_are_refused(made: Plan) -> None:
    with pytest.raises(ConfigError, match="one for each row"):
        RowNoise(())
    with pytest.raises(ConfigError, match="2 rows"):
        RowNoise((0.0, 1.0))(np.zeros((3, 4)), 1.0, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="noisy_engine"):
        logit_rows(made, CIRCUIT, ClearEngine(PARAMS), [3])
