# SPDX-License-Identifier: Apache-2.0
"""A parameter set comes from a file or a server: every field has its type and its range, or there is no set."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatfhe.ckks.params import Params
from heatfhe.ckks.presets import native_set
from heatfhe.errors import ConfigError, WireError
from heatfhe.files import json_digest
from heatfhe.planning.params import preset, presets
from heatfhe.wire import ModelConfig
from tests.client.test_trust import config

SECURE = ("native-16-r40", "native-16-r35", "openfhe-16", "paper-16")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=4), children, max_size=2),
    max_leaves=4,
)


@pytest.mark.parametrize("name", SECURE)
@pytest.mark.parametrize("bits", [60, 2000, -50, 0, "abc", None, True, [17.0], math.nan, math.inf, 10**300])
def test_a_promise_no_set_can_keep_is_refused(name: str, bits: Any) -> None:
    body = {**preset(name).as_json(), "promised_bits": bits}
    with pytest.raises(ConfigError, match="promise"):
        Params.from_json(body)


@pytest.mark.parametrize("bits", [60, 2000, -50, "abc", None])
def test_a_server_cannot_choose_how_the_client_rounds(bits: Any) -> None:
    """What the client used to take from a configuration: 60 switched rounding off, 1000 made it overflow by size."""
    body = config().as_json()
    body["config"]["params"]["promised_bits"] = bits
    body["config_id"] = json_digest(body["config"])
    with pytest.raises(WireError, match="promise"):
        ModelConfig.from_json(body)


@pytest.mark.parametrize("name", SECURE)
def test_a_promise_beyond_the_noise_is_refused(name: str) -> None:
    params = preset(name)
    with pytest.raises(ConfigError, match="promise"):
        replace(params, promised_bits=-math.log2(params.noise) + 0.1)
    with pytest.raises(ConfigError, match="promise"):
        replace(params, noise=0.0)


def test_a_native_set_promises_no_more_than_its_modular_reduction_keeps() -> None:
    """The noise is the server's word too, so the promise is held against the chain itself: 24.1 bits for this one."""
    params = replace(preset("native-16-r40"), noise=1e-9, promised_bits=25.0)
    with pytest.raises(ConfigError, match=r"promises 25 bits.* keeps 24\.\d at most"):
        native_set(params)
    assert native_set(replace(params, promised_bits=24.0)).params.promised_bits == 24.0


@given(field=st.sampled_from(sorted(preset("native-16-r40").as_json())), value=JSON)
def test_any_field_with_any_value_gives_a_sound_set_or_a_config_error(field: str, value: Any) -> None:
    body = {**preset("native-16-r40").as_json(), field: value}
    try:
        params = Params.from_json(body)
    except ConfigError:
        return
    assert 1 <= params.promised_bits <= min(params.scale_bits, 32)
    assert params.security_bits >= 122 or params.name.startswith("insecure-")
    assert all(math.isfinite(x) for x in (params.noise, params.reach, params.log_qp, params.sparse_modulus_bits))
    hash(params)
    assert Params.from_json(params.as_json()) == params


@given(word=st.sampled_from([w for w, _ in preset("insecure-native-tiny").literal]), value=JSON)
def test_any_word_of_a_literal_is_checked_before_a_chain_is_built(word: str, value: Any) -> None:
    params = preset("insecure-native-tiny")
    body = params.as_json()
    body["literal"] = {**body["literal"], word: value}
    try:
        found = native_set(Params.from_json(body))
    except ConfigError:
        return
    assert found.chain == native_set(params).chain  # the value itself, perhaps: nothing else has these claims


@pytest.mark.parametrize(
    ("word", "value"), [("raise_levels", 10**9), ("special", 10**9), ("eval_levels", 10**9), ("spare_pairs", 10**9)]
)
def test_a_word_of_a_billion_is_refused_at_once(word: str, value: int) -> None:
    body = preset("insecure-native-tiny").as_json()
    body["literal"] = {**body["literal"], word: value}
    with pytest.raises(ConfigError, match=f"{word} must be"):
        native_set(Params.from_json(body))


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_passes(name: str) -> None:
    params = preset(name)
    if params.engine == "native":
        assert native_set(Params.from_json(params.as_json())).params == params
