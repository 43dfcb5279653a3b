# SPDX-License-Identifier: Apache-2.0
"""A whole plan under encryption: a prompt step and two tokens of a tiny circuit, equal to the clear engine's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heatfhe.circuit import Circuit
from heatfhe.cli.model_source import circuit_folder
from heatfhe.client.keyring_openfhe import OpenFHEKeyring
from heatfhe.engine import ClearEngine, Conversation, Keyring, LinearMap, Runner, key_request
from heatfhe.engine.openfhe import OpenFHEEngine
from heatfhe.engine.openfhe.context import load_openfhe
from heatfhe.errors import HeatError
from heatfhe.evaluation import Endpoint, free_running
from heatfhe.planning import Plan, cost_table, plan, preset
from tests.engine.conformance import bits
from tests.engine.segments import norm_and_softmax, run_part
from tests.tiny import tiny_circuit

try:
    load_openfhe()
except HeatError as err:
    pytest.skip(str(err), allow_module_level=True)

pytestmark = pytest.mark.openfhe
Real = NDArray[np.float64]


class Watched:
    """An engine whose bootstraps are looked into by the key's owner: their inputs must keep to the plan's bounds.

    Rotations are written down, to be compared with the plan's.
    """

    def __init__(self, engine: OpenFHEEngine, ring: Keyring) -> None:
        self._engine, self._ring = engine, ring
        self.bootstraps = 0
        self.worst = 0.0
        self.turned: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def rotate(self, a: Any, by: int) -> Any:
        self.turned.add(by)
        return self._engine.rotate(a, by)

    def rotate_many(self, a: Any, by: Sequence[int]) -> Any:
        self.turned.update(by)
        return self._engine.rotate_many(a, by)

    def add_rotations(self, a: Any, by: Sequence[int]) -> Any:
        self.turned.update(by)
        return self._engine.add_rotations(a, by)

    def linear(self, a: Any, m: LinearMap) -> Any:
        self.turned.update(m.rotations)
        return self._engine.linear(a, m)

    def bootstrap(self, a: Any, *, period: int, bound: float) -> Any:
        self._look(a, period, bound)
        return self._engine.bootstrap(a, period=period, bound=bound)

    def bootstrap_pair(self, a: Any, b: Any, *, period: int, bound: float) -> Any:
        self._look(a, period, bound)
        self._look(b, period, bound)
        self.bootstraps -= 1
        return self._engine.bootstrap_pair(a, b, period=period, bound=bound)

    def _look(self, a: Any, period: int, bound: float) -> None:
        values = self._ring.decrypt(self._engine.dump(a))
        self.bootstraps += 1
        self.worst = max(self.worst, float(np.abs(values).max()) / bound)
        assert float(np.abs(values - np.roll(values, period)).max()) < 1e-3 * bound, "the value has another period"


@dataclass
class Told:
    """What a run gave: one-hot rows and the caches, decrypted."""

    rows: list[Real]
    cache: dict[str, list[NDArray[Any]]]


def tell(p: Plan, circuit: Circuit, engine: Any, put: Any, get: Any, prompt: list[int], count: int) -> Told:
    """Prompt steps, then free-running tokens."""
    decode = Conversation(Runner(p, engine, p.source(circuit)))
    packing, rows = p.packing, []
    x = [packing.pack_residual(circuit.folded.token[t]) for t in prompt]
    level = p.program("generate").inputs["x"].level
    for row in x[:-1]:
        decode.prompt([put(row, level)])
    for i in range(count):
        token = decode.generate([put(x[-1], level)] if i == 0 else None)
        rows.append(packing.unpack_vocabulary([get(part) for part in token]))
    cache = {name: [get(v) for v in values] for name, values in decode.cache.items()}
    return Told(rows, cache)


def check_plan(circuit: Circuit, params_name: str, prompt: list[int], count: int, *, threads: int = 1) -> Watched:
    """Run a circuit's plan on both engines and compare tokens, one-hot rows and caches."""
    params = preset(params_name)
    p = plan(circuit, params)
    request = key_request(p)
    clear = ClearEngine(params, request=request)
    told = tell(p, circuit, clear, clear.value, lambda v: v.slots, prompt, count)
    ring = OpenFHEKeyring(request)
    watched = Watched(OpenFHEEngine(request, ring.process_keys(), threads=threads), ring)
    secret = tell(
        p,
        circuit,
        watched,
        lambda row, level: watched.parse(ring.encrypt(row, level=level)),
        lambda v: ring.decrypt(watched.dump(v)),
        prompt,
        count,
    )
    assert [int(np.argmax(r)) for r in secret.rows] == [int(np.argmax(r)) for r in told.rows]
    assert [int(np.argmax(r)) for r in told.rows] == list(circuit.generate(prompt, count).tokens)
    for a, b in zip(secret.rows, told.rows, strict=True):
        assert bits(a, b) >= 12.0
    for name, values in told.cache.items():
        for got, wanted in zip(secret.cache[name], values, strict=True):
            size = max(1.0, float(np.abs(wanted).max()))
            assert bits(got / size, wanted / size) >= 14.0
    ran = ["prompt"] * (len(prompt) - 1) + ["generate"] * count
    planned = sum(len(list(p.program(name).bootstraps())) for name in ran)
    assert watched.bootstraps == planned
    steps = [s for name in ran for s in p.program(name).steps]
    still = {k for s in steps if not s.modulus for k in s.by}
    still |= {k for s in steps if s.kind == "linear" for k in p.products[s.product].rotations}
    assert still - {0} <= watched.turned - {0} <= set(p.rotations)
    assert watched.worst <= 1.001
    return watched


