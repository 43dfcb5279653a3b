# SPDX-License-Identifier: Apache-2.0
"""Laws 1, 2, 4 and 6 over random ViTs: full rows, a class token, images and patches of any sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.circuit import Circuit
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.planning import Plan, plan
from heatfhe.planning.pack import power_of_two
from heatfhe.sites import prepare, restore
from tests.gpt2_tiny import worst
from tests.planning.clear_run import clear_params
from tests.vit_tiny import exported, random_images, tiny_vit

SEEDS = [pytest.param(seed, marks=() if seed < 6 else pytest.mark.slow) for seed in range(100)]


@pytest.mark.parametrize("seed", SEEDS)
def test_law_1_restored_is_the_original(seed: int) -> None:
    model = tiny_vit(seed)
    images = random_images(model, seed, count=2)
    classes = [type(m) for m in model.modules()]
    with torch.no_grad():
        before = model(images).logits
        state = {k: v.clone() for k, v in model.state_dict().items()}
        prepared = prepare(model)
        assert worst(prepared(images), before[:, None]) < 1e-5
        assert list(model.state_dict()) == list(state)
        assert restore(prepared if seed % 2 else model) is model
        assert torch.equal(model(images).logits, before)
    assert all(torch.equal(model.state_dict()[k], state[k]) for k in state)
    assert [type(m) for m in model.modules()] == classes


@pytest.mark.parametrize("seed", SEEDS)
def test_law_2_deployed_is_the_circuit(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    prepared, images, circuit = exported(seed)
    found = circuit.run(images.numpy())
    assert worst(prepared.logits(images, "float64"), found) < 1e-9
    assert worst(prepared.logits(images, "float32"), found) < 1e-4
    folder = tmp_path_factory.mktemp("circuit") / "vit"
    circuit.save(folder)
    again = Circuit.load(folder)
    assert again.digest == circuit.digest
    assert worst(again.run(images[3].numpy()), found[3]) < 1e-12


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_4_and_6_the_circuit_is_its_plan_and_the_trace_is_public(seed: int) -> None:
    """As few rows to a ciphertext as there may be and more, one ciphertext of scores and several."""
    _, images, circuit = exported(seed)
    shape = circuit.shape
    inner = power_of_two(shape.head_width)
    padded = power_of_two(shape.heads) * inner
    least = power_of_two(-(-shape.context // inner))
    wanted = circuit.run(images[:2].numpy())[:, 0]
    for slots in (least * padded, (4, 64)[seed % 2] * padded):
        made = plan(circuit, clear_params(slots))
        traces: list[list[Any]] = [[], []]
        found = [classify(made, circuit, image.numpy(), seen.append) for image, seen in zip(images, traces)]
        assert np.abs(np.array(found) - wanted).max() < 1e-8 * np.abs(wanted).max()
        assert traces[0] == traces[1]
        assert len(traces[0]) > 50


def test_the_roots_of_all_blocks_are_taken_in_one_ciphertext() -> None:
    """A norm squares every block and multiplies it by its root: one block more is two products more, not a solver's."""
    circuit, products = exported(0)[2], {}
    name = next(iter(circuit.calibration.norms))
    for slots in (64, 128):
        program = plan(circuit, clear_params(slots)).program("classify")
        blocks = len(program.inputs["x"].values)
        products[blocks] = sum(step.name == name and step.kind == "multiply" for step in program.steps)
    assert sorted(products) == [2, 3]
    assert products[3] == products[2] + 2
    assert products[2] > 6


def classify(made: Plan, circuit: Circuit, image: Any, seen: Any) -> Any:
    """Logits of an image by the plan, on the clear engine."""
    assert circuit.grid is not None
    engine, p = ClearEngine(made.params, request=key_request(made)), made.packing.tokens
    rows = circuit.grid.project(image, circuit.folded.token)
    talk = Conversation(Runner(made, engine, made.source(circuit), trace=seen))
    out = talk.classify([engine.value(v) for v in p.pack_image(rows)])
    return p.unpack_vocabulary([part.slots for part in out])
