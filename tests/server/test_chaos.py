# SPDX-License-Identifier: Apache-2.0
"""Every kind of fault of tests/server/chaos.py, one round each; ``make chaos`` runs a hundred and prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatfhe.server import ModelSource
from tests.server.chaos import KINDS, Chaos

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chaos(source: ModelSource, home: Path) -> Chaos:
    return Chaos(source, home)


@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens_nothing_lost_nothing_left_over(chaos: Chaos, kind: str) -> None:
    found = chaos.round(kind, seed=list(KINDS).index(kind))
    assert found.faults == []
    assert found.made == chaos.expected
