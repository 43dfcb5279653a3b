# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of four parsers with atheris: python -m tests.mutations.fuzz TARGET [libFuzzer options].

Targets: frame, archive, configuration, plan. The fuzzer's bytes are sealed before they are read (lengths, digests), so
that it searches behind the hashes, not in front of them. The laws are those of ``formats``: whatever is not a HeatError
ends the run and leaves its input in a file. It starts from the valid example and a few hundred changes of it. Readers
of files write each input first: a TMPDIR in memory (/dev/shm) made it 80 times as fast on a busy disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["heatfhe.wire", "heatfhe.files", "heatfhe.planning", "heatfhe.ckks.archive"]):
    from heatfhe.ckks import archive
    from tests.mutations import keys as native
    from tests.mutations import messages, tables
    from tests.mutations.mutator import digest, file_of

from heatfhe.errors import HeatError
from heatfhe.wire.frame import MAGIC, PREFIX

SEEDS, STEPS = 300, 40


def frame(folder: Path) -> tuple[Callable[[bytes], None], list[bytes]]:
    """Two bytes of length, a header of that length, blocks; before them magic and version, behind them the hash."""
    one = next(messages.frames(folder))

    def read(data: bytes) -> None:
        size = max(0, min(int.from_bytes(data[:2], "little"), len(data) - 2))
        whole = PREFIX.pack(MAGIC, 1, 0, size) + data[2:]
        one.read(whole + hashlib.sha256(whole).digest())

    made = [one.change(random.Random(n)) for n in range(SEEDS)]
    return read, [m[12:14] + m[16:-32] for m in made if len(m) > 48]


def sealed_archive(folder: Path) -> tuple[Callable[[bytes], None], list[bytes]]:
    """A byte of kind and a body; the parameter hash, the length and the digest are right."""
    from tests.ckks.seeded import HASH

    fresh, key = list(native.archives())[1:]

    def read(data: bytes) -> None:
        if data[:1] == bytes([archive.KEY]):
            key.read((data[-1] % 2, archive.seal(archive.KEY, HASH, data[1:-1])))
        elif data:
            fresh.read(archive.seal(data[0], HASH, data[1:]))

    head = struct.calcsize("<8sHHI32sQ")
    made = [fresh.change(random.Random(n)) for n in range(SEEDS)]
    keys = [key.change(random.Random(n)) for n in range(SEEDS // 3)]
    seeds = [bytes([archive.FRESH]) + m[head:-32] for m in made]
    return read, seeds + [bytes([archive.KEY]) + m[head:-32] + bytes([which]) for which, m in keys]


def configuration(folder: Path) -> tuple[Callable[[bytes], None], list[bytes]]:
    """The text of a configuration; its id is put in where the text says "ID"."""
    one = next(messages.messages())

    def read(data: bytes) -> None:
        start, end = data.find(b'"config":') + 9, data.find(b',"config_id"')
        one.read(data.replace(b'"ID"', f'"{digest(data[start:end])}"'.encode(), 1))

    made = [one.change(random.Random(n)) for n in range(SEEDS)]
    return read, [m.replace(_claimed(m), b'"ID"') for m in made]


def plan(folder: Path) -> tuple[Callable[[bytes], None], list[bytes]]:
    """The text of a plan's body, in a file with its digest."""
    one = list(tables.tables(folder))[-1]

    def read(data: bytes) -> None:
        start = f'{{"digest":"{digest(data)}","kind":"heatfhe-plan","version":1,"body":'.encode()
        one.read(start + data + b"}")

    body = tables.small_plan().as_json()  # cut to its first steps: a fuzzer wants small inputs
    program = {**body["programs"][-1], "outputs": {}, "steps": body["programs"][-1]["steps"][:STEPS]}
    used = {step.get("product") for step in program["steps"]}
    body |= {"programs": [program], "products": [p for p in body["products"] if p["key"] in used]}
    made = [file_of("heatfhe-plan", 1, body, random.Random(n)) for n in range(SEEDS)]
    return read, [m[m.find(b'"body":') + 7 : -1] for m in made]


def _claimed(data: bytes) -> bytes:
    at = data.find(b'"config_id":') + 12
    return data[at : at + 66]


TARGETS = {"frame": frame, "archive": sealed_archive, "configuration": configuration, "plan": plan}


def main() -> None:
    name, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as made:
        folder, corpus = Path(made), Path(made) / "corpus"
        corpus.mkdir()
        read, seeds = TARGETS[name](folder)
        for number, seed in enumerate(seeds):
            (corpus / f"{number:04d}").write_bytes(seed)

        def one(data: bytes) -> None:
            with contextlib.suppress(HeatError):
                read(data)

        longest = max(map(len, seeds))
        atheris.Setup([sys.argv[0], str(corpus), f"-max_len={longest + 64}", "-timeout=30", *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
