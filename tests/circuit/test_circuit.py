# SPDX-License-Identifier: Apache-2.0
"""A circuit's float64 meaning: cached steps equal whole runs, folding changes nothing, taps see every site."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatfhe.circuit import Cache, Circuit, embed, forward, show
from heatfhe.circuit.forward import one_hot
from heatfhe.errors import ConfigError, SiteError
from tests.tiny import tiny_circuit


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return tiny_circuit(seed=3)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_cached_run_equals_a_whole_one(circuit: Circuit, data: st.DataObject) -> None:
    length = data.draw(st.integers(2, circuit.shape.context))
    at = data.draw(st.integers(1, length - 1))
    tokens = np.asarray(
        data.draw(st.lists(st.integers(0, circuit.shape.vocabulary - 1), min_size=length, max_size=length))
    )
    whole = circuit.run(tokens)
    cache = Cache()
    first = forward(circuit, embed(circuit, tokens[:at], 0), cache)
    second = forward(circuit, embed(circuit, tokens[at:], at), cache)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, rtol=0, atol=1e-10 * np.abs(whole).max())


def test_a_long_run_goes_by_parts(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.random.default_rng(0).integers(0, circuit.shape.vocabulary, (2, circuit.shape.context))
    whole = circuit.run(tokens)
    monkeypatch.setattr("heatfhe.circuit.circuit._ROWS", 3)
    np.testing.assert_allclose(circuit.run(tokens), whole, rtol=1e-12, atol=1e-12)


def test_a_batch_equals_its_rows(circuit: Circuit) -> None:
    tokens = np.random.default_rng(0).integers(0, circuit.shape.vocabulary, (3, 5))
    batch = circuit.run(tokens)
    for row, logits in zip(tokens, batch):
        np.testing.assert_allclose(circuit.run(row), logits, atol=1e-11)


def test_residual_writes_have_mean_zero(circuit: Circuit) -> None:
    seen: dict[str, float] = {}

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        if name.endswith((".in", ".mid")):
            seen[name] = float(np.abs(value.mean(axis=-1)).max() / np.abs(value).max())
        return value

    circuit.run([1, 2, 3], tap=tap)
    assert len(seen) == 2 * circuit.shape.layers + 1
    assert max(seen.values()) < 1e-14


def test_folding_equals_layer_norm_as_written(circuit: Circuit) -> None:
    """Gain and shift of a norm, then its linear: folded and unfolded agree."""
    weights, folded = circuit.weights, circuit.folded
    x = np.random.default_rng(1).standard_normal((4, circuit.shape.width))
    normed = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    written = (normed * weights["h.0.ln_1.weight"] + weights["h.0.ln_1.bias"]) @ weights["h.0.attn.c_attn.weight"]
    written = written + weights["h.0.attn.c_attn.bias"]
    linear = folded.linears["h.0.attn.c_attn"]
    np.testing.assert_allclose(normed @ linear.weight + linear.bias, written, atol=1e-6)


def test_free_running_feeds_the_one_hot_back(circuit: Circuit) -> None:
    out = circuit.generate([1, 2, 3], 4)
    assert len(out.tokens) == len(out.one_hots) == len(out.logits) == 4
    for token, hot, logits in zip(out.tokens, out.one_hots, out.logits):
        assert token == int(np.argmax(logits))
        assert hot[token] == pytest.approx(1.0, abs=0.2)
    forced = circuit.run([1, 2, 3, *out.tokens[:-1]])
    np.testing.assert_allclose(forced[2], out.logits[0], atol=1e-9)


def test_a_generation_may_fill_the_context_exactly(circuit: Circuit) -> None:
    room = circuit.shape.context
    assert len(circuit.generate([1] * (room - 2), 3).tokens) == 3
    with pytest.raises(ConfigError, match=f"do not fit the circuit's context of {room}"):
        circuit.generate([1] * (room - 2), 4)


@pytest.mark.parametrize("tokens", [[], [-1], [10**6]])
def test_bad_tokens_are_refused(circuit: Circuit, tokens: list[int]) -> None:
    with pytest.raises(ConfigError):
        circuit.run(tokens)


def test_counts_can_be_changed_and_are_checked(circuit: Circuit) -> None:
    name = next(iter(circuit.calibration.counts()))
    deeper = circuit.with_counts({name: circuit.calibration.counts()[name] + 1})
    assert sum(deeper.calibration.iterations().values()) == sum(circuit.calibration.iterations().values()) + 1
    assert deeper.digest != circuit.digest
    with pytest.raises(ConfigError, match="no such site"):
        circuit.with_counts({"h.9.ln_1/newton": 1})
    with pytest.raises(SiteError, match="negative"):
        circuit.with_counts({name: -1})


def test_an_illegal_circuit_cannot_be_made(circuit: Circuit) -> None:
    weights = dict(circuit.weights)
    weights["h.0.ln_1.weight"] = np.full_like(weights["h.0.ln_1.weight"], np.nan)
    with pytest.raises(ConfigError, match=r"h\.0\.ln_1: .*non-finite"):
        replace(circuit, weights=weights)
    with pytest.raises(ConfigError, match="missing"):
        replace(circuit, weights={k: v for k, v in circuit.weights.items() if k != "wpe.weight"})
    with pytest.raises(ConfigError, match="before it is written"):
        replace(circuit, stages=circuit.stages[1:])


def test_the_text_form_names_every_stage(circuit: Circuit) -> None:
    text = show(circuit)
    assert text.count("\n") == len(circuit.stages) + 2
    assert "h.1.attn.out = attention(h.1.attn.qkv)" in text


def test_a_row_that_vanishes_is_said(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second row is fed back at a trillionth of its size, the fourth is not finite."""
    held = circuit.generate([1, 2, 3], 4)
    assert min(held.leaders) > 0.5
    assert not caplog.records
    sizes = iter([1.0, 1e-12, 1.0, np.nan])
    own = one_hot
    monkeypatch.setattr("heatfhe.circuit.circuit.one_hot", lambda c, logits: next(sizes) * own(c, logits))
    out = circuit.generate([1, 2, 3], 4)
    assert [leader > 0.5 for leader in out.leaders] == [True, False, True, False]
    assert out.leaders[3] == 0.0
    said = [record.getMessage() for record in caplog.records]
    assert [words.split(":")[0] for words in said] == ["token 2", "token 4"]
    assert "weak copy of the word" in said[0]


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_activations_in_pieces_change_no_bit(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a row, of several with some left over, and everything at once; two axes in front and none."""
    circuit = tiny_circuit(tolerance=1e-4)
    tokens = np.random.default_rng(0).integers(0, circuit.shape.vocabulary, (3, circuit.room))
    expected, alone = circuit.run(tokens), circuit.run(tokens[0])
    monkeypatch.setattr(sys.modules["heatfhe.circuit.forward"], "PIECE", piece)
    assert np.array_equal(circuit.run(tokens), expected)
    assert np.array_equal(circuit.run(tokens[0]), alone)
