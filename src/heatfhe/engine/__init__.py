# SPDX-License-Identifier: Apache-2.0
"""Engines: what executes a plan. clear (float64), openfhe, native (ours)."""

from heatfhe.engine.protocol import (
    Engine,
    EngineFactory,
    Keyring,
    KeyringFactory,
    KeyRequest,
    KeySource,
    LinearMap,
    MemoryKeys,
    Plain,
    Slots,
    Vector,
)

__all__ = [
    "Engine",
    "EngineFactory",
    "KeyRequest",
    "KeySource",
    "Keyring",
    "KeyringFactory",
    "LinearMap",
    "MemoryKeys",
    "Plain",
    "Slots",
    "Vector",
]
