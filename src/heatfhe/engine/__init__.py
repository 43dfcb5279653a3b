# SPDX-License-Identifier: Apache-2.0
"""Engines: what executes a plan. clear (float64), openfhe, native (ours)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from heatfhe.doors import lazy_names
from heatfhe.engine.clear import BootstrapNoise, ClearEngine, Noise
from heatfhe.engine.conversation import Conversation, run
from heatfhe.engine.measure import describe_machine, measure_request
from heatfhe.engine.measure import measure as measure_costs
from heatfhe.engine.noise import MAGNITUDES as NOISE_MAGNITUDES
from heatfhe.engine.noise import PERIODS as NOISE_PERIODS
from heatfhe.engine.noise import NoiseTable, measure_noise, noise_request
from heatfhe.engine.protocol import (
    Engine,
    EngineFactory,
    KeyRequest,
    Keyring,
    KeyringFactory,
    KeySource,
    MemoryKeys,
    Plain,
    Slots,
)
from heatfhe.engine.rounding import OperationNoise
from heatfhe.engine.runner import Runner, key_request
from heatfhe.errors import ConfigError
from heatfhe.planning import LinearMap, Vector

# An engine is loaded by those who run it: a process has one of them as a rule.
_ENGINES = {"clear": "clear.open_clear", "openfhe": "openfhe.OpenFHEEngine", "native": "native.NativeEngine"}
if TYPE_CHECKING:
    from heatfhe.engine.native import NativeEngine
else:
    __getattr__ = lazy_names(__name__, {"NativeEngine": _ENGINES["native"]})

__all__ = [
    "NOISE_MAGNITUDES",
    "NOISE_PERIODS",
    "BootstrapNoise",
    "ClearEngine",
    "Conversation",
    "Engine",
    "EngineFactory",
    "KeyRequest",
    "KeySource",
    "Keyring",
    "KeyringFactory",
    "LinearMap",
    "MemoryKeys",
    "NativeEngine",
    "Noise",
    "NoiseTable",
    "OperationNoise",
    "Plain",
    "Runner",
    "Slots",
    "Vector",
    "describe_machine",
    "key_request",
    "load_engine",
    "measure_costs",
    "measure_noise",
    "measure_request",
    "noise_request",
    "run",
]


def load_engine(name: str) -> EngineFactory:
    """The factory of an engine by name; its library is imported when it is made."""
    if name not in _ENGINES:
        raise ConfigError(f"unknown engine {name!r}; have: {', '.join(_ENGINES)}")
    return cast(EngineFactory, lazy_names(__name__, _ENGINES)(name))
