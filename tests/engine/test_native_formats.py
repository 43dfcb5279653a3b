# SPDX-License-Identifier: Apache-2.0
"""What saved keys are bound to: primes and levels, not figures about noise; and keys of format version 1 still load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the native engine needs numba")

from heatfhe.ckks.archive import SECRET, unseal
from heatfhe.ckks.presets import native_presets, native_set
from heatfhe.client.keyring_native import SECRET_FILE, NativeKeyring
from heatfhe.engine import KeyRequest, MemoryKeys
from heatfhe.engine.native import NativeEngine
from heatfhe.errors import FileFormatError, WireError
from heatfhe.planning import preset
from tests.golden.first_format import as_version_1

TINY = preset("insecure-native-tiny")


def request(**more: Any) -> KeyRequest:
    return KeyRequest(params=replace(TINY, **more), rotations=(1, 2))


def test_a_corrected_figure_leaves_saved_keys_loadable(tmp_path: Path) -> None:
    ring = NativeKeyring(request())
    ring.save(tmp_path)
    keys = MemoryKeys(dict(ring.evaluation_keys()))
    values = np.linspace(-1, 1, TINY.slots)
    for more in ({"noise": TINY.noise * 1.5}, {"promised_bits": 17.0}, {"reach": 8.0}, {"name": "insecure-native-x"}):
        again = NativeKeyring(request(**more), tmp_path)
        engine = NativeEngine(request(**more), keys)
        turned = engine.rotate(engine.parse(ring.encrypt(values, level=2)), 1)
        assert np.abs(again.decrypt(engine.dump(turned)) - np.roll(values, -1)).max() < 1e-5


def test_primes_and_levels_are_bound() -> None:
    sets = [native_set(p) for p in native_presets().values()]
    assert len({s.hash for s in sets}) == len({s.chain for s in sets}) == len(sets) - 1
    assert native_set(preset("native-16-r40")).hash == native_set(preset("native-16-r40-lean")).hash
    one = native_set(TINY)
    mains = one.chain.mains[:-2] + one.chain.mains[:-3:-1]  # the last two primes change places
    assert replace(one, chain=replace(one.chain, mains=mains)).hash != one.hash


def test_keys_and_ciphertexts_of_format_version_1_are_read(tmp_path: Path) -> None:
    """Made as the first release made them: the hash over everything in the header and in the expansion of seeds."""
    native = native_set(TINY)
    first = replace(request())
    old = NativeKeyring(first)
    old._maker._hash = native.older[1]
    old.save(tmp_path)
    path = tmp_path / SECRET_FILE
    path.write_bytes(as_version_1(path.read_bytes(), native.older[1]))
    blobs = {name: as_version_1(blob, native.older[1]) for name, blob in old.evaluation_keys()}
    values = np.linspace(-1, 1, TINY.slots)
    sent = as_version_1(old.encrypt(values, level=2), native.older[1])
    engine, again = NativeEngine(first, MemoryKeys(blobs)), NativeKeyring(first, tmp_path)
    turned = engine.dump(engine.rotate(engine.parse(sent), 1))
    assert np.abs(again.decrypt(turned) - np.roll(values, -1)).max() < 1e-5
    assert np.abs(again.decrypt(as_version_1(turned, native.older[1])) - np.roll(values, -1)).max() < 1e-5


def test_a_first_format_key_of_other_figures_says_why_it_does_not_load(tmp_path: Path) -> None:
    native = native_set(TINY)
    NativeKeyring(request()).save(tmp_path)
    path = tmp_path / SECRET_FILE
    path.write_bytes(as_version_1(path.read_bytes(), native.older[1]))
    with pytest.raises(FileFormatError, match=r"other noise figures \(format version 1 bound them\)"):
        NativeKeyring(request(noise=TINY.noise * 1.5), tmp_path)
    with pytest.raises(WireError, match="format version 1 is not among those read here"):
        unseal(path.read_bytes(), (SECRET,), native.hash)
