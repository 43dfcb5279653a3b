# SPDX-License-Identifier: Apache-2.0
"""Public names: every room's __all__ is real and documented (ruff's RUF022 keeps it sorted)."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from heatfhe.doors import lazy_names

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
        try:
            value = getattr(module, name)
        except ModuleNotFoundError as err:
            if str(err.name).startswith("heatfhe"):  # our own broken table is not an absent library
                raise
            continue
        if callable(value) and getattr(value, "__module__", "").startswith("heatfhe"):
            assert value.__doc__, f"heatfhe.{room}.{name} has no docstring"


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_hides_no_public_name(room: str) -> None:
    """A module, once loaded, hides the name of its own that a door would fetch; one bound at the door stays."""
    try:
        module = importlib.import_module(f"heatfhe.{room}")
    except ModuleNotFoundError as err:
        pytest.skip(f"{room} needs {err.name}, which is not installed here")
    for name in set(module.__all__) & {p.stem for p in (SOURCE / room).iterdir()}:
        assert name in vars(module), f"heatfhe.{room}.{name} is fetched on demand"
        assert not isinstance(vars(module)[name], ModuleType), f"heatfhe.{room}.{name} is its module"


def test_a_lazy_name_is_fetched_from_inside_its_package() -> None:
    fetch = lazy_names("json", {"Reader": "decoder.JSONDecoder", "gone": "decoder.gone", "elsewhere": "nowhere.x"})
    assert fetch("Reader") is json.JSONDecoder
    with pytest.raises(AttributeError, match="module 'json' has no attribute 'dumps'"):
        fetch("dumps")
    with pytest.raises(AttributeError, match="gone"):
        fetch("gone")
    with pytest.raises(ModuleNotFoundError, match=r"json\.nowhere"):
        fetch("elsewhere")


def test_the_verbs_resolve_lazily() -> None:
    import heatfhe

    assert set(heatfhe.__all__) <= set(dir(heatfhe))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = heatfhe.nonsense
