# SPDX-License-Identifier: Apache-2.0
"""The native engine: the conformance suite, and what is its own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("numba", reason="the native engine needs numba")

from heatfhe.ckks.presets import native_params
from heatfhe.client.keyring_native import NativeKeyring
from heatfhe.engine import Engine, KeyRequest, Keyring, MemoryKeys
from heatfhe.engine.native import NativeEngine
from tests.engine.conformance import EngineConformance


class TestNative(EngineConformance):
    params = native_params("insecure-native-tiny")
    level_bits = 22.5
    periods = (16, params.slots)

    @staticmethod
    def open(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
        ring = NativeKeyring(request)
        return ring, NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())))
