# SPDX-License-Identifier: Apache-2.0
"""Baby steps of CoeffsToSlots: the split is a word of the recipe, changes no value, and decides how tall keys are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heatfhe.ckks.bootstrapping import BootstrapSpec
from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots_matrices, shared_rotations, turn
from heatfhe.ckks.bootstrapping.matrices import SplitMatrix, slots_to_coeffs_matrices
from heatfhe.ckks.bootstrapping.mod_raise import folded
from heatfhe.ckks.keyset import key_ids
from heatfhe.ckks.presets import native_set
from heatfhe.errors import ConfigError
from heatfhe.planning import preset
from tests.ckks.seeded import Scheme, small_chain

SMALL = BootstrapSpec(stc_levels=2, ratio_bits=14.0)
PERIODS = (1, 16, 1024, 2048, 32768)  # those of a GPT-2-small plan


def image(parts: list[SplitMatrix], x: NDArray[Any]) -> NDArray[Any]:
    """What the matrices do, one after the other, each vector repeated to the slots."""
    for part in parts:
        total = np.zeros_like(x)
        for g, row in part.giants.items():
            inner = [np.tile(d, len(x) // len(d)) * np.roll(x, -b) for b, d in row.items()]
            total = total + np.roll(np.sum(inner, axis=0), -g)
        x = total
    return x


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32), log_slots=st.integers(2, 8), less=st.integers(0, 8), count=st.integers(1, 4),
    babies=st.sampled_from([2, 4, 8, 16]),
)  # fmt: skip
def test_the_split_changes_no_value(seed: int, log_slots: int, less: int, count: int, babies: int) -> None:
    """SlotsToCoeffs turns the value, CoeffsToSlots turns it back; steps of CoeffsToSlots all go to the right."""
    slots = 1 << log_slots
    period = 1 << max(log_slots - less, 0)
    count = min(count, max(log_slots - less, 1))
    rng = np.random.default_rng(seed)
    x = np.tile(rng.uniform(-1, 1, period) + 1j * rng.uniform(-1, 1, period), slots // period)
    today = [*slots_to_coeffs_matrices(slots, period, count), *coeffs_to_slots_matrices(slots, period, count, 16.0)]
    to_coeffs = slots_to_coeffs_matrices(slots, period, count, turn(period, count))
    to_slots = coeffs_to_slots_matrices(slots, period, count, 16.0, babies)
    assert np.abs(image([*to_coeffs, *to_slots], x) - image(today, x)).max() < 1e-12
    assert set().union(*(part.rotations for part in to_slots)) == shared_rotations(period, count, babies)
    assert max((k for part in to_slots for k in part.rotations), default=0) < period
    assert max(len({b for row in part.giants.values() for b in row}) for part in to_slots) <= babies


@pytest.mark.parametrize("babies", [2, 4, 8])
def test_a_refresh_is_as_good_with_any_split(babies: int) -> None:
    pytest.importorskip("numba", reason="compiled kernels need numba")
    spec = replace(SMALL, cts_babies=babies)
    s = Scheme(small_chain(256, end=49), spec=spec, periods=(128, 16, 2, 1), seed=babies)
    for period in (128, 16, 2, 1):
        x = np.random.default_rng(period).uniform(-1, 1, period)
        assert np.abs(s.error(s.bootstrapper.bootstrap_real(s.encrypt(x, s.floor), period=period), x)).max() < 3e-6


@pytest.mark.parametrize("babies", [2, 4, 8, 16])
def test_the_trace_covers_the_subring_by_shared_steps(babies: int) -> None:
    chain = native_set(preset("native-16-r40")).chain
    slots = chain.ring_dimension // 2
    spec = BootstrapSpec(stc_levels=3, ratio_bits=14.0, cts_babies=babies)
    known = shared_rotations(slots, 4, babies)
    for period in (1, 16, 1024, 2048, slots):
        sums = list(folded(slots, period))
        for group in spec.trace(chain, period):
            assert len(group) == 1 or set(group) <= known
            sums += [r + rotation for rotation in group for r in sums]
        assert sorted(r % slots for r in sums) == list(range(0, slots, period))


def test_eight_baby_steps_need_fewer_tall_keys() -> None:
    """The keys of the periods of a GPT-2-small plan, rotations of the plan itself left out."""
    found = {}
    for name in ("native-16-r40", "native-16-r40-lean"):
        native = native_set(preset(name))
        ids = key_ids(native, (), False, PERIODS)
        tall = [k for k in ids if k.cap > native.chain.normal_levels]
        size = sum(k.digits(native.chain) * len(k.rows(native.chain)) for k in ids)
        found[name] = (len(ids), len(tall), 4 * native.chain.ring_dimension * size / 2**20)
    assert found == {"native-16-r40": (80, 59, 3612.0), "native-16-r40-lean": (80, 38, 2477.25)}


def with_words(params: Any, **words: Any) -> Any:
    return replace(params, literal=tuple(sorted({**dict(params.literal), **words}.items())))


def test_a_set_without_the_word_means_the_split_it_always_had() -> None:
    old, new = preset("native-16-r40"), preset("native-16-r40-lean")
    assert "cts_babies" not in dict(old.literal)
    assert dict(new.literal) == {**dict(old.literal), "cts_babies": 8, "key_levels": True}
    assert native_set(old).bootstrap.cts_babies == 0
    assert native_set(old).hash == native_set(new).hash  # the primes are the same: a key of either fits the other
    assert native_set(old).hash.hex() == "6f65aa4be29b2b5901c82941a4b040fe68af458dbfa375cc57fc9b0107df2bbd"
    assert type(new).from_json(new.as_json()) == new


@pytest.mark.parametrize("value", [False, 1, 0, 2, 1.0])
def test_keys_go_by_level_or_not(value: Any) -> None:
    with pytest.raises(ConfigError, match="key_levels"):
        native_set(with_words(preset("native-16-r40"), key_levels=value))


@pytest.mark.parametrize("value", [0, 1, 3, 12, 128, -8, 8.0, True, 2**40])
def test_hostile_baby_steps_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"cts_babies|baby steps"):
        native_set(with_words(preset("native-16-r40"), cts_babies=value))
