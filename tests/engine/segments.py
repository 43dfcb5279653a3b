# SPDX-License-Identifier: Apache-2.0
"""Parts of a plan under encryption: steps of some operators, fed with the clear engine's values, compared with them."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heatfhe.circuit import Circuit
from heatfhe.ckks.params import Params
from heatfhe.client.keyring_openfhe import OpenFHEKeyring
from heatfhe.engine import ClearEngine, Conversation, KeyRequest, Runner, key_request
from heatfhe.engine.openfhe import OpenFHEEngine
from heatfhe.planning import Plan, Step, plan
from tests.engine.conformance import bits


@dataclass(frozen=True)
class Outcome:
    """What a part gave: the fewest bits of its results, its bootstraps, and the peak memory of the process in GiB."""

    bits: float
    bootstraps: int
    rotations: int
    peak_gib: float


def clear_values(p: Plan, circuit: Circuit, tokens: list[int]) -> tuple[Runner, dict[int, Any]]:
    """Every value of the prompt program at the last token's position, on the clear engine."""
    engine = ClearEngine(p.params, request=key_request(p))
    source = p.source(circuit)
    decode = Conversation(Runner(p, engine, source))
    level = p.program("prompt").inputs["x"].level
    rows = [[engine.value(p.packing.pack_residual(circuit.folded.token[t]), level)] for t in tokens]
    for row in rows[:-1]:
        decode.prompt(row)
    runner = Runner(p, engine, source)
    values = runner._given("prompt", {**decode.cache, "x": rows[-1]}, decode.position)
    for step in p.program("prompt").steps:
        results = runner._execute(step, [values[a] for a in step.args], decode.position)
        values.update(zip(step.results, results))
    return runner, values


def run_part(
    circuit: Circuit, params: Params, tokens: list[int], wanted: Callable[[Step], bool], threads: int = 1
) -> Outcome:
    """Run the wanted steps of the last token on OpenFHE with exactly the keys they need.

    One set of bootstrap keys, of the longest period, serves the shorter ones too (a value that repeats every 4 slots
    repeats every 128): slower, and half the memory.
    """
    p = plan(circuit, params, programs=("prompt",))
    runner, clear = clear_values(p, circuit, tokens)
    steps = [s for s in p.program("prompt").steps if wanted(s)]
    longest = max(s.period for s in steps)
    steps = [replace(s, period=longest) if s.period else s for s in steps]
    assert not any(s.kind == "linear" or s.modulus for s in steps)
    request = KeyRequest(
        params=params,
        rotations=tuple(k for s in steps for k in s.by),
        bootstrap_periods=(longest,),
    )
    ring = OpenFHEKeyring(request)
    secret = Runner(p, OpenFHEEngine(request, ring.process_keys(), threads=threads), runner.source)
    values: dict[int, Any] = {}
    worst = 60.0
    made = {r for s in steps for r in s.results}
    read = {a for s in p.program("prompt").steps if not wanted(s) for a in s.args}
    for step in steps:
        for a in step.args:
            if a not in values:
                assert a not in made
                values[a] = secret.engine.parse(ring.encrypt(clear[a].slots, level=clear[a].level))
        results = secret._execute(step, [values[a] for a in step.args], len(tokens) - 1)
        for number, value in zip(step.results, results):
            assert secret.engine.level(value) == step.level == clear[number].level
            values[number] = value
            if number in read:
                size = max(1.0, float(np.abs(clear[number].slots).max()))
                worst = min(worst, bits(ring.decrypt(secret.engine.dump(value)) / size, clear[number].slots / size))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Outcome(worst, sum(s.kind.startswith("bootstrap") for s in steps), len(request.rotations), peak)


def norm_and_softmax(step: Step) -> bool:
    """The first block's first norm, and its softmax."""
    return (step.name, step.operator) in (("h.0.ln_1", "layernorm"), ("h.0.attn", "softmax"))
