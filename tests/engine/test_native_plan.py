# SPDX-License-Identifier: Apache-2.0
"""A whole plan under encryption on the native engine: prompt and free-running tokens, equal to the clear engine's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("numba", reason="the native engine needs numba")

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.ckks.params import Params
from heatfhe.client.keyring_native import NativeKeyring
from heatfhe.engine import ClearEngine, Conversation, MemoryKeys, Runner, key_request
from heatfhe.engine.native import NativeEngine
from heatfhe.evaluation.drift import sample_windows
from heatfhe.planning import Plan, plan, preset
from heatfhe.planning.tally import key_bytes, weight_bytes
from heatfhe.planning.vectors import Diagonal
from tests.ckks.test_baby_steps import with_words
from tests.engine.conformance import bits
from tests.planning.clear_run import block_rows
from tests.tiny import tiny_circuit

Real = NDArray[np.float64]


def tell(p: Plan, circuit: Circuit, engine: Any, put: Any, get: Any, prompt: list[int], count: int) -> list[Real]:
    """Prompt steps, then the one-hot rows of free-running tokens."""
    decode = Conversation(Runner(p, engine, p.source(circuit)))
    x = [p.packing.pack_residual(circuit.folded.token[t]) for t in prompt]
    level = p.program("generate").inputs["x"].level
    for row in x[:-1]:
        decode.prompt([put(row, level)])
    rows = []
    for i in range(count):
        token = decode.generate([put(x[-1], level)] if i == 0 else None)
        rows.append(p.packing.unpack_vocabulary([get(part) for part in token]))
    return rows


def held_weights(engine: NativeEngine) -> int:
    """Bytes of the encoded plaintexts of linear maps that an engine keeps."""
    total = 0
    for ((use, key), _), words in engine._encodings._held.items():
        if use == "map":
            total += words.memory
        elif isinstance(key[0].vector, Diagonal):
            total += words.nbytes
    return total


def check(circuit: Circuit, params: Params, prompt: list[int], count: int) -> None:
    p = plan(circuit, params)
    request = key_request(p)
    clear = ClearEngine(params, request=request)
    told = tell(p, circuit, clear, clear.value, lambda v: v.slots, prompt, count)
    ring = NativeKeyring(request)
    keys = dict(ring.evaluation_keys())
    assert sum(map(len, keys.values())) == key_bytes(p)  # what a client is told before it makes them
    engine = NativeEngine(request, MemoryKeys(keys))
    one = Conversation(Runner(p, engine, p.source(circuit)))
    row = p.packing.pack_residual(circuit.folded.token[prompt[0]])
    one.prompt([engine.parse(ring.encrypt(row, level=p.program("prompt").inputs["x"].level))])
    assert held_weights(engine) == weight_bytes(p, "prompt")
    secret = tell(
        p, circuit, engine,
        lambda row, level: engine.parse(ring.encrypt(row, level=level)),
        lambda v: ring.decrypt(engine.dump(v)),
        prompt, count,
    )  # fmt: skip
    tokens = [int(np.argmax(row)) for row in secret]
    assert tokens == [int(np.argmax(row)) for row in told]
    assert tokens == list(circuit.generate(prompt, count).tokens)
    for a, b in zip(secret, told, strict=True):
        assert bits(a, b) >= 14.0


def test_one_prompt_step_and_two_generated_tokens() -> None:
    check(tiny_circuit(layers=1, width=16, vocabulary=32, context=16), preset("insecure-native-11"), [3, 7], 2)


def test_keys_by_level_and_fewer_baby_steps_tell_the_same() -> None:
    """Bytes of keys: a set with both words, with one of them, with none."""
    circuit, usual = tiny_circuit(layers=1, width=16, vocabulary=32, context=16), preset("insecure-native-11")
    lean = with_words(usual, cts_babies=8, key_levels=True)
    check(circuit, lean, [3], 1)
    plans = [plan(circuit, p) for p in (usual, with_words(usual, key_levels=True), lean)]
    assert plans[0].rotation_levels == ()
    assert plans[1].rotations == plans[0].rotations
    assert [p.rotation_levels for p in plans[1:]] == [plans[1].rotation_levels] * 2
    sizes = [key_bytes(p) for p in plans]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["insecure-native-11", "insecure-native-12"])
def test_two_layers_four_tokens(name: str) -> None:
    check(tiny_circuit(layers=2, width=16, vocabulary=32, context=16), preset(name), [3, 7, 5], 4)


@pytest.mark.slow
def test_a_llama_behind_a_public_prefix() -> None:
    """Rotary positions, three heads that share one of keys and values, a gate, and three plaintext positions first."""
    pytest.importorskip("torch", reason="a Llama is exported from torch")
    from tests.laws.test_prefix import exported

    circuit = exported("llama")[2]
    check(circuit, preset("insecure-native-11"), [3, 1], 2)


def check_at_once(circuit: Circuit, params: Params, prompt: list[int], tokens: int) -> None:
    """A prompt at once under encryption: a cache as good as single tokens leave (how many bits that is depends on the
    circuit: errors of the first layers grow through the others), and the clear engine's next token."""
    p = plan(circuit, params, prefill=tokens)
    request = key_request(p)
    clear, ring = ClearEngine(params, request=request), NativeKeyring(request)
    engine = NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())))
    told, secret, single = (Conversation(Runner(p, e, p.source(circuit))) for e in (clear, engine, engine))

    def sealed(row: Real, program: str) -> Any:
        return engine.parse(ring.encrypt(row, level=p.program(program).inputs["x"].level))

    def kept(talk: Conversation) -> list[float]:
        """Bits of keys and values, a layer each in the order of the layers."""
        return [
            min(bits(ring.decrypt(engine.dump(a)), b.slots) for a, b in zip(talk.cache[name], row, strict=True))
            for name, row in told.cache.items()
        ]

    rows = block_rows(p, circuit, np.array(prompt[:-1]))
    told.prefill([clear.value(row) for row in rows], len(prompt) - 1)
    secret.prefill([sealed(row, "prefill") for row in rows], len(prompt) - 1)
    for token in prompt[:-1]:
        single.prompt([sealed(p.packing.pack_residual(circuit.folded.token[token]), "prompt")])
    ours, theirs = kept(secret), kept(single)
    assert min(ours[:2]) >= 14.0  # the first layer: no error of another one is in it
    assert all(a >= b - 2.0 for a, b in zip(ours, theirs, strict=True)), (ours, theirs)
    x = p.packing.pack_residual(circuit.folded.token[prompt[-1]])
    one, other = secret.generate([sealed(x, "generate")]), told.generate([clear.value(x)])
    made = p.packing.unpack_vocabulary([ring.decrypt(engine.dump(v)) for v in one])
    assert bits(made, p.packing.unpack_vocabulary([v.slots for v in other])) >= 14.0
    assert int(np.argmax(made)) == circuit.generate(prompt, 1).tokens[0]


@pytest.mark.slow
def test_a_prompt_at_once() -> None:
    circuit = tiny_circuit(layers=2, width=16, vocabulary=32, context=16)
    check_at_once(circuit, preset("insecure-native-11"), [3, 7, 5, 1, 30, 2, 9, 9, 4, 8, 11], 16)


@pytest.mark.slow
def test_a_prompt_of_a_llama_at_once_behind_a_public_prefix() -> None:
    pytest.importorskip("torch", reason="a Llama is exported from torch")
    from tests.laws.test_prefix import exported

    _, tokens, circuit = exported("llama")
    check_at_once(circuit, preset("insecure-native-11"), tokens[0, :10].tolist(), 12)


@pytest.mark.slow
def test_32_tokens_of_the_default_model_at_once() -> None:
    circuit = Circuit.load(default_circuit("heat"))
    prompt = [int(t) for t in sample_windows(circuit, 1, 33, seed=3)[0]]
    check_at_once(circuit, preset("insecure-native-12-r40"), prompt, 32)
