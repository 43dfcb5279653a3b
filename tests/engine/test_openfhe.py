# SPDX-License-Identifier: Apache-2.0
"""The OpenFHE engine passes the conformance suite, and every known trap of the library has a guard."""

from __future__ import annotations

import pytest

from heatfhe.engine.openfhe_context import load_openfhe
from heatfhe.errors import HeatError

try:
    load_openfhe()
except HeatError as err:
    pytest.skip(str(err), allow_module_level=True)

from typing import Any

from heatfhe.client.keyring_openfhe import OpenFHEKeyring
from heatfhe.engine import Engine, KeyRequest, Keyring, MemoryKeys
from heatfhe.engine.openfhe import OpenFHEEngine
from heatfhe.engine.openfhe_params import openfhe_params
from tests.engine.conformance import EngineConformance

TOY = openfhe_params("insecure-openfhe-11")


def open_openfhe(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
    ring = OpenFHEKeyring(request)
    return ring, OpenFHEEngine(request, MemoryKeys(dict(ring.evaluation_keys())))


@pytest.mark.openfhe
class TestOpenFHE(EngineConformance):
    params = TOY
    level_bits = 40.0
    periods = (8, TOY.slots)

    @staticmethod
    def open(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
        return open_openfhe(request)
