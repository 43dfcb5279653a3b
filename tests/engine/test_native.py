# SPDX-License-Identifier: Apache-2.0
"""The native engine: the conformance suite, and what is its own."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the native engine needs numba")

from heatfhe.ckks.archive import SECRET, Archive, seal
from heatfhe.ckks.presets import native_set
from heatfhe.client.keyring_native import SECRET_FILE, NativeKeyring, self_test
from heatfhe.engine import Engine, KeyRequest, Keyring, MemoryKeys, Vector
from heatfhe.engine.encodings import Encodings
from heatfhe.engine.native import NativeEngine
from heatfhe.errors import ConfigError, FileFormatError, MissingKeyError, OutOfLevelsError, WireError
from heatfhe.planning import LinearMap, preset
from heatfhe.planning.weights import Dense
from tests.engine.conformance import EngineConformance
from tests.engine.maps import linear_map


class TestNative(EngineConformance):
    params = preset("insecure-native-tiny")
    level_bits = 22.5
    periods = (16, params.slots)

    @staticmethod
    def open(request: KeyRequest) -> tuple[Keyring, Engine[Any]]:
        ring = NativeKeyring(request)
        return ring, NativeEngine(request, MemoryKeys(dict(ring.evaluation_keys())))


def request(name: str = "insecure-native-tiny", **more: Any) -> KeyRequest:
    return KeyRequest(params=preset(name), rotations=(1, 2, 3), **more)


def arrays(root: object) -> Iterator[np.ndarray]:
    """Every numpy array reachable from an object, through anything but modules, classes and functions."""
    seen, queue = set(), [root]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, (types.ModuleType, type, types.FunctionType)):
            continue
        seen.add(id(thing))
        if isinstance(thing, np.ndarray):
            yield thing
        queue.extend(gc.get_referents(thing))


def test_importing_the_engine_leaves_secrets_out() -> None:
    code = (
        "import sys, heatfhe.engine.native, heatfhe.ckks.presets; "
        "bad = [m for m in sys.modules if m.startswith(('heatfhe.ckks.secret', 'heatfhe.client', 'torch'))]; "
        "assert not bad, bad"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_nothing_secret_in_what_a_server_holds() -> None:
    """No array of the engine is the secret in any form: coefficients, evaluations, or their products; nor any blob."""
    r = request(bootstrap_periods=(16,))
    ring = NativeKeyring(r)
    blobs = dict(ring.evaluation_keys())
    engine = NativeEngine(r, MemoryKeys(blobs))
    engine.bootstrap(engine.parse(ring.encrypt(np.ones(4), level=1)), period=16, bound=1.0)
    secret, maker = ring._secret, ring._maker
    kernels, every = maker._ring.kernels, np.arange(len(maker._ring.moduli))
    evaluated = [kernels.evaluate(s, every) for s in (secret.dense, secret.sparse)]
    forms = [secret.dense, secret.sparse, *(f for x in evaluated for f in (*x, *kernels.download(x)))]
    needles = {form.astype(kind).tobytes()[:256] for form in forms for kind in (np.int8, np.int32, np.int64, np.uint32)}
    held = 0
    for array in arrays(engine):
        held += 1
        raw = np.ascontiguousarray(array).tobytes()
        assert not any(needle in raw for needle in needles)
    assert held > 100
    for blob in (*blobs.values(), ring.encrypt(np.ones(4), level=2)):
        assert not any(needle in blob for needle in needles)


def test_a_keyring_saved_and_loaded_decrypts_the_same(tmp_path: Path) -> None:
    r = request()
    ring = NativeKeyring(r)
    blob = ring.encrypt(np.arange(8) / 8, level=2)
    ring.save(tmp_path / "keys")
    path = tmp_path / "keys" / SECRET_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert np.array_equal(NativeKeyring(r, tmp_path / "keys").decrypt(blob), ring.decrypt(blob))
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FileFormatError, match="digest"):
        NativeKeyring(r, tmp_path / "keys")
    with pytest.raises(FileFormatError, match="no such key file"):
        NativeKeyring(r, tmp_path / "nowhere")


def test_a_keyring_is_not_pickled_and_a_key_of_zeros_does_not_load(tmp_path: Path) -> None:
    ring = NativeKeyring(request())
    with pytest.raises(ConfigError, match="not pickled or copied"):
        pickle.dumps(ring)
    assert "not shown" in repr(ring)
    ring.save(tmp_path)
    path, native = tmp_path / SECRET_FILE, native_set(request().params)
    body = np.concatenate([np.zeros_like(ring._secret.dense), ring._secret.sparse]).astype(np.int8).tobytes()
    path.write_bytes(seal(SECRET, native.hash, body))
    with pytest.raises(FileFormatError, match="not drawn uniformly"):
        NativeKeyring(request(), tmp_path)


def test_keys_made_twice_differ_and_both_work() -> None:
    r = request()
    ring = NativeKeyring(r)
    first, second = dict(ring.evaluation_keys()), dict(ring.evaluation_keys())
    assert first.keys() == second.keys()
    assert all(first[k] != second[k] for k in first)
    x = np.random.default_rng(0).uniform(-1, 1, r.params.slots)
    for blobs in (first, second):
        engine = NativeEngine(r, MemoryKeys(blobs))
        got = engine.rotate(engine.parse(ring.encrypt(x, level=1)), 3)
        assert np.abs(ring.decrypt(engine.dump(got)) - np.roll(x, -3)).max() < 1e-6


def test_missing_and_foreign_keys_are_refused() -> None:
    r = request()
    ring = NativeKeyring(r)
    blobs = dict(ring.evaluation_keys())
    name = next(n for n in blobs if n.startswith("galois"))
    with pytest.raises(MissingKeyError, match="lacks 1 of"):
        NativeEngine(r, MemoryKeys({k: v for k, v in blobs.items() if k != name}))
    swapped = {**blobs, name: blobs["relinearise"]}
    with pytest.raises(WireError, match="another key"):
        NativeEngine(r, MemoryKeys(swapped))
    other = dict(NativeKeyring(request("insecure-native-11")).evaluation_keys())
    with pytest.raises(WireError, match="another parameter set"):
        NativeEngine(r, MemoryKeys({**blobs, "relinearise": other["relinearise"]}))


def test_encodings_stay_within_their_budget() -> None:
    r = request()
    ring = NativeKeyring(r)
    blobs = MemoryKeys(dict(ring.evaluation_keys()))
    made = []

    def make(i: int) -> np.ndarray:
        made.append(i)
        return np.full(r.params.slots, i / 10)

    for budget, times in ((1 << 30, 1), (0, 2)):
        made.clear()
        engine = NativeEngine(r, blobs, cache_bytes=budget)
        a = engine.parse(ring.encrypt(np.ones(1), level=2))
        for _ in range(2):
            for i in range(4):
                got = engine.multiply_plain(a, Vector(f"v{i}", lambda i=i: make(i)))
                assert np.abs(ring.decrypt(engine.dump(got)) - i / 10).max() < 1e-6
        assert len(made) == 4 * times
        assert engine.memory["encodings"] <= budget


def test_a_plan_that_walks_in_a_cycle_keeps_what_fits() -> None:
    """Room for two of three: those two are made once, the third each time, and only kept maps have a name."""
    made: list[int] = []
    store = Encodings(20)
    for _ in range(3):
        for i in range(3):
            kept = store.get((i, 0), 10, lambda kept, i=i: (made.append(i), kept)[1])
            assert kept is (i < 2)
    assert made == [0, 1, 2, 2, 2]
    assert store.used == 20
    with pytest.raises(ZeroDivisionError):
        Encodings(20).get(("bad", 0), 10, lambda _: 1 // 0)


def test_spare_encodings_leave_where_others_need_their_room() -> None:
    """But not in vain, and not once another use has asked for one."""
    made: list[str] = []
    store = Encodings(40)

    def get(name: str, size: int = 10, *, spare: bool = False) -> None:
        store.get((name, 0), size, lambda kept: made.append(f"{name}, {'kept' if kept else 'not kept'}"), spare=spare)

    for name in ("a", "b", "c", "d", "e"):
        get(name, spare=True)  # the first four fit
    get("a")
    get("x")  # in the place of the last
    assert store.used == 40
    get("y", 100)
    get("z", 20)
    for name in ("a", "x", "z"):
        get(name)
    assert made == [
        "a, kept", "b, kept", "c, kept", "d, kept", "e, not kept", "x, kept", "y, not kept", "z, kept",
    ]  # fmt: skip
    get("b", spare=True)
    assert made[-1] == "b, not kept"
    assert store.used == 40


@pytest.mark.parametrize("spare", [False, True])
def test_what_may_leave_is_never_recorded(spare: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording holds addresses: what uses spare maps or vectors runs as it is each time, a kept map by its name."""
    r = request()
    ring = NativeKeyring(r)
    engine = NativeEngine(r, MemoryKeys(dict(ring.evaluation_keys())))
    kernels, names, ones = engine._ring.kernels, list[Any](), np.ones(r.params.slots)
    play = kernels.replay

    def heard(name: Any, *rest: Any, **more: Any) -> Any:
        names.append(name)
        return play(name, *rest, **more)

    monkeypatch.setattr(kernels, "replay", heard)
    a = engine.parse(ring.encrypt(np.ones(1), level=3))
    m, v = linear_map("m", {0: {0: ones, 1: ones}}), Vector("v", lambda: ones, spare=spare)
    m = replace(m, spare=spare)
    for _ in range(3):
        (out,) = engine.replay("steps", lambda given: [engine.multiply_plain(engine.linear(given[0], m), v)], [a])
        assert np.abs(ring.decrypt(engine.dump(out)) - 2.0).max() < 1e-6
    assert names.count("steps") == (1 if spare else 3)
    assert names.count(("map", m.weight, a.level)) == (0 if spare else 3)
    assert engine.memory["encodings"] > 0


