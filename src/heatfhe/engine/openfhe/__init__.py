# SPDX-License-Identifier: Apache-2.0
"""The OpenFHE engine, with what its client's half needs. The library itself is loaded when a context is made."""

from heatfhe.engine.openfhe.context import Context, refusals, ring_dimension_asked
from heatfhe.engine.openfhe.engine import OpenFHEEngine
from heatfhe.engine.openfhe.keys import ProcessKeys, needs_automorphisms
from heatfhe.engine.openfhe.wire import KEY, Header, seal, unseal

__all__ = [
    "KEY",
    "Context",
    "Header",
    "OpenFHEEngine",
    "ProcessKeys",
    "needs_automorphisms",
    "refusals",
    "ring_dimension_asked",
    "seal",
    "unseal",
]
