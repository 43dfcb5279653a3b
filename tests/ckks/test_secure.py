# SPDX-License-Identifier: Apache-2.0
"""Bootstraps at 128 bits: recipes R40 and R35 at N = 2^16, each within 16 GiB. Minutes; run by make test-slow."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

pytest.importorskip("numba", reason="the native engine needs numba")

from heatfhe.ckks.keyset import key_ids
from heatfhe.ckks.presets import native_set
from heatfhe.client.keyring_native import NativeKeyring
from heatfhe.engine import KeyRequest
from heatfhe.engine.native import NativeEngine
from heatfhe.planning import preset


class Streamed:
    """Keys made when they are read, in the order the engine reads them: blobs never pile up in memory."""

    def __init__(self, ring: NativeKeyring) -> None:
        r = ring.request
        self._names = [k.name for k in key_ids(native_set(r.params), r.rotations, r.conjugation, r.bootstrap_periods)]
        self._keys: Iterator[tuple[str, bytes]] = ring.evaluation_keys()

    def names(self) -> Iterable[str]:
        return self._names

    def read(self, name: str) -> bytes:
        found, blob = next(self._keys)
        assert found == name
        return blob


PEAK = 16 * 2**30
WORST = 2.0**-14


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("name", "levels", "deviation"),
    [("native-16-r40", 13, 5e-7), ("native-16-r40-lean", 13, 5e-7), ("native-16-r35", 16, 2e-6)],
)
def test_a_secure_bootstrap(
    name: str, levels: int, deviation: float, record_property: Callable[[str, object], None]
) -> None:
    params = preset(name)
    assert params.security_bits == 128
    request = KeyRequest(params=params, rotations=(), bootstrap_periods=(1, 16, 1024, params.slots))
    ring = NativeKeyring(request, threads=2)
    engine = NativeEngine(request, Streamed(ring), threads=2)
    rng = np.random.default_rng(0)

    x = rng.uniform(-1, 1, params.slots)
    seconds = []
    for _ in range(2):  # the first one encodes the matrices
        start = time.perf_counter()
        got = engine.bootstrap(engine.parse(ring.encrypt(x, level=0)), period=params.slots, bound=1.0)
        seconds.append(time.perf_counter() - start)
    error = ring.decrypt(engine.dump(got)) - x
    record_property("bootstrap_seconds", seconds[1])
    record_property("std_error", float(error.real.std()))
    assert engine.level(got) >= levels
    assert float(error.real.std()) <= min(deviation, params.noise)

    cases = {
        "uniform": (x, params.slots),
        "ones": (np.ones(params.slots), params.slots),
        "one-hot": (np.eye(1, params.slots)[0], params.slots),
        "ramp": (np.linspace(-1, 1, params.slots), params.slots),
        "period 1": (np.full(params.slots, 0.73), 1),
        "period 1 at full slots": (np.full(params.slots, -0.99), params.slots),
        "period 16": (np.tile(rng.uniform(-1, 1, 16), params.slots // 16), 16),
        "period 1024": (np.tile(rng.uniform(-1, 1, 1024), params.slots // 1024), 1024),
        "ones of period 1024": (np.ones(params.slots), 1024),
    }
    worst = {}
    for case, (values, period) in cases.items():
        got = engine.bootstrap(engine.parse(ring.encrypt(values, level=0)), period=period, bound=1.0)
        worst[case] = float(np.abs(ring.decrypt(engine.dump(got)) - values).max())
        record_property(case, worst[case])
    assert max(worst.values()) <= min(WORST, 2.0**-params.promised_bits), worst

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    record_property("peak_gib", peak / 2**30)
    assert peak <= PEAK
