# SPDX-License-Identifier: Apache-2.0
"""Two engines in lockstep: silent where they agree, and where one errs the step that did it is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heatfhe.client.keyring_clear import ClearKeyring
from heatfhe.client.keyring_native import NativeKeyring
from heatfhe.engine import BootstrapNoise, ClearEngine, MemoryKeys, key_request
from heatfhe.engine.clear import ClearValue
from heatfhe.engine.native import NativeEngine
from heatfhe.evaluation.encrypted import Endpoint
from heatfhe.evaluation.lockstep import by_place, jumps, lockstep, logit_bits, telling
from heatfhe.planning import Plan, plan
from heatfhe.planning.params import preset
from tests.tiny import tiny_circuit

CIRCUIT = tiny_circuit(layers=1, width=16, vocabulary=32, context=16)
PARAMS = preset("insecure-native-11")
TOKENS = (3, 7)


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(CIRCUIT, PARAMS, programs=("logits",))


def endpoint(made: Plan, engine: ClearEngine) -> Endpoint:
    ring = ClearKeyring(key_request(made))
    return Endpoint(engine, ring.encrypt, ring.decrypt)


class OneWrongProduct(ClearEngine):
    """Adds 1e-3 to its n-th product of two values."""

    wrong = 5

    def multiply(self, a: ClearValue, b: ClearValue) -> ClearValue:
        out = super().multiply(a, b)
        self.wrong -= 1
        return ClearValue(out.slots + 1e-3, out.level) if self.wrong == 0 else out


def test_equal_engines_differ_nowhere(made: Plan) -> None:
    seen, rows = lockstep(made, CIRCUIT, endpoint(made, ClearEngine(PARAMS, strict=False)), TOKENS)
    assert {s.position for s in seen} == {0, 1}
    assert max(s.error for s in seen) == max(s.own for s in seen) == 0.0
    assert all(logit_bits(a, b) == 60.0 for a, b in rows)
    clear = CIRCUIT.run(np.array([TOKENS]))[0]
    assert max(np.abs(a - c).max() for (a, _), c in zip(rows, clear)) < 1e-9  # the first row is the true one


def test_the_step_that_errs_is_the_only_one_with_an_error_of_its_own(made: Plan) -> None:
    seen, rows = lockstep(made, CIRCUIT, endpoint(made, OneWrongProduct(PARAMS, strict=False)), TOKENS[:1])
    wrong = [s for s in seen if s.own > 1e-12]
    products = [i for i, s in enumerate(made.program("logits").steps) if s.kind == "multiply"]
    assert [s.step for s in wrong] == [products[4]]
    assert wrong[0].own == pytest.approx(1e-3) == wrong[0].error
    later = [s for s in seen if s.step > wrong[0].step]
    assert sum(s.error > 1e-9 for s in later) > len(later) / 2  # carried on, not added
    assert jumps(seen, 1) == wrong
    assert logit_bits(*rows[0]) < 30


def test_noise_is_added_by_refreshes_alone(made: Plan) -> None:
    noise = BootstrapNoise(sigma=1e-6)
    noisy = ClearEngine(PARAMS, noise=noise, rng=np.random.default_rng(0), strict=False)
    seen, _ = lockstep(made, CIRCUIT, endpoint(made, noisy), TOKENS)
    assert {s.kind for s in seen if s.own > 1e-12} <= {"bootstrap", "bootstrap_pair"}
    added = [s for s in seen if s.bound]
    assert len(added) >= len(TOKENS) * len(made.program("logits").bootstraps())
    assert all(0 < s.own < 1e-5 for s in added)
    assert max(s.own for s in added) > 1e-6
    places = by_place(seen)
    assert sum(p["refreshes"] for p in places) == len(added)
    assert all(0 < p["filled"] <= 1 for p in places if p["refreshes"])
    assert places[-1]["place"] == "head"
    assert places[-1]["last"] < places[0]["first"] == 60.0


def test_steps_that_are_not_looked_at_are_charged_to_the_next_one_that_is(made: Plan) -> None:
    wrong = endpoint(made, OneWrongProduct(PARAMS, strict=False))
    seen, _ = lockstep(made, CIRCUIT, wrong, TOKENS[:1], look=lambda step: step.kind == "bootstrap")
    assert {s.kind for s in seen} == {"bootstrap"}
    assert sum(s.own > 1e-12 for s in seen) >= 1
    few, _ = lockstep(made, CIRCUIT, endpoint(made, ClearEngine(PARAMS, strict=False)), TOKENS[:1], look=telling)
    assert 0 < len(few) < len(made.program("logits").steps) / 2


def test_the_native_engine_adds_little_at_any_step(made: Plan) -> None:
    request = key_request(made)
    ring = NativeKeyring(request)
    engine: Any = NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())))
    seen, rows = lockstep(made, CIRCUIT, Endpoint(engine, ring.encrypt, ring.decrypt), TOKENS[:1])
    products = [s.own for s in seen if not s.bound]
    assert max(products) < 1e-6  # 2^-35 a rescale, times the root of the ring dimension
    assert max(s.own / max(1.0, s.bound) for s in seen if s.bound) < 2.0**-PARAMS.promised_bits
    assert logit_bits(*rows[0]) > 10
