# SPDX-License-Identifier: Apache-2.0
"""heatfhe: transformer language models under fully homomorphic encryption.

The six verbs, in order: prepare, calibrate, train, export, plan, run. They are resolved on first use, so that
importing the package loads no optional dependency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatfhe.circuit import Circuit
    from heatfhe.client import Client
    from heatfhe.engine import run
    from heatfhe.lowering import export
    from heatfhe.planning import plan
    from heatfhe.ranges import calibrate
    from heatfhe.sites import prepare, restore
    from heatfhe.training import train
else:
    from heatfhe.doors import lazy_names

    __getattr__ = lazy_names(
        __name__,
        {
            "Circuit": "circuit.Circuit",
            "Client": "client.Client",
            "calibrate": "ranges.calibrate",
            "export": "lowering.export",
            "plan": "planning.plan",
            "prepare": "sites.prepare",
            "restore": "sites.restore",
            "run": "engine.run",
            "train": "training.train",
        },
    )

__version__ = "0.1.0"

__all__ = ["Circuit", "Client", "calibrate", "export", "plan", "prepare", "restore", "run", "train"]


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
