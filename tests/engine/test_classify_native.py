# SPDX-License-Identifier: Apache-2.0
"""32 digits under encryption, at toy parameters: the labels of the clear engine, and logits to the promised bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("numba", reason="the native engine on a CPU needs numba")
pytest.importorskip("sklearn", reason="the digits need scikit-learn")

import torch

from heatfhe.circuit import Circuit
from heatfhe.client import open_engine
from heatfhe.engine import ClearEngine, Conversation, Runner, key_request
from heatfhe.images import digits
from heatfhe.lowering import export
from heatfhe.planning import plan, preset
from heatfhe.ranges import calibrate
from heatfhe.sites import prepare

IMAGES = 32


def trained_circuit() -> Circuit:
    """The ViT of runs/vit_digits.py, trained for a few epochs and calibrated."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=8, patch_size=2, num_channels=1, hidden_size=64, num_hidden_layers=2, num_labels=10,
            num_attention_heads=2, intermediate_size=128, layer_norm_eps=1e-5, initializer_range=0.1,
        )
    )  # fmt: skip
    pixels, labels = (torch.from_numpy(a) for a in digits())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for update in range(200):
        picked = torch.arange(64 * update, 64 * (update + 1)) % len(pixels)
        loss = model(pixel_values=pixels[picked], labels=labels[picked]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    prepared = prepare(model.eval())
    return export(prepared, calibrate(prepared, [pixels[:256]], 1e-2, margin=1.3), name="digits")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_32_encrypted_images_have_the_clear_engines_labels() -> None:
    circuit = trained_circuit()
    assert circuit.grid is not None
    pixels, wanted = (a[:IMAGES] for a in digits(held_out=True))
    made = plan(circuit, preset("insecure-native-12-r40"))
    packing, level = made.packing.tokens, made.program("classify").inputs["x"].level
    request = key_request(made)
    clear = ClearEngine(made.params, request=request)
    ring, engine = open_engine("native", request, threads=1)
    ours, theirs = (Conversation(Runner(made, e, made.source(circuit))) for e in (engine, clear))
    found: list[tuple[Any, Any]] = []
    for image in pixels:
        blocks = packing.pack_image(circuit.grid.project(image, circuit.folded.token))
        open_ = packing.unpack_vocabulary([v.slots for v in theirs.classify([clear.value(v, level) for v in blocks])])
        parts = ours.classify([engine.parse(ring.encrypt(v, level=level)) for v in blocks])
        found.append((packing.unpack_vocabulary([ring.decrypt(engine.dump(v)) for v in parts]), open_))
    secret, expected = (np.array(side) for side in zip(*found))
    assert secret.argmax(-1).tolist() == expected.argmax(-1).tolist()
    assert np.abs(secret - expected).max() < 2e-2 * np.abs(expected).max()
    assert np.abs(expected - circuit.run(pixels)[:, 0]).max() < 1e-8 * np.abs(expected).max()
    assert (secret.argmax(-1) == wanted).mean() > 0.9


@pytest.mark.slow
def test_an_image_of_several_ciphertexts() -> None:
    """Rows in more than one block, whose solvers share a ciphertext: logits to the bits of a single token's."""
    from tests.vit_tiny import exported

    _, images, circuit = exported(3)
    assert circuit.grid is not None
    made = plan(circuit, preset("insecure-native-11"))
    packing, level = made.packing.tokens, made.program("classify").inputs["x"].level
    clear = ClearEngine(made.params, request=key_request(made))
    ring, engine = open_engine("native", key_request(made), threads=1)
    blocks = packing.pack_image(circuit.grid.project(images[0].numpy(), circuit.folded.token))
    assert len(blocks) == 3
    ours, theirs = (Conversation(Runner(made, e, made.source(circuit))) for e in (engine, clear))
    parts = ours.classify([engine.parse(ring.encrypt(v, level=level)) for v in blocks])
    secret = packing.unpack_vocabulary([ring.decrypt(engine.dump(v)) for v in parts])
    open_ = packing.unpack_vocabulary([v.slots for v in theirs.classify([clear.value(v, level) for v in blocks])])
    assert np.abs(secret - open_).max() < 2.0**-14 * np.abs(open_).max()
