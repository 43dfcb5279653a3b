# SPDX-License-Identifier: Apache-2.0
"""Seats on Ray whose machines share no folder with the server: everything they need is in the object store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heatfhe.server import ModelSource
from heatfhe.server.work.orders import pack
from tests.server.serving import joined, served_circuit
from tests.server.small_ray import small_ray
from tests.server.stores import s3_server

pytest.importorskip("ray", reason="needs the ray extra")


def test_seats_without_the_folder_give_the_same_tokens(
    source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEATFHE_STORE leads every seat to a folder that does not exist, as on a machine that has not mounted it."""
    monkeypatch.setenv("HEATFHE_STORE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("HEATFHE_CACHE", str(tmp_path / "cache"))
    with s3_server() as url, small_ray():
        place = f"{url}/ray"
        seats = {"ray": "local", "seats": (2, 2), "resident_workers": 4}
        with joined(source, tmp_path, store=place, **seats) as app, ThreadPoolExecutor(3) as pool:

            def talk(number: int) -> list[int]:
                client = app.client(f"client-{number}", patience=200.0)
                return list(client.generate([number + 1, 2], 3, keep=True).tokens)

            assert list(pool.map(talk, range(3))) == [
                list(served_circuit().generate([number + 1, 2], 3).tokens) for number in range(3)
            ]
            (job,) = app.service.jobs.of("client-0")
            _, opening, order = app.service._describe(job)
            assert str(tmp_path) not in pack(opening) + pack(order)
            models = [p.name for p in (tmp_path / "cache" / "models").iterdir()]
            assert models == [app.service.model("tiny").config.plan]
    assert not (tmp_path / "nowhere").exists()
