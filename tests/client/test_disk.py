# SPDX-License-Identifier: Apache-2.0
"""A server on a disk that is really full: clear refusals, nothing corrupted, and it all goes on once there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from heatfhe.client import Client
from heatfhe.server import ModelSource
from heatfhe.wire import Refusal
from tests.server.serving import BigKeyring, ServerProcess, served_circuit

pytestmark = pytest.mark.slow
PROMPT = [1, 2, 3]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, *, leave: int = 0) -> Path:
    """Write until nothing fits, then give some bytes back."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as f:
        try:
            while True:
                f.write(bytes(4096))
        except OSError:
            f.truncate(max(0, f.tell() - leave))
    return path


def test_a_full_disk_refuses_clearly_and_loses_nothing(source: ModelSource, disk: Path, tmp_path: Path) -> None:
    server = ServerProcess(source, disk / "server", "--reserve", "0", "--chunk", "16384")
    expected = served_circuit().generate(PROMPT, 6).tokens
    try:
        with Client(server.url, token=server.token, folder=tmp_path / "a", simulate=True, patience=2) as client:
            talk = client.open()
            begun = []
            with pytest.raises(Refusal, match=r"after \d+ of 13 steps") as caught:
                for token in client.stream(PROMPT, 13, conversation=talk):
                    begun.append(token)
                    if len(begun) == 1:
                        filler = fill(disk)
            assert caught.value.code == "disk_full"
            filler.unlink()  # the failed job gave its own bytes back
            filler = fill(disk)
            with pytest.raises(Refusal, match="disk is full") as caught:
                client.open()
            assert (caught.value.code, caught.value.status) == ("disk_full", 507)
            assert begun == expected[: len(begun)]
            assert begun
            filler.unlink()
            filler = fill(disk, leave=60_000)
            with Client(
                server.url, token=server.token, folder=tmp_path / "b", simulate=True, patience=0, keyring=BigKeyring
            ) as other:
                with pytest.raises(Refusal, match="disk is full"):
                    other.upload_keys()
                filler.unlink()
                other.upload_keys()
                assert list(other.generate(PROMPT, 6).tokens) == expected
            now = client.open(talk.session)
            assert now.position == len(PROMPT) - 1 + len(begun)
            assert list(client.generate(PROMPT, 6).tokens) == expected
            server.kill()
            server.restart()
            assert client.open(talk.session).position == now.position
            assert list(client.generate(PROMPT, 6).tokens) == expected
    finally:
        server.stop()
