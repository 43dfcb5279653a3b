# SPDX-License-Identifier: Apache-2.0
"""Laws 1 and 2 and calibration's promise on real weights: GPT-2 small at its full context. Half an hour on one core.

HEATFHE_WEIGHTS is the folder of an unpacked GPT-2 small checkpoint, HEATFHE_DATA one that holds wiki.finetune.txt.xz
and wiki.heldout.txt.xz. With MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 freed memory is kept for the next
window, which saves half of the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.circuit import Circuit
from heatfhe.lowering import export, tokenizer_files
from heatfhe.ranges import calibrate
from heatfhe.sites import Prepared, prepare, restore
from tests.gpt2_tiny import worst

WEIGHTS, DATA = (os.environ.get(name) for name in ("HEATFHE_WEIGHTS", "HEATFHE_DATA"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not (WEIGHTS and DATA), reason="HEATFHE_WEIGHTS and HEATFHE_DATA name no folders"),
]
CALIBRATION_WINDOWS, HELD_OUT_WINDOWS = 128, 20


def windows(name: str, count: int, context: int = 1024) -> Iterator[np.ndarray]:
    from tokenizers import Tokenizer

    from heatfhe.training.data import read_documents

    tokenizer = Tokenizer.from_str(tokenizer_files(str(WEIGHTS))["tokenizer.json"].decode())
    held: list[int] = []
    for document in read_documents(Path(str(DATA)) / name):
        held += [tokenizer.token_to_id("<|endoftext|>"), *tokenizer.encode(document).ids]
        while len(held) > context:
            yield np.array(held[: context + 1])
            held, count = held[context:], count - 1
            if count == 0:
                return


def load() -> Any:
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(str(WEIGHTS), local_files_only=True).eval()


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(load())


@pytest.fixture(scope="module")
def circuit(prepared: Prepared) -> Circuit:
    calibration = calibrate(prepared, (w[:-1] for w in windows("wiki.finetune.txt.xz", CALIBRATION_WINDOWS)), 1e-4)
    prepared.adopt(calibration)
    return export(prepared, calibration, name="calibrated-1e-4")


def test_74_sites_and_restored_is_the_original() -> None:
    model = load()
    tokens = torch.from_numpy(next(windows("wiki.heldout.txt.xz", 1, 128))[:-1])[None]
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        before = model(tokens).logits
        prepared = prepare(model)
        assert len(prepared.sites) == 74
        prepared(tokens)
        assert torch.equal(restore(prepared)(tokens).logits, before)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_deployed_is_the_circuit(prepared: Prepared, circuit: Circuit) -> None:
    tokens = next(windows("wiki.heldout.txt.xz", 1))[:-1][:256]
    wanted = circuit.run(tokens)
    assert worst(prepared.logits(tokens, "float64"), wanted) < 1e-9
    assert worst(prepared.logits(tokens, "float32"), wanted) < 1e-4


def test_perplexity_within_half_a_percent(
    prepared: Prepared, circuit: Circuit, record_property: Callable[[str, object], None]
) -> None:
    ours, parents = [], []
    for row in windows("wiki.heldout.txt.xz", HELD_OUT_WINDOWS):
        tokens, labels = row[:-1], torch.from_numpy(row[1:])
        logits = torch.from_numpy(circuit.run(tokens))
        assert bool(torch.isfinite(logits).all())
        ours.append(float(torch.nn.functional.cross_entropy(logits, labels)))
        exact = prepared.logits(tokens, mode="exact").double()
        parents.append(float(torch.nn.functional.cross_entropy(exact, labels)))
        assert ours[-1] < parents[-1] + 0.1  # none diverges
    found, wanted = float(np.exp(np.mean(ours))), float(np.exp(np.mean(parents)))
    record_property("perplexity of the circuit and of the model", (found, wanted))
    record_property("iterations", dict(circuit.calibration.iterations()))
    record_property("largest difference of one window, in nats", max(abs(a - b) for a, b in zip(ours, parents)))
    assert abs(found / wanted - 1) < 0.005
