# SPDX-License-Identifier: Apache-2.0
"""Images sent as encrypted rows: one job for all of them, a row of logits for each, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from heatfhe.circuit import Circuit
from heatfhe.client import Client, Conversation
from heatfhe.client.layout import Layout
from heatfhe.errors import ConfigError, DataError, WireError
from heatfhe.planning import Plan, ProgramName, plan
from heatfhe.server import ModelSource
from heatfhe.wire import JobHead, JobRequest, Refusal
from tests.server.serving import PARAMS, Joined, joined
from tests.vit_tiny import exported

SEED = 3  # 9 rows in 3 ciphertexts, padded heads


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return exported(SEED)[2]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.asarray(exported(SEED)[1].numpy())


@pytest.fixture(scope="module")
def model(circuit: Circuit, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    folder = tmp_path_factory.mktemp("vit")
    circuit.save(folder / "circuit")
    plan(circuit, PARAMS, placement="greedy").save(folder / "plan.json")
    return ModelSource(name="vit", plan=folder / "plan.json", circuit=folder / "circuit")


@pytest.fixture(scope="module")
def app(model: ModelSource, home: Path) -> Iterator[Joined]:
    with joined(model, home) as running:
        yield running


@pytest.fixture(scope="module")
def client(app: Joined) -> Iterator[Client]:
    with app.client("alice") as found:
        found.upload_keys()
        yield found


def test_labels_and_logits_are_the_circuits(client: Client, circuit: Circuit, images: np.ndarray) -> None:
    talk = Conversation()
    labels = list(client.classify(images[:3], conversation=talk))
    wanted = circuit.run(images[:3])[:, 0]
    assert labels == wanted.argmax(-1).tolist()
    trusted = 2.0 ** -np.floor(client._bits)  # what is handed out is rounded to
    assert 0 < np.abs(np.array(talk.logits) - wanted).max() <= 0.5 * trusted + 1e-9
    assert client.sessions() == []  # it was deleted


def test_two_jobs_share_a_session_and_leave_it_empty(client: Client, circuit: Circuit, images: np.ndarray) -> None:
    talk = client.open()
    head, inputs = job_of(client, images[:2])
    for _ in range(2):
        sent = client._steps()._jobs.send(talk.session, head, inputs, (), keep=True)
        found: list[np.ndarray] = []

        def take(parts: tuple[bytes, ...], found: list[np.ndarray] = found) -> bool:
            found.append(client.layout.read_labels([client.keyring.decrypt(p) for p in parts]))
            return False

        client._steps()._jobs.fetch(sent, take, lambda event: None)
        wanted = circuit.run(images[:2])[:, 0]
        assert np.abs(np.array(found) - wanted).max() < 1e-8 * np.abs(wanted).max()
        job = client._link.json("GET", "/v1/jobs")["jobs"][-1]
        assert (job["mode"], job["steps"], job["inputs"], job["units"]) == ("classify", 2, len(inputs), 2)
    again = client.open(talk.session)
    assert (again.position, again.pending) == (0, False)
    client.delete_session(talk.session)


def job_of(client: Client, images: np.ndarray, **changes: int) -> tuple[JobHead, list[bytes]]:
    layout = client.layout
    blocks = [v for rows in client.bundle.image_rows(images) for v in layout.place_blocks(rows)]
    inputs = [client.keyring.encrypt(v, level=layout.block_level) for v in blocks]
    head = JobHead(
        config_id=client.config.config_id, plan=client.config.plan, key_set=client.upload_keys(),
        program=ProgramName.CLASSIFY, steps=len(images), start=0, inputs=len(inputs),
    )  # fmt: skip
    return replace(head, **changes), inputs  # type: ignore[arg-type]


def test_the_configuration_says_how_an_image_comes(client: Client, model: ModelSource, images: np.ndarray) -> None:
    made = Plan.load(model.plan)
    said = client.config.layout["image"]
    assert said == {"tokens": made.packing.t, "blocks": made.packing.tokens.blocks, "level": PARAMS.levels}
    assert client.config.programs == ("classify",)
    rows = client.bundle.image_rows(images[:1])[0]
    placed = made.packing.tokens.pack_image(rows)
    assert np.array_equal(client.layout.place_blocks(rows), placed)
    assert not rows[0].any()
    assert np.abs(rows.mean(axis=-1)).max() < 1e-12  # a stream without a mean


def test_what_is_refused_before_anything_is_sent(client: Client, images: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"an image of 1 x 8 x 7, the model takes 1 x 8 x 8"):
        client.classify(images[:1, :, :, :7])
    with pytest.raises(ConfigError, match="give 1 to 1024 images at once"):
        client.classify(images[:0])
    with pytest.raises(ConfigError, match="classifies images and continues no text"):
        client.generate([1, 2], 1)
    config = client.config
    layout = {**config.layout, "image": {**config.layout["image"], "blocks": 1}}
    with pytest.raises(WireError, match="rows of an image do not fit"):
        Layout.of(replace(config, layout=layout))


def test_what_a_server_refuses(client: Client, images: np.ndarray) -> None:
    head, inputs = job_of(client, images[:2])
    for changes in ({"start": 1}, {"prefill": (2, 2)}, {"steps": 4}):
        with pytest.raises(WireError, match="mode classify starts at 0"):
            replace(head, **changes)  # type: ignore[arg-type]
    talk = client.open()
    short = replace(head, inputs=len(inputs) - 2)
    with pytest.raises(Refusal, match="inputs for 2 images: this plan takes 3 for each"):
        client._steps()._jobs.send(talk.session, short, inputs[:-2], (), keep=False)
    text = JobRequest(head=replace(head, program=ProgramName.LOGITS, steps=1), inputs=tuple(inputs))
    with pytest.raises(Refusal, match="has no program 'logits'"):
        client._steps()._jobs.send(talk.session, text.head, inputs, (), keep=False)
    client.delete_session(talk.session)
