# SPDX-License-Identifier: Apache-2.0
"""heatfhe: transformer language models under fully homomorphic encryption.

The six verbs, in order: prepare, calibrate, train, export, plan, run; and generate, for a first look. Folders, sets of
parameters, recipes and models of the Hugging Face hub may be given by name. Names are resolved on first use, so that
importing the package loads no optional dependency.

>>> prepared = heatfhe.prepare("my-gpt2")                                              # doctest: +SKIP
>>> trained = heatfhe.train(prepared, "corpus.txt", folder="out/mine")                 # doctest: +SKIP
>>> circuit = heatfhe.export(prepared, trained.calibration, "out/mine/circuit")        # doctest: +SKIP
>>> heatfhe.generate(circuit, "Once upon a time", params="insecure-native-12-r40")     # doctest: +SKIP
>>> heatfhe.plan(circuit, "native-16-r40").save("mine.plan")                           # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heatfhe.circuit import Circuit
    from heatfhe.ckks import Params
    from heatfhe.client import Client, generate
    from heatfhe.engine import run
    from heatfhe.lowering import export
    from heatfhe.planning import Plan, plan, preset, presets
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
            "Params": "ckks.Params",
            "Plan": "planning.Plan",
            "calibrate": "ranges.calibrate",
            "export": "lowering.export",
            "generate": "client.generate",
            "plan": "planning.plan",
            "prepare": "sites.prepare",
            "preset": "planning.preset",
            "presets": "planning.presets",
            "restore": "sites.restore",
            "run": "engine.run",
            "train": "training.train",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Circuit", "Client", "Params", "Plan", "calibrate", "export", "generate", "plan", "prepare", "preset", "presets",
    "restore", "run", "train",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
