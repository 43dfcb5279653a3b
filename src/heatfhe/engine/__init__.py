# SPDX-License-Identifier: Apache-2.0
"""Engines: what executes a plan. clear (float64), openfhe, native (ours)."""

from typing import cast

from heatfhe.engine.clear import BootstrapNoise, ClearEngine
from heatfhe.engine.decode import Decode
from heatfhe.engine.protocol import (
    Engine,
    EngineFactory,
    KeyRequest,
    Keyring,
    KeyringFactory,
    KeySource,
    LinearMap,
    MemoryKeys,
    Plain,
    Slots,
    Vector,
)
from heatfhe.engine.run import Runner, key_request, run
from heatfhe.errors import ConfigError, MissingExtraError

__all__ = [
    "BootstrapNoise",
    "ClearEngine",
    "Decode",
    "Engine",
    "EngineFactory",
    "KeyRequest",
    "KeySource",
    "Keyring",
    "KeyringFactory",
    "LinearMap",
    "MemoryKeys",
    "Plain",
    "Runner",
    "Slots",
    "Vector",
    "key_request",
    "load_engine",
    "run",
]

_EXTRAS = {"numba": "native", "cryptography": "native", "cupy": "cuda"}


def load_engine(name: str) -> EngineFactory:
    """The factory of an engine by name; its library is imported here and nowhere else."""
    if name == "clear":
        from heatfhe.engine.clear import open_clear

        return open_clear
    if name == "openfhe":
        try:
            from heatfhe.engine.openfhe import OpenFHEEngine
        except ModuleNotFoundError as err:
            if err.name != "openfhe":  # our own broken import is not a missing extra
                raise
            raise MissingExtraError("openfhe", needed_by="the openfhe engine") from err
        return cast(EngineFactory, OpenFHEEngine)
    if name == "native":
        try:
            from heatfhe.engine.native import NativeEngine
        except ModuleNotFoundError as err:
            if err.name not in _EXTRAS:
                raise
            raise MissingExtraError(_EXTRAS[str(err.name)], needed_by="the native engine") from err
        return cast(EngineFactory, NativeEngine)
    raise ConfigError(f"unknown engine {name!r}; have: clear, openfhe, native")
