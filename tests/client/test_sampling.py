# SPDX-License-Identifier: Apache-2.0
"""Sampling under encryption is softmax sampling: chi-square on the clear engine, and a wrong temperature fails it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer

from heatfhe.approx import gumbel_bound, gumbel_noise
from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.client import Sampler
from heatfhe.client.layout import Layout
from heatfhe.client.sampling import fresh_generator, largest_temperature
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.errors import ConfigError
from heatfhe.planning import Plan, plan
from heatfhe.planning.params import preset
from heatfhe.server.work.program import highest_temperature
from tests.server.serving import PARAMS, served_circuit

given = pytest.importorskip("hypothesis", reason="hypothesis is a development dependency").given
st = pytest.importorskip("hypothesis.strategies")
chi2 = pytest.importorskip("scipy.stats", reason="scipy is a development dependency").chi2
DRAWS, TEMPERATURE = 2000, 2.0
PREFIXES = [(40,), (7, 7, 8, 20), (3, 50, 9)]


@pytest.fixture(scope="module")
def sampled() -> Plan:
    return plan(served_circuit(), PARAMS, programs=("generate", "prompt", "sample"), placement="greedy")


def draw(
    made: Plan,
    circuit: Circuit,
    prefix: Sequence[int],
    temperature: float,
    seed: int,
    *,
    batch: int = DRAWS,
    strict: bool = True,
) -> np.ndarray:
    """Near one-hot rows of DRAWS steps of ``sample`` on the clear engine, which when strict refuses any excess."""
    engine = ClearEngine(made.params, request=key_request(made), strict=strict)
    inputs = [[engine.value(made.packing.pack_residual(circuit.folded.token[t]))] for t in prefix]
    rng, found = np.random.default_rng(seed), []
    for _ in range(0, DRAWS, batch):
        decode = Conversation(Runner(made, engine, made.source(circuit)))
        for x in inputs[:-1]:
            decode.prompt(x)
        noise = np.stack([gumbel_noise(rng, circuit.shape.vocabulary, temperature) for _ in range(batch)])
        rows = decode.sample([engine.value(part) for part in made.packing.pack_vocabulary(noise)], inputs[-1])
        found.append(made.packing.unpack_vocabulary([v.slots for v in rows]))
    return np.concatenate(found)


def p_value(tokens: np.ndarray, logits: np.ndarray, temperature: float) -> float:
    """Chi-square of the counts against softmax(logits / T), bins pooled to an expectation of 5 or more."""
    scores = logits / temperature
    expected = DRAWS * np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    counts = np.bincount(tokens, minlength=logits.size).astype(float)
    order = np.argsort(expected)
    bins: list[list[float]] = [[0.0, 0.0]]
    for k in order:
        if bins[-1][1] >= 5:
            bins.append([0.0, 0.0])
        bins[-1][0] += counts[k]
        bins[-1][1] += expected[k]
    assert all(e >= 5 for _, e in bins)
    assert len(bins) >= 4
    statistic = sum((c - e) ** 2 / e for c, e in bins)
    return float(chi2.sf(statistic, len(bins) - 1))


@pytest.mark.parametrize("prefix", PREFIXES, ids=str)
def test_noise_added_under_encryption_is_softmax_sampling(sampled: Plan, prefix: tuple[int, ...]) -> None:
    rows = draw(sampled, served_circuit(), prefix, TEMPERATURE, seed=1)
    assert p_value(rows.argmax(-1), served_circuit().run(list(prefix))[-1], TEMPERATURE) > 0.001
    leaders = rows.max(-1)
    second = np.sort(rows, axis=-1)[:, -2]
    ties = int((second > 0.5 * leaders).sum())
    assert leaders.min() > 0.02  # every row still names a word
    assert ties < 0.3 * DRAWS  # near ties are counted; a flat softmax has many


@pytest.mark.parametrize("prefix", PREFIXES, ids=str)
def test_a_wrong_temperature_fails_the_same_test(sampled: Plan, prefix: tuple[int, ...]) -> None:
    rows = draw(sampled, served_circuit(), prefix, 0.7 * TEMPERATURE, seed=2)
    assert p_value(rows.argmax(-1), served_circuit().run(list(prefix))[-1], TEMPERATURE) < 0.001


@given(vocabulary=st.integers(2, 60_000), temperature=st.floats(0.01, 5.0), seed=st.integers(0, 2**32))
def test_noise_stays_within_its_stated_bound(vocabulary: int, temperature: float, seed: int) -> None:
    noise = gumbel_noise(np.random.default_rng(seed), vocabulary, temperature)
    bound = gumbel_bound(vocabulary)
    assert np.abs(noise).max() <= temperature * bound * (1 + 1e-12)
    assert vocabulary * math.exp(-bound) < 1e-3
    assert largest_temperature(temperature * bound, vocabulary) == pytest.approx(temperature)


def test_padding_of_the_noise_is_zero_and_words_come_back() -> None:
    layout = Layout(
        slots=256, width=12, width_period=16, input_level=9, vocabulary=100, word_period=64, parts=2, noise_level=9
    )
    noise = gumbel_noise(np.random.default_rng(0), 100, 1.0)
    parts = layout.place_words(noise)
    assert all(part.shape == (256,) for part in parts)
    assert np.all(parts[1].reshape(4, 64)[:, 36:] == 0)
    assert np.array_equal(layout.read_words([p.astype(complex) for p in parts]), noise)
    row = layout.place_row(np.arange(12.0))
    assert np.array_equal(row.reshape(16, 16)[3], [*range(12), 0, 0, 0, 0])


def test_the_clients_own_sampler() -> None:
    logits, rng = np.array([0.0, 2.0, 1.0, -50.0]), np.random.default_rng(0)
    assert Sampler().choose(logits, [], rng) == 1
    assert Sampler(repetition_penalty=3.0).choose(logits, [1], rng) == 2
    draws = [Sampler(temperature=1.0, top_p=0.6).choose(logits, [], rng) for _ in range(200)]
    assert set(draws) == {1}  # softmax: 0.09, 0.665, 0.245: one word reaches 0.6
    draws = [Sampler(temperature=1.0, top_p=0.8).choose(logits, [], rng) for _ in range(500)]
    assert set(draws) == {1, 2}
    assert np.mean([d == 1 for d in draws]) == pytest.approx(0.731, abs=0.07)
    assert not Sampler(temperature=1.0).needs_logits
    for bad in (
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"repetition_penalty": 0.0},
        {"temperature": math.nan},
    ):
        with pytest.raises(ConfigError):
            Sampler(**bad)


def test_every_client_draws_its_own_noise() -> None:
    assert fresh_generator().random() != fresh_generator().random()


def test_the_stated_temperature_is_what_the_argmax_was_calibrated_for() -> None:
    circuit = served_circuit()
    bound = circuit.calibration.magnitudes["logits"]
    assert highest_temperature(circuit, bound) == 2.0
    assert highest_temperature(circuit, bound, allowed=0.5) == 0.5
    assert highest_temperature(circuit, bound, allowed=9.0) == 2.0  # an operator can lower it, not raise it
    assert highest_temperature(circuit, 0.1 * gumbel_bound(64)) == pytest.approx(0.1)  # more noise would not fit
    argmax = circuit.calibration.argmax
    assert argmax is not None
    greedy = replace(circuit.calibration, argmax=replace(argmax, temperature=0.0))  # as in older files
    assert highest_temperature(replace(circuit, calibration=greedy), bound) == 0.0


@pytest.mark.parametrize("kind", ["heat", "calibrated"])
def test_the_embedded_circuits_state_a_temperature(kind: str) -> None:
    circuit = Circuit.load(default_circuit(kind))
    argmax = circuit.calibration.argmax
    assert argmax is not None
    assert argmax.temperature == 1.0
    assert 0.0 <= argmax.near_ties < 1e-3
    assert highest_temperature(circuit, circuit.calibration.magnitudes["logits"]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("text", ["It was a", "The little dog", "She was"])
def test_the_default_model_samples_from_softmax(text: str) -> None:
    """The embedded circuit on its plan, at the temperature it states; three quarters of it fails the same test.

    Not strict: about one draw in some thousands is a tie of three, weaker than any row of the calibration, and its
    inverse root passes the planned magnitude by a fifth. Its word is right all the same: every row is checked.
    """
    circuit = Circuit.load(default_circuit())
    made = plan(circuit, preset("insecure-native-12"), programs=("generate", "prompt", "sample"))
    prefix = Tokenizer.from_str(circuit.tokenizer["tokenizer.json"].decode()).encode(text).ids
    logits = circuit.run(prefix)[-1]
    rows = draw(made, circuit, prefix, 1.0, seed=1, batch=250, strict=False)
    assert p_value(rows.argmax(-1), logits, 1.0) > 0.001
    rng = np.random.default_rng(1)
    wanted = [int((logits + gumbel_noise(rng, logits.size, 1.0)).argmax()) for _ in range(DRAWS)]
    two = np.sort(rows, axis=-1)[:, -2:]
    tied = two[:, 0] > 0.5 * two[:, 1]
    assert tied.mean() < 0.02
    assert (rows.argmax(-1) == wanted)[~tied].all()
    assert two[:, 1].min() > 0.25
    cooler = draw(made, circuit, prefix, 0.75, seed=2, batch=250, strict=False)
    assert p_value(cooler.argmax(-1), logits, 1.0) < 0.001
