# SPDX-License-Identifier: Apache-2.0
"""OpenFHE's parameter sets and lazy loading: all of this works where openfhe itself cannot load."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from heatfhe.ckks.params import MAX_LOG_QP, MAX_LOG_QP_BY_WEIGHT, Params
from heatfhe.errors import ConfigError, EngineError, MissingExtraError
from heatfhe.planning import preset
from heatfhe.planning.openfhe_sets import (
    PRESETS,
    bootstrap_budget,
    bootstrap_correction,
    make_params,
    special_primes,
)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json_and_count_their_levels(name: str) -> None:
    p = preset(name)
    literal = dict(p.literal)
    assert Params.from_json(p.as_json()) == p
    assert p.levels == literal["depth"] - literal["bootstrap_depth"] - 1
    assert p.pair_levels == literal["times_i_levels"] == 0


def test_toy_sets_have_eight_levels_and_claim_nothing() -> None:
    for log_n in (11, 12):
        p = preset(f"insecure-openfhe-{log_n}")
        assert (p.ring_dimension, p.levels, p.scale_bits, p.security_bits) == (1 << log_n, 8, 59.0, 0)


def test_the_large_set_claims_what_attacks_on_sparse_secrets_leave() -> None:
    p = preset("openfhe-16")
    assert (p.ring_dimension, p.levels, p.security_bits) == (1 << 16, 5, 122)
    assert p.log_qp == 60 + 22 * 59 + 3 * 60
    bounds = MAX_LOG_QP_BY_WEIGHT[192][p.ring_dimension]
    assert bounds[128] < p.log_qp <= bounds[122] < MAX_LOG_QP[p.ring_dimension][128]  # no uniform ternary secret
    assert p.security_claim.startswith("122 bits: log2 QP 1538.0 <= 1540 (runs/security_estimate.py: ")
    assert "weight 192" in p.security_claim
    assert p.sparse_modulus_bits == 0.0  # no key under a sparser secret than the main one


def test_an_encapsulated_set_of_60_bits_may_not_be_called_secure() -> None:
    with pytest.raises(ConfigError, match="sparse modulus"):
        make_params("openfhe-x", log_n=16, levels=4, digits=6, noise=1e-6, promised_bits=12.0, correction=10)


def test_a_wide_modulus_may_not_be_called_secure_for_weight_192() -> None:
    with pytest.raises(ConfigError, match="weight 192"):
        make_params(
            "openfhe-x", log_n=16, levels=4, digits=3, noise=1e-6, promised_bits=12.0, correction=10, encapsulated=False
        )


def test_a_correction_below_the_gap_is_refused_before_any_key_is_made() -> None:
    with pytest.raises(ConfigError, match="correction factor 8"):
        make_params(
            "insecure-x", log_n=11, levels=8, digits=3, noise=1e-6, promised_bits=12.0, correction=8, scale_bits=50
        )


def test_special_primes_cover_the_largest_digit() -> None:
    assert special_primes(22, 3, 59, 60) == 8  # 23 primes in digits of 8: 60 + 7*59 = 473 bits
    assert special_primes(22, 8, 59, 60) == 3


def test_sparse_bootstraps_use_smaller_transforms() -> None:
    p = preset("insecure-openfhe-12")
    assert [bootstrap_budget(p, s) for s in (2, 16, 32, 64, 512, 2048)] == [1, 1, 3, 3, 3, 3]


def test_refreshes_of_few_slots_shrink_their_input_more() -> None:
    p = preset("insecure-openfhe-12")
    assert [bootstrap_correction(p, s) for s in (2, 4, 64, 128, 512, 2048)] == [15, 15, 14, 14, 13, 13]


def test_an_unknown_set_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="insecure-openfhe-11"):
        preset("openfhe-3")


def test_modules_import_without_openfhe() -> None:
    code = "import sys; sys.modules['openfhe'] = None\nimport heatfhe.engine.openfhe, heatfhe.client.keyring_openfhe\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (ModuleNotFoundError("no openfhe", name="openfhe"), MissingExtraError, "heatfhe\\[openfhe\\]"),
        (ModuleNotFoundError("no ext", name="openfhe.openfhe"), EngineError, "Python 3.10"),
        (OSError("GLIBC_2.38 not found"), EngineError, "glibc 2.38"),
    ],
)
def test_a_missing_library_says_what_would_make_it_load(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception], words: str
) -> None:
    from heatfhe.engine.openfhe import context

    def refuse(name: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(expected, match=words):
        context.load_openfhe()
