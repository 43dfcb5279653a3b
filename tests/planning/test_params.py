# SPDX-License-Identifier: Apache-2.0
"""Presets and drafts: what they promise, and how a draft over the bound is refused."""

from __future__ import annotations

import re

import pytest

from heatfhe.ckks.params import MAX_LOG_QP, Params
from heatfhe.errors import ConfigError
from heatfhe.planning.params import draft, preset, presets


@pytest.mark.parametrize(
    ("name", "levels", "log_qp"),
    [
        ("paper-16", 8, 60 + 27 * 53 + 4 * 60),
        ("native-16-r40", 13, 1745.6),
        ("native-16-r35", 16, 1745.1),
    ],
)
def test_secure_presets_stay_under_the_bound(name: str, levels: int, log_qp: float) -> None:
    params = preset(name)
    assert params.levels == levels
    assert params.ring_dimension == 1 << 16
    assert params.log_qp <= MAX_LOG_QP[1 << 16][128]
    assert params.security_bits == 128
    assert params.log_qp == pytest.approx(log_qp, abs=0.2)


@pytest.mark.parametrize("name", sorted(presets()))
def test_a_preset_is_named_insecure_exactly_if_it_is(name: str) -> None:
    params = preset(name)
    assert params.name == name
    assert name.startswith("insecure-") == (params.security_bits == 0)
    assert params.security_bits in ((122,) if name == "openfhe-16" else (0, 128))
    assert Params.from_json(params.as_json()) == params


@pytest.mark.parametrize(
    ("name", "levels"), [("insecure-native-11", 9), ("insecure-native-12", 9), ("insecure-openfhe-12", 8)]
)
def test_toy_sets(name: str, levels: int) -> None:
    params = preset(name)
    assert (params.levels, params.ring_dimension) == (levels, 1 << int(name[-2:]))
    assert params.security_claim.startswith("NO SECURITY")


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown parameter set 'paper-17'; choose one of: .*native-16-r40.*paper-16"
    ):
        preset("paper-17")


def test_a_draft_within_the_bound_is_the_set_asked_for() -> None:
    params = draft("mine", ring_dimension=1 << 16, scale_bits=40, levels=13, precision=20.0)
    assert (params.levels, params.scale_bits, params.security_bits) == (13, 40.0, 128)
    assert params.log_qp <= 1747


def test_a_draft_over_the_bound_says_the_smallest_change() -> None:
    with pytest.raises(ConfigError) as caught:
        draft("mine", ring_dimension=1 << 16, scale_bits=40, levels=15, precision=20.0)
    message = str(caught.value)
    assert message.startswith("mine: log2 QP = 1782.8 exceeds 1747, the 128-bit bound at ring dimension 65536")
    assert "What would be accepted: 13 levels instead of 15 or a scale of 3" in message
    assert "ePrint 2024/463" in message


def test_a_small_ring_is_refused_unless_the_name_owns_up() -> None:
    with pytest.raises(ConfigError, match=r"exceeds 868.*ring dimension 65536 instead of 32768"):
        draft("mine", ring_dimension=1 << 15, scale_bits=40, levels=3)
    toy = draft("insecure-mine", ring_dimension=1 << 11, scale_bits=40, levels=4)
    assert (toy.levels, toy.security_bits) == (4, 0)


@pytest.mark.parametrize(("scale", "levels"), [(40, 16), (35, 19)])
def test_the_change_a_refusal_names_is_accepted_and_the_smallest(scale: int, levels: int) -> None:
    with pytest.raises(ConfigError) as caught:
        draft("mine", ring_dimension=1 << 16, scale_bits=scale, levels=levels)
    found = re.search(r"accepted: (\d+) levels", str(caught.value))
    assert found is not None
    fewer = int(found.group(1))
    assert draft("mine", ring_dimension=1 << 16, scale_bits=scale, levels=fewer).levels == fewer
    for between in range(fewer + 1, levels):
        with pytest.raises(ConfigError):
            draft("mine", ring_dimension=1 << 16, scale_bits=scale, levels=between)
