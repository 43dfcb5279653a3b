# SPDX-License-Identifier: Apache-2.0
"""One tiny model on disk for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server needs the serve extra")

from heatfhe.server import ModelSource
from tests.server.serving import save_model


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")
