# SPDX-License-Identifier: Apache-2.0
"""Doors that open on demand: a room's ``__init__`` gives out a name without loading the module that holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(door: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a package: each name is fetched from its home, ``module.name`` inside it, when asked for.

    For what needs an optional library, or more of the house than most callers do. A home lies in the package itself, so
    nothing can be imported past a wall this way. A name must not be that of a module of the package: once the module is
    loaded, Python finds it first. Write it in the else branch of ``if TYPE_CHECKING``, or mypy believes every name.
    """

    def fetch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        module, _, held = homes[name].rpartition(".")
        return getattr(import_module(f"{door}.{module}"), held)

    return fetch
