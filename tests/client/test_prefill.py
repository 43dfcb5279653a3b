# SPDX-License-Identifier: Apache-2.0
"""A prompt sent at once: a few ciphertexts for all its tokens, one unit of work, and the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heatfhe.client import Client
from heatfhe.client.layout import Layout
from heatfhe.errors import WireError
from heatfhe.planning import Plan, ProgramName, plan
from heatfhe.server import ModelSource
from heatfhe.wire import JobHead, JobRequest, Refusal
from tests.planning.clear_run import block_rows
from tests.server.serving import PARAMS, Joined, joined, served_circuit

PROMPT = [1, 2, 3, 9, 4, 30, 8, 5, 17, 60]


@pytest.fixture(scope="module")
def packed(source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """The tiny model with a plan that takes sixteen tokens, in two ciphertexts, at once."""
    path = tmp_path_factory.mktemp("packed") / "plan.json"
    plan(served_circuit(), PARAMS, programs=("generate", "prompt", "logits"), placement="greedy", prefill=16).save(path)
    return replace(source, plan=path)


@pytest.fixture(scope="module")
def app(packed: ModelSource, home: Path) -> Iterator[Joined]:
    with joined(packed, home) as running:
        yield running


@pytest.fixture(scope="module")
def client(app: Joined) -> Iterator[Client]:
    with app.client("alice") as found:
        found.upload_keys()
        yield found


def last_job(client: Client) -> dict[str, int]:
    return dict(client._link.json("GET", "/v1/jobs")["jobs"][-1])


def test_the_configuration_says_how_a_prompt_comes_at_once(client: Client, packed: ModelSource) -> None:
    made = Plan.load(packed.plan)
    assert made.prefill == 16
    said = client.config.layout["prefill"]
    assert said == {"tokens": 8, "blocks": 2, "level": PARAMS.levels, "least": said["least"]}
    seconds = [made.program(name).predicted_seconds for name in ("prefill", "prompt")]
    assert (said["least"] - 1) * seconds[1] < seconds[0] <= said["least"] * seconds[1]
    layout, rows = client.layout, client.bundle.rows(PROMPT)
    assert layout.at_once(len(PROMPT), 16) == 9
    assert layout.at_once(said["least"], 16) == 0
    assert layout.at_once(said["least"] + 1, 16) == said["least"]
    placed = made.packing.tokens.pack_tokens(np.concatenate([rows, [rows[-1]] * 6]))
    assert np.array_equal(layout.place_blocks(rows), placed)


@pytest.mark.parametrize("interactive", [False, True])
def test_the_answer_is_that_of_single_tokens(client: Client, interactive: bool) -> None:
    answer = client.generate(PROMPT, 1 if interactive else 4, interactive=interactive, keep=True)
    assert list(answer.tokens) == served_circuit().generate(PROMPT, len(answer.tokens)).tokens
    job = last_job(client)
    assert (job["inputs"], job["units"]) == (10, 1 + len(answer.tokens))  # nine tokens were one unit
    client.delete_session(answer.session)


def test_a_short_prompt_and_a_second_turn_go_token_by_token(client: Client) -> None:
    talk = client.open()
    first = list(client.stream(PROMPT[:2], 2, conversation=talk))
    assert last_job(client)["units"] == 3
    again = client.open(talk.session)
    list(client.stream(PROMPT[:8], 1, conversation=again))
    assert first == served_circuit().generate(PROMPT[:2], 2).tokens
    assert last_job(client)["units"] == 9  # the pending token and the new ones
    client.delete_session(talk.session)


def test_a_session_goes_on_from_a_prompt_at_once(client: Client) -> None:
    talk = client.open()
    first = list(client.stream(PROMPT, 2, conversation=talk))
    again = client.open(talk.session)
    assert (again.position, again.pending) == (11, True)
    (next_one,) = client.stream([9], 1, conversation=again)
    assert next_one == int(np.argmax(served_circuit().run([*PROMPT, *first, 9])[-1]))
    client.delete_session(talk.session)


@pytest.mark.parametrize(("prefill", "inputs"), [((9, 1), 3), ((17, 2), 3)])
def test_another_number_of_tokens_or_ciphertexts_is_refused(
    app: Joined, client: Client, prefill: tuple[int, int], inputs: int
) -> None:
    head = JobHead(
        config_id=client.config.config_id, plan=client.config.plan, key_set=client.upload_keys(),
        program=ProgramName.GENERATE, steps=1, start=0, inputs=inputs, prefill=prefill,
    )  # fmt: skip
    session = client.open().session
    with pytest.raises(Refusal, match="this plan takes 16 tokens in 2 ciphertexts at once"):
        app.service.check_job("alice", session, JobHead.from_header(_header(head)))


def _header(head: JobHead) -> object:
    from heatfhe.wire import Limits, MessageScanner

    data = JobRequest(head=head, inputs=(b"x",) * head.inputs).pack()
    scanner = MessageScanner(Limits(), kinds=("job",), length=len(data))
    scanner.feed(data)
    return scanner.finish()


@pytest.mark.parametrize("change", [{"tokens": 3}, {"blocks": 0}, {"least": 0}, {"level": 99}, {"more": 1}])
def test_a_layout_that_makes_no_sense_is_refused(client: Client, change: dict[str, int]) -> None:
    layout = {**client.config.layout, "prefill": {**client.config.layout["prefill"], **change}}
    with pytest.raises(WireError):
        Layout.of(replace(client.config, layout=layout))


def test_a_prompt_at_once_behind_a_public_prefix(tmp_path: Path) -> None:
    """The prefix has two places of the first ciphertext, which the client fills with copies of its first token."""
    bare = served_circuit()
    circuit = replace(bare, calibration=replace(bare.calibration, prefix=(5, 9)))
    circuit.save(tmp_path / "circuit")
    made = plan(circuit, PARAMS, programs=("generate", "prompt"), placement="greedy", prefill=12)
    made.save(tmp_path / "plan.json")
    source = ModelSource(name="behind", plan=tmp_path / "plan.json", circuit=tmp_path / "circuit")
    with joined(source, tmp_path / "home") as app, app.client("alice") as client:
        client.upload_keys()
        said, layout = client.config.layout["prefill"], client.layout
        assert (said["first"], layout.first, made.prefill, client.config.context) == (2, 2, 14, 14)
        assert layout.at_once(40, client.config.context) == 14
        rows = client.bundle.rows(PROMPT)
        placed = block_rows(made, circuit, np.array(PROMPT))
        assert np.array_equal(layout.place_blocks(rows), placed)
        assert np.array_equal(placed[0].reshape(-1, 8)[:, 0], placed[0].reshape(-1, 8)[:, 2])  # of the first token
        answer = client.generate(PROMPT, 3, keep=True)
        assert list(answer.tokens) == circuit.generate(PROMPT, 3).tokens
        assert last_job(client)["units"] == 4  # nine tokens were one unit
        for first in (0, 16):
            with pytest.raises(WireError):
                wrong = {**client.config.layout, "prefill": {**said, "first": first}}
                Layout.of(replace(client.config, layout=wrong))
        with pytest.raises(Refusal, match="this plan takes 14 tokens in 2 ciphertexts at once"):
            head = JobHead(
                config_id=client.config.config_id, plan=client.config.plan, key_set=client.upload_keys(),
                program=ProgramName.GENERATE, steps=1, start=0, inputs=3, prefill=(15, 2),
            )  # fmt: skip
            app.service.check_job("alice", client.open().session, JobHead.from_header(_header(head)))
