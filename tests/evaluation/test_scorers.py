# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods and perplexities: those of Circuit.run, whoever makes the logits, in whatever order."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.engine import BootstrapNoise, ClearEngine, key_request
from heatfhe.errors import ConfigError, DataError
from heatfhe.evaluation import CircuitScorer, Endpoint, PlanScorer, likelihoods, noise_tap, text_score
from heatfhe.evaluation.fidelity import log_softmax
from heatfhe.evaluation.scorers import Words, seed_of
from heatfhe.planning import plan
from heatfhe.stages import solved
from tests.planning.clear_run import clear_params
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
RNG = np.random.default_rng(5)
PAIRS = [
    (RNG.integers(0, 32, size=a).tolist(), RNG.integers(0, 32, size=b).tolist())
    for a, b in [(3, 2), (1, 4), (3, 2), (7, 1), (2, 3), (10, 6), (1, 1)]
]


def by_hand(circuit: Circuit, context: list[int], continuation: list[int], **options: object) -> float:
    row = [*context, *continuation][:-1]
    logs = log_softmax(circuit.run(row, **options))  # type: ignore[arg-type]
    return float(sum(logs[len(context) - 1 + i, t] for i, t in enumerate(continuation)))


def endpoint(made: object, noise: float = 0.0) -> Endpoint:
    from heatfhe.client import load_keyring
    from heatfhe.planning import Plan

    assert isinstance(made, Plan)
    ring = load_keyring("clear")(key_request(made))
    own = None if not noise else BootstrapNoise(sigma=noise)
    engine = ClearEngine(
        made.params, request=key_request(made), noise=own, rng=np.random.default_rng(0), strict=False, lenient=True
    )

    def begin(number: int) -> None:
        engine.rng = np.random.default_rng(number)

    return Endpoint(engine, ring.encrypt, ring.decrypt, begin=begin)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_log_likelihoods_are_those_of_circuit_run(batch: int) -> None:
    found = likelihoods(CircuitScorer(CIRCUIT), PAIRS, batch=batch)
    for (context, continuation), own in zip(PAIRS, found, strict=True):
        assert own.nats == pytest.approx(by_hand(CIRCUIT, context, continuation), abs=1e-9)
        assert not own.diverged


def test_noise_belongs_to_a_sequence_and_not_to_its_turn() -> None:
    scorer = CircuitScorer(CIRCUIT, sigma=1e-3, seed=4)
    found = likelihoods(scorer, PAIRS, batch=2)
    for (context, continuation), own in zip(PAIRS, found, strict=True):
        rng = np.random.default_rng(seed_of([*context, *continuation][:-1], 4))
        tap = noise_tap(solved(CIRCUIT.stages), 1e-3, rng)
        assert own.nats == pytest.approx(by_hand(CIRCUIT, context, continuation, tap=tap), abs=1e-9)
    assert likelihoods(scorer, PAIRS[::-1], batch=8) == found[::-1]
    clear = likelihoods(CircuitScorer(CIRCUIT), PAIRS)
    assert max(abs(a.nats - b.nats) for a, b in zip(found, clear, strict=True)) > 1e-5


def test_greedy_is_the_likeliest_token_at_every_position() -> None:
    context = [3, 1, 4]
    first = int(CIRCUIT.run(context)[-1].argmax())
    second = int(CIRCUIT.run([*context, first])[-1].argmax())
    other = (second + 1) % 32
    found = likelihoods(CircuitScorer(CIRCUIT), [(context, [first, second]), (context, [first, other])])
    assert [f.greedy for f in found] == [True, False]


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_plan_on_an_engine_scores_as_its_circuit(noise: float) -> None:
    made = plan(CIRCUIT, clear_params(512), programs=("logits", "generate", "prompt"))
    scorer = PlanScorer(made, CIRCUIT, endpoint(made, noise))
    found, wanted = likelihoods(scorer, PAIRS), likelihoods(CircuitScorer(CIRCUIT), PAIRS)
    off = max(abs(a.nats - b.nats) for a, b in zip(found, wanted, strict=True))
    assert off < (1e-6 if not noise else 1e-2)
    assert bool(noise) == (off > 1e-9)
    assert likelihoods(scorer, PAIRS[::-1]) == found[::-1]
    if not noise:
        assert scorer.generate([3, 1, 4], 5) == CIRCUIT.generate([3, 1, 4], 5).tokens
    distinct = {tuple([*a, *b][:-1]) for a, b in PAIRS}
    assert scorer.counts["tokens"] == 2 * sum(len(row) for row in distinct)


@dataclass(frozen=True)
class Lost(CircuitScorer):
    """Loses the logits after token 7."""

    def logits(self, rows: np.ndarray) -> np.ndarray:
        made = self.circuit.run(rows)
        made[rows == 7] = np.nan
        return made


def test_a_lost_position_is_counted_and_is_minus_infinity() -> None:
    bad, fine, before = likelihoods(Lost(CIRCUIT), [([7], [2, 3]), ([5], [2, 3]), ([7, 5], [2])])
    assert bad == replace_nats(bad, -math.inf)
    assert (bad.greedy, bad.diverged) == (False, True)
    assert math.isfinite(fine.nats)
    assert not fine.diverged
    assert math.isfinite(before.nats)  # nothing is read at the position that was lost
    assert not before.diverged


def replace_nats(found: object, nats: float) -> object:
    return replace(found, nats=nats)  # type: ignore[type-var]


def test_perplexity_of_windows_and_those_that_diverge() -> None:
    windows = np.random.default_rng(1).integers(8, 32, size=(6, 9))
    windows[2, 4] = 7
    logs = log_softmax(CIRCUIT.run(windows[:, :-1]))
    nats = -np.take_along_axis(logs, windows[:, 1:, None], -1)[..., 0]
    whole, held = text_score(CircuitScorer(CIRCUIT), windows, batch=4), text_score(Lost(CIRCUIT), windows)
    assert whole.perplexity == pytest.approx(math.exp(nats.mean()), rel=1e-12)
    assert (whole.windows, whole.diverged, whole.window) == (6, 0, 8)
    assert held.diverged == 1
    assert held.perplexity == pytest.approx(math.exp(np.delete(nats, 2, axis=0).mean()), rel=1e-12)


def test_what_does_not_fit() -> None:
    scorer = CircuitScorer(CIRCUIT)
    context = RNG.integers(0, 32, size=40).tolist()
    (cut,) = likelihoods(scorer, [(context, [1, 2])])
    assert cut.nats == pytest.approx(by_hand(CIRCUIT, context[-15:], [1, 2]), abs=1e-9)
    with pytest.raises(ConfigError, match="pair 0: a continuation of 17 tokens does not fit tiny-0, which takes 16"):
        likelihoods(scorer, [([1], [2] * 17)])
    with pytest.raises(ConfigError, match="pair 1: a context of 0 and a continuation of 1 tokens"):
        likelihoods(scorer, [([1], [2]), ([], [2])])
    with pytest.raises(ConfigError, match="give --window 16 or less"):
        text_score(scorer, np.zeros((1, 18), dtype=np.int64))
    with pytest.raises(DataError, match="has no tokenizer"):
        Words({}, "circuit x")
