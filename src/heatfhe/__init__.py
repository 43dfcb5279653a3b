# SPDX-License-Identifier: Apache-2.0
"""heatfhe: transformer language models under fully homomorphic encryption.

The six verbs, in order: prepare, calibrate, train, export, plan, run. They are resolved on first use, so that
importing the package loads no optional dependency.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heatfhe.circuit import Circuit
    from heatfhe.client import Client
    from heatfhe.engine import run
    from heatfhe.lowering import export
    from heatfhe.planning import plan
    from heatfhe.ranges import calibrate
    from heatfhe.sites import prepare, restore
    from heatfhe.training import train

__version__ = "0.1.0"

_HOMES = {
    "Circuit": "heatfhe.circuit",
    "Client": "heatfhe.client",
    "calibrate": "heatfhe.ranges",
    "export": "heatfhe.lowering",
    "plan": "heatfhe.planning",
    "prepare": "heatfhe.sites",
    "restore": "heatfhe.sites",
    "run": "heatfhe.engine",
    "train": "heatfhe.training",
}

__all__ = ["Circuit", "Client", "calibrate", "export", "plan", "prepare", "restore", "run", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'heatfhe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
