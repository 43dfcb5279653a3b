# SPDX-License-Identifier: Apache-2.0
"""One tiny model on disk for the whole run, and a folder per module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from heatfhe.server import ModelSource


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    from tests.server.serving import save_model

    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")
