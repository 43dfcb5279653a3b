# SPDX-License-Identifier: Apache-2.0
"""Really encrypted tokens between a client and a server process, on every engine that loads here (slow run)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from heatfhe.approx import gumbel_noise
from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.client import Client, Sampler, load_keyring
from heatfhe.client.local import local_server
from heatfhe.engine import ClearEngine, Conversation, Runner
from heatfhe.engine.openfhe.context import load_openfhe
from heatfhe.errors import HeatError
from heatfhe.planning import Plan
from tests.server.serving import served_circuit

PROGRAMS = {"native": "insecure-native", "openfhe": "insecure-openfhe"}


def need(engine: str) -> None:
    try:
        load_keyring(engine)
        if engine == "openfhe":
            load_openfhe()
    except (HeatError, ImportError) as err:
        pytest.skip(f"the {engine} engine does not load here: {err}")


def clear_tokens(
    plan: Plan, circuit: Circuit, prompt: list[int], count: int, noise: list[np.ndarray] | None = None
) -> list[int]:
    """What the clear engine makes of the same plan: greedily, or with this noise at every step."""
    engine = ClearEngine(plan.params)
    decode = Conversation(Runner(plan, engine, plan.source(circuit)))
    rows = [[engine.value(plan.packing.pack_residual(circuit.folded.token[t]))] for t in prompt]
    for row in rows[:-1]:
        decode.prompt(row)

    def step(k: int) -> list[Any]:
        x = rows[-1] if k == 0 else None
        if noise is None:
            return decode.generate(x)
        return decode.sample([engine.value(part) for part in plan.packing.pack_vocabulary(noise[k])], x)

    made = [step(k) for k in range(count)]
    return [int(plan.packing.unpack_vocabulary([v.slots for v in row]).argmax()) for row in made]


def ask(
    circuit: Circuit, folder: Path, params: str, prompt: list[int], count: int, *more: str, **options: object
) -> tuple[list[int], Plan]:
    """Tokens from a server process on this machine, and the plan it ran."""
    circuit.save(folder / "circuit")
    arguments = [str(folder / "circuit"), "--params", params, "--folder", str(folder / "server"), "--insecure", *more]
    with (
        local_server(arguments, seconds=600) as server,
        Client(server.url, token=server.token, folder=folder / "client", insecure=True) as client,
    ):
        tokens = list(client.generate(prompt, count, **options).tokens)
    return tokens, Plan.load(next((folder / "server" / "plans").glob("*.json")))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["native", pytest.param("openfhe", marks=pytest.mark.openfhe)])
def test_a_tiny_model_encrypted_equals_clear(engine: str, tmp_path: Path) -> None:
    need(engine)
    circuit, prompt = served_circuit(), [1, 2, 3]
    tokens, plan = ask(circuit, tmp_path, f"{PROGRAMS[engine]}-11", prompt, 4)
    assert tokens == clear_tokens(plan, circuit, prompt, 4)


@pytest.mark.slow
def test_a_prompt_at_once_encrypted_equals_clear(tmp_path: Path) -> None:
    need("native")
    circuit, prompt = served_circuit(2), [1, 2, 3, 9, 4, 30, 8, 5, 17]
    tokens, plan = ask(circuit, tmp_path, "insecure-native-11", prompt, 2, "--prefill", "16")
    assert plan.prefill == 16
    assert tokens == clear_tokens(plan, circuit, prompt, 2)


def drawn(seed: int, vocabulary: int, count: int, temperature: float) -> list[np.ndarray]:
    """The noise a client draws from a generator of this seed."""
    rng = np.random.default_rng(seed)
    return [gumbel_noise(rng, vocabulary, temperature) for _ in range(count)]


@pytest.mark.slow
def test_sampling_and_interactive_mode_encrypted(tmp_path: Path) -> None:
    need("native")
    circuit, prompt = served_circuit(), [7, 7, 8, 20]
    options = {"sampler": Sampler(temperature=2.0), "rng": np.random.default_rng(5)}
    sampled, plan = ask(circuit, tmp_path / "a", "insecure-native-11", prompt, 3, **options)
    assert sampled == clear_tokens(plan, circuit, prompt, 3, drawn(5, 64, 3, 2.0))
    chosen, _ = ask(circuit, tmp_path / "b", "insecure-native-11", prompt, 2, interactive=True)
    assert chosen[0] == int(circuit.run(prompt)[-1].argmax())


def default_model() -> tuple[Circuit, list[int]]:
    """The embedded circuit, and a prompt in words: inside the domains it was calibrated on."""
    circuit = Circuit.load(default_circuit())
    tokenizer = Tokenizer.from_str(circuit.tokenizer["tokenizer.json"].decode())
    return circuit, list(tokenizer.encode("Once upon a time", add_special_tokens=False).ids)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_default_model_generates_eight_tokens_interactively(tmp_path: Path) -> None:
    """Encrypted logits come back, the client chooses: equal to the circuit's own greedy tokens."""
    need("native")
    circuit, prompt = default_model()
    tokens, _ = ask(circuit, tmp_path, "insecure-native-12", prompt, 8, interactive=True)
    wanted = list(prompt)
    for _ in range(8):
        wanted.append(int(circuit.run(wanted)[-1].argmax()))
    assert tokens == wanted[len(prompt) :]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["native", pytest.param("openfhe", marks=pytest.mark.openfhe)])
def test_the_default_model_generates_eight_tokens_encrypted(engine: str, tmp_path: Path) -> None:
    need(engine)
    circuit, prompt = default_model()
    tokens, plan = ask(circuit, tmp_path, f"{PROGRAMS[engine]}-12", prompt, 8)
    assert tokens == clear_tokens(plan, circuit, prompt, 8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_default_model_samples_eight_tokens_encrypted(tmp_path: Path) -> None:
    """Noise at the highest temperature the circuit states: the tokens are those of the same noise in the clear."""
    need("native")
    circuit, prompt = default_model()
    options = {"sampler": Sampler(temperature=1.0), "rng": np.random.default_rng(3)}
    tokens, plan = ask(circuit, tmp_path, "insecure-native-12", prompt, 8, **options)
    assert tokens == clear_tokens(plan, circuit, prompt, 8, drawn(3, circuit.shape.vocabulary, 8, 1.0))
    assert tokens != clear_tokens(plan, circuit, prompt, 8)  # the noise was felt
