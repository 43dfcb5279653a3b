# SPDX-License-Identifier: Apache-2.0
"""Supported classes of transformers are what they were: names, shapes, and logits of weights given by formula."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.golden.make import stored
from tests.golden.models import MODELS, portrait


@pytest.mark.parametrize("name", MODELS)
def test_a_supported_class_has_not_changed_under_us(name: str) -> None:
    found, wanted = portrait(name), stored("models")[name]
    logits = zip(found.pop("logits"), wanted.pop("logits"), strict=True)
    assert found == wanted
    for ours, theirs in logits:
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
