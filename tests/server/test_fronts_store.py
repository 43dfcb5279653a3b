# SPDX-License-Identifier: Apache-2.0
"""Fronts and desk over an object store: keys, requests and outputs are there, and fronts read and write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatfhe.server import ModelSource
from tests.server.test_fronts import cluster as cluster
from tests.server.test_fronts import expected, fronts

pytestmark = pytest.mark.slow


def test_conversations_through_two_fronts_over_an_object_store(source: ModelSource, tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    with fronts(source, tmp_path, store=str(objects)) as served:
        for front in range(2):
            client = served.client(f"client-{front}", front=front)
            assert list(client.generate([front + 1, 2], 6, keep=True).tokens) == expected(front)
        kinds = {path.relative_to(objects).parts[2] for path in objects.glob("clients/*/*/*")}
        assert {"blobs", "jobs", "keysets", "sessions"} <= kinds
        assert [path for name in ("output-*", "blobs/*") for path in (tmp_path / "server").rglob(name)] == []