def test_maps_that_are_not_kept_are_never_replayed() -> None:
    r = request()
    ring = NativeKeyring(r)
    blobs = MemoryKeys(dict(ring.evaluation_keys()))
    ones = np.ones(r.params.slots)
    m = linear_map("m", {0: {0: ones, 1: ones}})
    for budget, named in ((1 << 30, True), (0, False)):
        engine = NativeEngine(r, blobs, cache_bytes=budget)
        for level in (2, 3):
            assert engine._map(m, level).name == (("map", m.weight, level) if named else None)


def test_a_map_that_is_not_kept_serves_the_steps_in_a_row() -> None:
    r = request()
    ring = NativeKeyring(r)
    engine = NativeEngine(r, MemoryKeys(dict(ring.evaluation_keys())), cache_bytes=0)
    made: list[str] = []

    def a_map(name: str) -> LinearMap:
        ones = np.ones(r.params.slots)
        return LinearMap(weight=Dense(name), babies=(0,), giants=(0,), make=lambda g, b: (made.append(name), ones)[1])

    a, first, second = engine.parse(ring.encrypt(np.ones(1), level=3)), a_map("first"), a_map("second")
    for m in (first, first, second, first, first):
        got = engine.linear(a, m)
        assert np.abs(ring.decrypt(engine.dump(got)) - 1.0).max() < 1e-6
    engine.linear(engine.drop(a, 2), first)
    assert made == ["first", "second", "first", "first"]


