# SPDX-License-Identifier: Apache-2.0
"""Fronts and a desk over an object store: fronts put keys there and read outputs from there by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatfhe.server import ModelSource
from heatfhe.server.store.objects import open_objects
from tests.server.small_ray import small_ray
from tests.server.stores import s3_server
from tests.server.test_fronts import expected, fronts

pytest.importorskip("ray", reason="a desk on Ray needs the ray extra")
pytestmark = pytest.mark.slow


def test_conversations_through_two_fronts_over_an_object_store(source: ModelSource, tmp_path: Path) -> None:
    with s3_server() as url, small_ray():  # Ray second: its processes learn from their environment where it is
        with fronts(source, tmp_path, store=f"{url}/fronts") as served:
            for front in range(2):
                client = served.client(f"client-{front}", front=front)
                assert list(client.generate([front + 1, 2], 6, keep=True).tokens) == expected(front)
        kinds = {name.split("/")[2] for name in open_objects(f"{url}/fronts").listing() if name.count("/") > 2}
        assert {"blobs", "jobs", "keysets", "sessions"} <= kinds
        assert [path for name in ("output-*", "blobs/*") for path in (tmp_path / "server").rglob(name)] == []
