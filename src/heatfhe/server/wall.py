# SPDX-License-Identifier: Apache-2.0
"""The secret wall: a server process in which nothing that can hold a secret key is loaded, or can be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from heatfhe.errors import ConfigError

FORBIDDEN = ("heatfhe.client", "heatfhe.ckks.secret")


def is_forbidden(module: str) -> bool:
    """Whether a module's name lies behind the wall."""
    return any(module == root or module.startswith(root + ".") for root in FORBIDDEN)


class _Wall(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if is_forbidden(fullname):
            raise ImportError(f"{fullname} holds secret keys and cannot be imported in a server process")
        return None


def close_wall() -> None:
    """Refuse to go on if secret-key code is loaded in this process, and block its import from now on."""
    loaded = sorted(name for name in sys.modules if is_forbidden(name))
    if loaded:
        raise ConfigError(
            f"{loaded[0]} is loaded in this process: a server must not be able to hold a secret key; "
            "start it in a process of its own with: heat serve"
        )
    if not wall_is_closed():
        sys.meta_path.insert(0, _Wall())


def wall_is_closed() -> bool:
    """Whether the import block is in place."""
    return any(isinstance(finder, _Wall) for finder in sys.meta_path)
