# SPDX-License-Identifier: Apache-2.0
"""Parameter sets: what they promise, and how an unknown one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heatfhe.ckks.params import MAX_LOG_QP, Params
from heatfhe.errors import ConfigError
from heatfhe.planning import default_cost
from heatfhe.planning.params import preset, presets


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
    ("name", "levels"),
    [("insecure-native-11", 9), ("insecure-native-12", 9), ("insecure-openfhe-12", 8), ("insecure-paper-12", 8)],
)
def test_toy_sets(name: str, levels: int) -> None:
    params = preset(name)
    assert (params.levels, params.ring_dimension) == (levels, 1 << int(name[-2:]))
    assert params.security_claim.startswith("NO SECURITY")


def test_the_papers_toy_set_differs_from_its_secure_one_in_the_ring_alone() -> None:
    """Noise weighs what it does in the paper: values are carried at sizes that go with the window."""
    toy, secure = preset("insecure-paper-12"), preset("paper-16")
    assert (toy.engine, toy.reach, toy.levels, toy.noise) == ("fideslib", 246.0, 8, 1.7e-4)
    assert replace(toy, name=secure.name, ring_dimension=secure.ring_dimension) == secure
    assert toy.ring_dimension == 1 << 12
    assert default_cost(toy) == default_cost(secure)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown parameter set 'paper-17'; choose one of: .*native-16-r40.*paper-16"
    ):
        preset("paper-17")
