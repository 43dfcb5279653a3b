# SPDX-License-Identifier: Apache-2.0
"""The packed program: a whole prompt at once leaves the cache that single tokens leave, and decode goes on from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.errors import ConfigError, PlanError
from heatfhe.planning import Plan, plan, preset
from heatfhe.planning.blocks import Rows, Share
from heatfhe.planning.plaintexts import Public
from heatfhe.planning.weights import parse_weight
from tests.planning.clear_run import block_rows, clear_params, distance, talks
from tests.tiny import tiny_circuit

# (circuit, slots, tokens planned, tokens given): one token to a ciphertext and many, blocks that fill one ciphertext of
# scores and several, an odd number of blocks, padded heads and widths, rings larger than the model can use.
CASES: list[tuple[dict[str, Any], int, int, int]] = [
    ({}, 64, 8, 8),
    ({}, 64, 16, 13),
    ({}, 64, 12, 9),
    ({}, 64, 3, 1),
    ({}, 32, 16, 15),
    ({}, 1024, 16, 10),
    ({"context": 8, "seed": 1}, 16, 8, 8),
    ({"width": 12, "heads": 3, "vocabulary": 50, "seed": 2}, 64, 16, 11),
    ({"width": 15, "heads": 5, "vocabulary": 37, "context": 8, "seed": 3}, 64, 8, 7),
    ({"width": 16, "heads": 1, "vocabulary": 200, "seed": 4}, 64, 16, 16),
    ({"width": 16, "hidden": 24, "seed": 5}, 64, 16, 14),
]


@pytest.mark.parametrize(("shape", "slots", "planned", "given"), CASES)
def test_a_prompt_at_once_leaves_the_cache_of_single_tokens(
    shape: dict[str, Any], slots: int, planned: int, given: int
) -> None:
    circuit = tiny_circuit(**shape)
    made = plan(circuit, clear_params(slots), programs=("generate", "prompt"), prefill=planned)
    prompt = np.random.default_rng(7).integers(0, circuit.shape.vocabulary, size=given)
    single, packed = talks(made, circuit, prompt)
    assert min(float(np.abs(v.slots).max()) for row in single.cache.values() for v in row[:1]) > 0.1
    assert distance(single, packed) < 1e-8
    engine = packed.runner.engine
    for token in range(min(3, made.context - given)):  # what filled the last block is gone: tokens go on from there
        x = engine.value(made.packing.pack_residual(circuit.folded.token[token]))
        one, other = single.generate([x]), packed.generate([x])
        assert max(float(np.abs(a.slots - b.slots).max()) for a, b in zip(one, other)) < 1e-8
    assert distance(single, packed) < 1e-8


@pytest.mark.parametrize(
    ("reach", "pair_levels", "options"),
    [(1.0, 1, {}), (246.0, 0, {"precision": 0.0}), (16.0, 0, {"contract": False, "placement": "greedy", "mlp": "A"})],
)
def test_reaches_sizes_and_placements_change_nothing(reach: float, pair_levels: int, options: dict[str, Any]) -> None:
    circuit = tiny_circuit()
    params = clear_params(64, levels=9, reach=reach, pair_levels=pair_levels)
    made = plan(circuit, params, programs=("prompt",), prefill=16, **options)
    assert distance(*talks(made, circuit, np.arange(14) * 5 % 64)) < 1e-8


def test_the_operations_depend_on_the_length_alone() -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(64), programs=("prompt",), prefill=8)
    engine = ClearEngine(made.params, request=key_request(made))

    def trace(prompt: list[int]) -> list[tuple[Any, ...]]:
        seen: list[tuple[Any, ...]] = []
        talk = Conversation(Runner(made, engine, made.source(circuit), trace=seen.append))
        rows = block_rows(made, circuit, np.array(prompt))
        talk.prefill([engine.value(v) for v in rows], len(prompt))
        return seen

    assert trace([1, 2, 3, 4, 5, 6]) == trace([9, 8, 7, 60, 50, 40])


def test_what_fills_a_block_copies_the_last_token() -> None:
    circuit = tiny_circuit(width=12, heads=3, vocabulary=50, seed=2)
    made = plan(circuit, clear_params(64), programs=("prompt",), prefill=12)
    source, p = made.source(circuit), made.packing.tokens
    seen = np.zeros((3, p.t, p.Hp))
    for part in range(6):  # one block of keys to a ciphertext: 1, 2 and 3 of them for the three blocks of queries
        counts = Rows.CAUSAL.slots(source, 8, part).reshape(p.dh, p.Hp, p.t).sum(axis=0).T
        seen[p.score(part)[0]] += counts
    assert p.span == 1
    assert np.array_equal(seen[..., :3].reshape(12, 3), np.minimum(np.arange(12), 8)[:, None] + np.ones((12, 3)))
    assert not seen[..., 3].any()
    last, rows = Rows.POSITIONS.slots(source, 8, 2).reshape(p.D, p.t), circuit.folded.position
    assert rows is not None
    assert np.array_equal(last[:12], np.repeat(rows[8][:, None], p.t, axis=1))
    lengths = source.plain(Public(rows=0.5, vector=Rows.EVERY), 8, 2)
    assert not isinstance(lengths, float)
    assert np.allclose(lengths.make(), 3.0)


def test_a_plan_with_a_prefill_is_read_as_it_was_written(tmp_path: Any) -> None:
    circuit = tiny_circuit()
    made = plan(circuit, clear_params(64), programs=("prompt",), prefill=8)
    made.save(tmp_path / "a.plan")
    again = Plan.load(tmp_path / "a.plan")
    assert again.digest == made.digest
    assert again.products == made.products
    assert again.program("prefill") == made.program("prefill")


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8])
def test_shares_of_a_ciphertext_leave_no_slot_empty(blocks: int) -> None:
    """Each slot is one block's, so that a solver meets nothing but numbers of its domain; every round is complete."""
    made = plan(tiny_circuit(), clear_params(64), programs=("prompt",))
    source, shares = made.source(tiny_circuit()), [Share(k, blocks, 2) for k in range(blocks)]
    rows = np.array([share.slots(source, 0, 0) for share in shares])
    assert np.array_equal(rows.sum(axis=0), np.ones(64))
    turns = shares[0].turns
    assert [share.own for share in shares] == [1] * (blocks - 1) + [turns - blocks + 1]
    for share, row in zip(shares, rows, strict=True):
        assert share.period(source) == 2 * turns
        assert np.array_equal(row[: 2 * turns].reshape(turns, 2).sum(axis=0), [share.own] * 2)
        assert np.array_equal(row, np.resize(row[: 2 * turns], 64))


