# SPDX-License-Identifier: Apache-2.0
"""What travels: configurations, manifests, refusals, and framed messages."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from heatfhe.client.bundle import Bundle
from heatfhe.client.layout import Layout
from heatfhe.client.trust import check_config, key_request
from heatfhe.planning import ProgramName
from heatfhe.wire import (
    JobHead,
    JobOutput,
    JobRequest,
    KeyManifest,
    Limits,
    Message,
    ModelConfig,
    Price,
    Refusal,
    parse,
    strict_json,
)
from heatfhe.wire.frame import MAGIC, PREFIX, MessageFile, MessageScanner
from heatfhe.wire.messages import KeyEntry
from tests.mutations.law import Format, hold, same
from tests.mutations.mutator import changed, digest, overwritten, plain, scrambled, written
from tests.mutations.tables import PARAMS

LIMITS = Limits(header_bytes=1 << 16, blocks=64, block_bytes=1 << 16, total_bytes=1 << 20)


def config() -> ModelConfig:
    layout = {
        "input": {"size": 16, "period": 16, "level": 9},
        "vocabulary": {"size": 64, "period": 64, "parts": 1, "level": 9},
    }  # fmt: skip
    return ModelConfig(
        model="tiny", engine="openfhe", params=PARAMS, plan="a" * 64, circuit="b" * 64, programs=("generate", "prompt"),
        rotations=(1, 2, 64), conjugation=True, bootstrap_periods=(1, 64), layout=layout, vocabulary=64, context=16,
        bundle="c" * 64, noise_bound=20.0, max_temperature=1.0,
        price=Price(seconds_per_prompt_token=1.0, seconds_per_token=2.0, key_bytes=10, bootstraps_per_token=3),
        limits={"chunk_bytes": 1 << 20, "max_steps": 16},
    )  # fmt: skip


def messages() -> Iterator[Format]:
    answer, manifest = (
        config().as_json(),
        KeyManifest(
            config_id="d" * 64,
            keys=tuple(KeyEntry(name=f"rotation-{i}", size=9 + i, sha256=f"{i:064x}") for i in range(4)),
        ),
    )

    def change_config(rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return written(changed(answer, rng))
        identity = changed(answer["config"], rng)
        return written({**answer, "config": identity, "config_id": digest(written(identity))})

    def read_config(data: bytes) -> None:
        body = strict_json(data, limit=1 << 20)
        made = ModelConfig.from_json(body)
        hold(same(made.as_json(), plain(data)), "read as something else")
        check_config(made, simulate=True)
        key_request(made)
        layout = Layout.of(made)
        hold(layout.place_row(np.ones(layout.width)).shape == (made.params.slots,), "a layout past the slots")

    def trusting(data: bytes) -> None:
        """The client reads an answer with the standard parser: NaN and long digits reach the record."""
        ModelConfig.from_json(plain(data))

    def read_manifest(data: bytes) -> None:
        made = KeyManifest.from_json(strict_json(data, limit=1 << 20))
        hold(same(made.as_json(), plain(data)) and len(made.key_set) == 64 and made.size >= 1, "read as something else")

    def read_refusal(data: bytes) -> None:
        said = Refusal.from_json(409, plain(data))
        hold(all(isinstance(v, str) for v in (said.code, said.message, said.remedy, str(said))), "no refusal")

    refusal = Refusal("conflict", "no", "go on", facts={"have": 5}).as_json()
    yield Format("configuration", 4, change_config, read_config)
    yield Format("answer", 1, change_config, trusting)
    yield Format("manifest", 2, lambda rng: written(changed(manifest.as_json(), rng)), read_manifest)
    yield Format("refusal", 1, lambda rng: written(changed(refusal, rng)), read_refusal)


def frames(folder: Path) -> Iterator[Format]:
    head = JobHead(
        config_id="e" * 64,
        plan="a" * 64,
        key_set="f" * 64,
        program=ProgramName.SAMPLE,
        steps=2,
        start=0,
        inputs=3,
        parts=2,
        prefill=(5, 2),
    )
    job = JobRequest(head=head, inputs=(b"one", b"two" * 50, b"three"), noise=(b"w", b"x", b"y", b"z")).pack()
    output = JobOutput(plan="a" * 64, job="1" * 32, step=1, outputs=(b"first", b"second")).pack()
    table = np.arange(64 * 16, dtype="<f4").tobytes()
    bundle = Message(
        kind="bundle", plan="a" * 64, body={"dtype": "F32", "shape": [64, 16]},
        blocks={"embedding": table, "tokenizer/tokenizer.json": b"{}"},
    ).pack()  # fmt: skip

    def read_job(data: bytes) -> None:
        path = folder / "request.bin"
        path.write_bytes(data)
        scanner = MessageScanner(LIMITS, kinds=("job",), length=len(data))
        for at in range(0, len(data), 100):
            scanner.feed(data[at : at + 100])
        said = JobHead.from_header(scanner.finish())
        whole = parse(data, LIMITS, kinds=("job",))
        blocks = list(whole.blocks.values())
        again = JobRequest(head=said, inputs=tuple(blocks[: said.inputs]), noise=tuple(blocks[said.inputs :]))
        hold(again.pack() == data, "packed again it is another message")
        stored = MessageFile(path, LIMITS, kinds=("job",))
        hold(all(stored.block(k) == v for k, v in whole.blocks.items()), "stored blocks differ")

    def read_output(data: bytes) -> None:
        hold(JobOutput.from_message(parse(data, LIMITS, kinds=("output",))).pack() == data, "packed again it differs")

    def read_bundle(data: bytes) -> None:
        made = Bundle.read(data, replace(config(), bundle=hashlib.sha256(data).hexdigest()))
        hold(made.table.shape[0] == 64 and made.rows([0, 63]).shape[0] == 2, "another table")
        body = {"dtype": f"F{8 * made.table.itemsize}", "shape": list(made.table.shape)}
        whole = parse(data, LIMITS, kinds=("bundle",))
        hold(same(body, whole.body) and whole.pack() == data, "read as something else")

    for name, share, good, read in (
        ("job", 4, job, read_job), ("output", 2, output, read_output), ("bundle", 2, bundle, read_bundle),
    ):  # fmt: skip
        yield Format(name, share, lambda rng, good=good: reframed(good, rng), read)


def reframed(good: bytes, rng: random.Random) -> bytes:
    """A message with its header, its blocks or its bytes changed, and every hash of the changed parts right."""
    size = int.from_bytes(good[12:16], "little")
    header, rest = json.loads(good[16 : 16 + size]), good[16 + size : -32]
    how = rng.randrange(8)
    if how == 0:
        return scrambled(good, rng)
    if how == 1:
        data = overwritten(good[:-32], rng, head=PREFIX.size)
        return data + hashlib.sha256(data).digest()
    if how in (2, 3):  # blocks changed, sizes and hashes with them
        at, blocks = 0, []
        for row in header["blocks"]:
            blocks.append(rest[at : at + row["size"]])
            at += row["size"]
        if rng.random() < 0.7:
            k = rng.randrange(len(blocks))
            blocks[k] = scrambled(blocks[k], rng)
        else:
            rng.shuffle(blocks)
        for row, block in zip(header["blocks"], blocks):
            row.update(size=len(block), sha256=hashlib.sha256(block).hexdigest())
        rest = b"".join(blocks)
    elif how == 4:
        header["body"] = changed(header["body"], rng)
    elif how == 5:
        header["blocks"] = changed(header["blocks"], rng)
    else:
        header = changed(header, rng)
    text = written(header, indent=rng.choice((None, None, None, 1)))
    data = PREFIX.pack(MAGIC, 1, 0, len(text)) + text + rest
    return data + hashlib.sha256(data).digest()
