# SPDX-License-Identifier: Apache-2.0
"""Engines: what executes a plan. clear (float64), openfhe, native (ours)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

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
from heatfhe.engine.runner import Runner, key_request
from heatfhe.errors import ConfigError, MissingExtraError
from heatfhe.planning import LinearMap, Vector

if TYPE_CHECKING:
    from heatfhe.engine.native import NativeEngine
    from heatfhe.engine.openfhe import OpenFHEEngine
    from heatfhe.engine.openfhe_context import Context as OpenFHEContext
    from heatfhe.engine.openfhe_context import refusals as openfhe_refusals
    from heatfhe.engine.openfhe_keys import ProcessKeys as OpenFHEProcessKeys
    from heatfhe.engine.openfhe_keys import needs_automorphisms
    from heatfhe.engine.openfhe_security import ring_dimension_asked
    from heatfhe.engine.openfhe_wire import KEY as OPENFHE_KEY
    from heatfhe.engine.openfhe_wire import Header as OpenFHEHeader
    from heatfhe.engine.openfhe_wire import seal as seal_openfhe
    from heatfhe.engine.openfhe_wire import unseal as unseal_openfhe
else:
    from heatfhe.doors import lazy_names

    # An engine is loaded by those who run it: a process has one of them as a rule.
    __getattr__ = lazy_names(
        __name__,
        {
            "NativeEngine": "native.NativeEngine",
            "OPENFHE_KEY": "openfhe_wire.KEY",
            "OpenFHEContext": "openfhe_context.Context",
            "OpenFHEEngine": "openfhe.OpenFHEEngine",
            "OpenFHEHeader": "openfhe_wire.Header",
            "OpenFHEProcessKeys": "openfhe_keys.ProcessKeys",
            "needs_automorphisms": "openfhe_keys.needs_automorphisms",
            "openfhe_refusals": "openfhe_context.refusals",
            "ring_dimension_asked": "openfhe_security.ring_dimension_asked",
            "seal_openfhe": "openfhe_wire.seal",
            "unseal_openfhe": "openfhe_wire.unseal",
        },
    )

__all__ = [
    "NOISE_MAGNITUDES",
    "NOISE_PERIODS",
    "OPENFHE_KEY",
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
    "OpenFHEContext",
    "OpenFHEEngine",
    "OpenFHEHeader",
    "OpenFHEProcessKeys",
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
    "needs_automorphisms",
    "noise_request",
    "openfhe_refusals",
    "ring_dimension_asked",
    "run",
    "seal_openfhe",
    "unseal_openfhe",
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
