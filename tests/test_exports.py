# SPDX-License-Identifier: Apache-2.0
"""Public names: every room's __all__ is real and documented (ruff's RUF022 keeps it sorted)."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "heatfhe"
ROOMS = sorted(p.parent.name for p in SOURCE.glob("*/__init__.py") if p.parent.name != "cli")


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_real_and_documented(room: str) -> None:
    try:
        module = importlib.import_module(f"heatfhe.{room}")
    except ModuleNotFoundError as err:
        pytest.skip(f"{room} needs {err.name}, which is not installed here")
    names = list(module.__all__)
    assert len(names) == len(set(names))
    for name in names:
        value = getattr(module, name)
        if callable(value) and getattr(value, "__module__", "").startswith("heatfhe"):
            assert value.__doc__, f"heatfhe.{room}.{name} has no docstring"


def test_the_verbs_resolve_lazily() -> None:
    import heatfhe

    assert set(heatfhe.__all__) <= set(dir(heatfhe))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = heatfhe.nonsense
