# SPDX-License-Identifier: Apache-2.0
"""Sampling under encryption is softmax sampling: chi-square on the clear engine, and a wrong temperature fails it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heatfhe.client import Sampler, gumbel_noise
from heatfhe.client.layout import Layout
from heatfhe.client.sampling import fresh_generator, largest_temperature
from heatfhe.engine import ClearEngine, Decode, key_request
from heatfhe.errors import ConfigError
from heatfhe.planning import Plan, plan
from heatfhe.server.temperature import holds
from heatfhe.server.temperature import largest_temperature as measured_temperature
from heatfhe.wire import gumbel_bound
from tests.server.serving import PARAMS, served_circuit

given = pytest.importorskip("hypothesis", reason="hypothesis is a development dependency").given
st = pytest.importorskip("hypothesis.strategies")
chi2 = pytest.importorskip("scipy.stats", reason="scipy is a development dependency").chi2
DRAWS, TEMPERATURE = 2000, 2.0
PREFIXES = [(40,), (7, 7, 8, 20), (3, 50, 9)]


@pytest.fixture(scope="module")
def sampled() -> Plan:
    return plan(served_circuit(), PARAMS, programs=("generate", "prompt", "sample"), placement="greedy")


def draw(made: Plan, prefix: tuple[int, ...], temperature: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens drawn by the program ``sample`` on the clear engine, and the near one-hot rows they were read from."""
    circuit = served_circuit()
    engine = ClearEngine(made.params, request=key_request(made))
    decode = Decode(made, engine, made.source(circuit))
    inputs = [[engine.value(made.packing.pack_residual(circuit.folded.token[t]))] for t in prefix]
    for x in inputs[:-1]:
        decode.prompt(x)
    rng = np.random.default_rng(seed)
    noise = np.stack([gumbel_noise(rng, 64, temperature) for _ in range(DRAWS)])
    rows = decode.sample([engine.value(part) for part in made.packing.pack_vocabulary(noise)], inputs[-1])
    values = made.packing.unpack_vocabulary([v.slots for v in rows])
    return values.argmax(-1), values


def p_value(tokens: np.ndarray, prefix: tuple[int, ...], temperature: float) -> float:
    """Chi-square of the counts against softmax(logits / T), bins pooled to an expectation of 5 or more."""
    logits = served_circuit().run(list(prefix))[-1] / temperature
    expected = DRAWS * np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    counts = np.bincount(tokens, minlength=64).astype(float)
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
    tokens, rows = draw(sampled, prefix, TEMPERATURE, seed=1)
    assert p_value(tokens, prefix, TEMPERATURE) > 0.001
    leaders = rows.max(-1)
    second = np.sort(rows, axis=-1)[:, -2]
    ties = int((second > 0.5 * leaders).sum())
    assert leaders.min() > 0.02  # every row still names a word
    assert ties < 0.3 * DRAWS  # near ties are counted; a flat softmax has many


@pytest.mark.parametrize("prefix", PREFIXES, ids=str)
def test_a_wrong_temperature_fails_the_same_test(sampled: Plan, prefix: tuple[int, ...]) -> None:
    tokens, _ = draw(sampled, prefix, 0.7 * TEMPERATURE, seed=2)
    assert p_value(tokens, prefix, TEMPERATURE) < 0.001


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


def test_the_stated_temperature_is_one_the_schedule_holds(sampled: Plan) -> None:
    """What a server states is measured: at it the clear engine's own checks pass, far above it the schedule breaks."""
    circuit = served_circuit()
    stated = measured_temperature(circuit, cut=gumbel_bound(64), noise_bound=circuit.calibration.magnitudes["logits"])
    assert stated >= 0.4
    for prefix in PREFIXES:
        draw(sampled, prefix, stated, seed=3)  # raises if a magnitude leaves what the plan allows
    argmax = circuit.calibration.argmax
    assert argmax is not None
    logits = circuit.run([40])[-1]
    noise = np.random.default_rng(0).gumbel(size=(200, 64))
    assert holds(argmax.schedule, logits[None, :])
    assert not holds(argmax.schedule, logits + 50 * noise)
    assert measured_temperature(circuit, cut=gumbel_bound(64), noise_bound=0.1) == 0.0