def test_the_reference_device_gives_the_same_bits() -> None:
    r = request()
    ring = NativeKeyring(r)
    blobs = MemoryKeys(dict(ring.evaluation_keys()))
    blob = ring.encrypt(np.linspace(-1, 1, r.params.slots), level=3)
    results = []
    for device in ("cpu", "reference"):
        e = NativeEngine(r, blobs, device=device)
        a = e.parse(blob)
        results.append([e.dump(v) for v in (e.multiply(a, a), e.rotate(a, 2), e.drop(a, 1), e.multiply_plain(a, 0.3))])
    assert results[0] == results[1]


def test_levels_below_the_floor_belong_to_the_bootstrap() -> None:
    """SlotsToCoeffs first keeps the lowest levels: the engine counts from above them, the wire refuses them."""
    r = request(bootstrap_periods=(16,))
    ring = NativeKeyring(r)
    engine = NativeEngine(r, MemoryKeys(dict(ring.evaluation_keys())))
    native = native_set(r.params)
    assert native.floor == 2
    low = engine.parse(ring.encrypt(np.ones(4), level=0))
    assert (engine.level(low), low.level) == (0, 2)
    fresh = engine.bootstrap(low, period=16, bound=1.0)
    assert (engine.level(fresh), fresh.level) == (r.params.levels, native.chain.normal_levels)
    with pytest.raises(OutOfLevelsError, match="needs 1 level, has 0"):
        engine.multiply(low, low)
    with pytest.raises(OutOfLevelsError, match="to level -1"):
        engine.drop(fresh, -1)
    below = Archive(native.chain, ring._maker._ring.kernels, native.hash).dump_fresh(ring._maker.encrypt(np.ones(4), 1))
    with pytest.raises(WireError, match=r"level 1 is outside 2\.\."):
        engine.parse(below)
    with pytest.raises(ConfigError, match="levels 0 to 3, got 4"):
        ring.encrypt(np.ones(4), level=4)


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown device"):
        NativeEngine(request(), MemoryKeys(), device="cuda:0")


@pytest.mark.slow
def test_the_self_test_keeps_what_the_model_set_promises() -> None:
    for name in ("insecure-native-11", "insecure-native-12", "insecure-native-12-r40"):
        params = preset(name)
        assert self_test(params, threads=2) >= params.promised_bits