def test_one_prompt_step_and_two_generated_tokens() -> None:
    check_plan(tiny_circuit(layers=1, width=16, vocabulary=32, context=16), "insecure-openfhe-11", [3, 7], 2)


@pytest.mark.slow
def test_two_layers_four_tokens() -> None:
    check_plan(tiny_circuit(layers=2, width=16, vocabulary=32, context=16), "insecure-openfhe-11", [3, 7, 5], 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["default", "default-calibrated"])
def test_the_default_model_generates_the_circuits_own_tokens(name: str) -> None:
    circuit, params = Circuit.load(circuit_folder(name)), preset("insecure-openfhe-12")
    p = plan(circuit, params, context=16)
    request = key_request(p)
    ring = OpenFHEKeyring(request)
    endpoint = Endpoint(OpenFHEEngine(request, ring.process_keys(), threads=2), ring.encrypt, ring.decrypt)
    found = free_running(p, circuit, endpoint, [382, 326], 4, costs=cost_table("openfhe-cpu-12"))
    assert found.tokens == found.wanted
    assert found.bootstraps == len(p.program("prompt").bootstraps()) + 4 * len(p.program("generate").bootstraps())


def test_a_norm_and_a_softmax_by_themselves() -> None:
    circuit = tiny_circuit(layers=2, width=16, vocabulary=32, context=16)
    outcome = run_part(circuit, preset("insecure-openfhe-11"), [3, 7, 5], norm_and_softmax)
    assert outcome.bits >= 15.0
    assert outcome.bootstraps >= 3


SECURE = """
from heatfhe.circuit import Circuit
from heatfhe.cli.model_source import circuit_folder
from heatfhe.planning import preset
from tests.engine.segments import norm_and_softmax, run_part
circuit = Circuit.load(circuit_folder("default"))
o = run_part(circuit, preset("openfhe-16"), [424, 437, 259], norm_and_softmax, threads=2)
print(o.bits, o.bootstraps, o.rotations, o.peak_gib)
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_norm_and_a_softmax_of_the_default_model_on_the_large_ring_within_16_gib() -> None:
    done = subprocess.run([sys.executable, "-c", SECURE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, bootstraps, _, peak = map(float, done.stdout.split())
    assert kept >= 12.0
    assert bootstraps >= 5
    assert peak < 16.0
