# SPDX-License-Identifier: Apache-2.0
"""Rotation keys that serve only the levels at which a plan uses them: smaller, and the same bits where they reach."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the native engine needs numba")

from heatfhe.ckks.keys import GALOIS, KeyId, KeyTable, SwitchKey, galois_element
from heatfhe.ckks.keyset import key_ids, upload_bytes
from heatfhe.ckks.presets import native_set
from heatfhe.client.keyring_native import NativeKeyring
from heatfhe.engine import ClearEngine, KeyRequest, MemoryKeys
from heatfhe.engine.native import NativeEngine
from heatfhe.errors import ConfigError, MissingKeyError, WireError
from heatfhe.planning import preset
from tests.ckks.seeded import HASH, Scheme, small_chain

TINY = preset("insecure-native-tiny")
N = 64


@lru_cache(maxsize=2)
def scheme(device: str) -> Scheme:
    return Scheme(small_chain(N), device=device, rotations=(1, 5))


def cut(key: SwitchKey, cap: int) -> SwitchKey:
    """A key without what only levels above cap read: the seed stays, for a limb expands without the others."""
    chain = scheme("cpu").chain
    low = replace(key.id, cap=cap)
    places = [key.id.rows(chain).index(row) for row in low.rows(chain)]
    return SwitchKey(low, key.seed, key.b[: low.digits(chain)][:, places], HASH)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@settings(max_examples=15, deadline=None)
@given(cap=st.integers(0, 5), level=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_a_key_for_fewer_levels_gives_the_same_bits(device: str, cap: int, level: int, seed: int) -> None:
    s, element = scheme(device), galois_element(5, N)
    tall = s.maker.switch_key(KeyId(kind=GALOIS, element=element, cap=s.chain.normal_levels))
    tables = [KeyTable(s.chain, s.ring.kernels) for _ in range(2)]
    for table, key in zip(tables, (tall, cut(tall, cap))):
        table.add(key)
    evaluators = [type(s.evaluator)(s.ring, table) for table in tables]
    a = s.encrypt(np.random.default_rng(seed).uniform(-1, 1, N // 2), level)
    if level > cap:
        with pytest.raises(MissingKeyError, match=f"serves levels up to {cap}"):
            evaluators[1].rotate(a, 5)
        return
    wanted, got = (s.ring.kernels.download(e.rotate(a, 5).data) for e in evaluators)
    assert (wanted == got).all()


def request(*levels: int, **more: Any) -> KeyRequest:
    return KeyRequest(params=TINY, rotations=(1, 2, 3), rotation_levels=levels, **more)


def test_an_engine_uses_a_key_as_far_as_it_reaches() -> None:
    """As does the clear engine, whose word counts."""
    r = request(0, 2, 3)
    ring = NativeKeyring(r)
    engine = NativeEngine(r, MemoryKeys(dict(ring.evaluation_keys())))
    clear = ClearEngine(TINY, request=r)
    x = np.random.default_rng(1).uniform(-1, 1, TINY.slots)
    for rotation, reach in ((1, 0), (2, 2), (3, 3)):
        for level in range(TINY.levels + 1):
            for e, a in ((engine, engine.parse(ring.encrypt(x, level=level))), (clear, clear.value(x, level))):
                if level > reach:
                    with pytest.raises(MissingKeyError, match=f"serves levels up to {reach}.*at level {level}"):
                        e.rotate(a, rotation)
                    continue
                moved = e.rotate(a, rotation)
                slots = moved.slots if e is clear else ring.decrypt(engine.dump(moved))
                assert np.abs(slots - np.roll(x, -rotation)).max() < 1e-5


def test_predicted_bytes_are_the_bytes_made() -> None:
    sizes = []
    for r in (request(), request(3, 3, 3), request(0, 2, 3), request(0, 0, 0, bootstrap_periods=(16, TINY.slots))):
        ids = key_ids(native_set(TINY), r.rotations, r.conjugation, r.bootstrap_periods, r.rotation_levels)
        sizes.append(upload_bytes(native_set(TINY), ids))
        assert sizes[-1] == sum(len(blob) for _, blob in NativeKeyring(r).evaluation_keys())
    assert sizes[0] == sizes[1] > sizes[2]


def test_a_bootstraps_own_use_of_a_rotation_counts() -> None:
    native = native_set(TINY)
    own = native.bootstrap.rotations(native.chain, 16)
    rotation = max(own, key=lambda k: own[k])
    alone, both, tall = (
        {k.element: k.cap for k in key_ids(native, (rotation,), False, periods, levels)}
        for periods, levels in (((), (0,)), ((16,), (0,)), ((16,), ()))
    )
    element = galois_element(rotation, native.chain.ring_dimension)
    assert (alone[element], both[element]) == (native.floor, own[rotation])
    assert own[rotation] > native.top
    assert both == tall


def test_keys_of_another_reach_are_refused() -> None:
    """A server that asks a client for less than its plan uses cannot open the engine with what it gets."""
    blobs = dict(NativeKeyring(request(0, 2, 2)).evaluation_keys())
    for levels in ((0, 2, 3), (), (0, 1, 2)):
        with pytest.raises(WireError, match="holds another key"):
            NativeEngine(request(*levels), MemoryKeys(blobs))


def test_a_request_names_one_level_of_the_set_for_each_rotation() -> None:
    for levels in ((1,), (1, 2, 3, 3), (0, 0, TINY.levels + 1), (0, 0, -1), (0, 0, True), (0, 0, 1.0)):
        with pytest.raises(ConfigError, match="levels"):
            request(*levels)  # type: ignore[arg-type]
    twice = KeyRequest(params=TINY, rotations=(3, 1, 3, 0), rotation_levels=(1, 0, 2, 3))
    assert (twice.rotations, twice.rotation_levels) == ((1, 3), (0, 2))
    with pytest.raises(ConfigError, match="level"):
        key_ids(native_set(TINY), (1, 2), False, (), (1, TINY.levels + 1))