@pytest.mark.parametrize("key", ["@centred", "@head&a/v", "@a/q&b", "@a/k&b/v&c/q", "@@a", "@embedding.0", "@a/k&@b/v"])
def test_keys_that_name_no_map_of_many_tokens(key: str) -> None:
    with pytest.raises(ConfigError, match="not a linear map's key"):
        parse_weight(key)


def test_what_a_prefill_refuses() -> None:
    circuit = tiny_circuit()
    with pytest.raises(PlanError, match="a prefill of 17 tokens does not fit the cache of 16 positions"):
        plan(circuit, clear_params(64), programs=("prompt",), prefill=17)
    with pytest.raises(ConfigError, match="for a number of tokens: give prefill="):
        plan(circuit, clear_params(64), programs=("prefill",))
    with pytest.raises(PlanError, match="multiplies by i"):
        plan(circuit, clear_params(64), programs=("prompt",), prefill=8, halve=False)
    made = plan(circuit, clear_params(64), programs=("prompt",), prefill=8)
    _, packed = talks(made, circuit, np.arange(8))
    with pytest.raises(ConfigError, match="a prompt at once starts a conversation; this one holds 8 positions"):
        packed.prefill([], 8)
    with pytest.raises(ConfigError, match="9 tokens do not fit the plan's prefill of 8"):
        Conversation(packed.runner).prefill([], 9)


def test_32_tokens_of_the_default_model_take_a_fraction_of_the_bootstraps() -> None:
    circuit = Circuit.load(default_circuit("heat"))
    made = plan(circuit, preset("insecure-native-12-r40"), prefill=32)
    prompt = np.random.default_rng(3).integers(0, circuit.shape.vocabulary, size=32)
    for length in (5, 32):  # magnitudes beyond a refresh's bound would raise, those of what fills the blocks too
        assert distance(*talks(made, circuit, prompt[:length])) < 1e-8
    assert len(made.program("prompt").bootstraps()) == 22
    assert len(made.program("prefill").bootstraps()) <= 27  # the bar: 88
