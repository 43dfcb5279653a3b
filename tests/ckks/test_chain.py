# SPDX-License-Identifier: Apache-2.0
"""Chains: the state machine, the published worked example, scales, digits, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from heatfhe.ckks.chain import Chain, ChainSpec, make_chain, states
from heatfhe.ckks.kernels import ReferenceKernels
from heatfhe.ckks.kernels.plans import division
from heatfhe.ckks.params import Params
from heatfhe.ckks.presets import native_presets, native_set
from heatfhe.errors import ConfigError
from heatfhe.planning import preset
from tests.ckks.seeded import small_chain


def test_states_are_the_published_ones() -> None:
    assert states(40, 8) == [(0, 2), (3, 0), (1, 4), (4, 2), (7, 0), (5, 4), (8, 2), (11, 0), (9, 4)]
    assert states(35, 8) == [(0, 2), (2, 1), (4, 0), (1, 5), (3, 4), (5, 3), (7, 2), (9, 1), (11, 0)]


def test_the_worked_rescale_of_cheddars_40_bit_chain() -> None:
    """Residues computed by hand with exact rationals, level 2 (one main, four terminals) to level 1 (three mains)."""
    above = (30539777, 37224449, 33292289, 32899073, 974258177)
    below = (974258177, 1081212929, 1196556289)
    moduli = (*above, *below[1:])
    x = 123456789012345678901234567890123
    assert [x % p for p in above] == [16006096, 22328267, 9044258, 5752797, 689458124]
    kernels = ReferenceKernels(16, moduli)
    rows = np.arange(5)
    constant = np.zeros((1, 5, 16), dtype=np.uint32)
    constant[0, :, 0] = [x % p for p in above]
    plan = division(moduli, [0, 1, 2, 3, 4], [4, 5, 6])
    got = kernels.intt(kernels.divide(kernels.ntt(constant, rows), plan), np.array([4, 5, 6]))
    y = 128273777626413528342
    assert got[0, :, 0].tolist() == [828745228, 530180471, 901528572] == [y % p for p in below]
    assert not got[0, :, 1:].any()


@pytest.mark.parametrize("name", sorted(native_presets()))
def test_canonical_scales_are_fixed_points_and_stay_near(name: str) -> None:
    chain = native_set(preset(name)).chain
    scales = chain.scales()
    for level in range(1, chain.normal_levels + 1):
        assert scales[level] ** 2 / chain.divisor(level) == pytest.approx(scales[level - 1], rel=1e-12)
    assert max(abs(math.log2(s) - chain.scale_bits) for s in scales) < 0.005
    ends = chain.eval_scales()
    ratio = native_set(preset(name)).bootstrap.ratio_bits
    assert abs(math.log2(ends[chain.normal_levels]) - chain.scale_bits - ratio) < 0.01


@pytest.mark.parametrize("name", sorted(native_presets()))
def test_every_digit_of_every_level_fits_the_special_modulus(name: str) -> None:
    chain = native_set(preset(name)).chain
    for level in range(chain.top + 1):
        digits = chain.digits(level)
        assert [row for d in digits for row in d] == list(chain.rows(level))
        assert max(sum(math.log2(chain.moduli[r]) for r in d) for d in digits) <= chain.log_p
        assert chain.rows(level)[-1] // len(chain.special) < chain.key_digits(level)
        assert set(chain.rows(level)) <= set(chain.key_rows(level))


def test_the_secure_sets_are_within_the_table() -> None:
    for name in ("native-16-r40", "native-16-r35"):
        params = preset(name)
        assert params.security_bits == 128
        assert params.log_qp <= 1747
        assert params.sparse_modulus_bits <= 120
        assert params.log_qp == pytest.approx(sum(map(math.log2, native_set(params).chain.moduli)), abs=1e-5)


def test_a_generator_makes_the_same_chain_twice() -> None:
    spec = ChainSpec(ring_dimension=4096, scale_bits=40, levels=4, special=4)
    assert make_chain(spec) == make_chain(spec)


@pytest.mark.parametrize("scale", [30, 35, 40, 50])
def test_chains_of_other_scales(scale: int) -> None:
    chain = make_chain(ChainSpec(ring_dimension=2048, scale_bits=scale, levels=6, special=6))
    assert max(abs(math.log2(s) - scale) for s in chain.scales()) < 0.02


def claim(chain: Chain) -> Params:
    return Params(
        name="claim", engine="native", ring_dimension=chain.ring_dimension, levels=chain.normal_levels,
        scale_bits=float(chain.scale_bits), log_qp=chain.log_qp, noise=2e-7, promised_bits=17.0, reach=16.0,
    )  # fmt: skip


def test_weak_chains_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"exceeds 868, the 128-bit bound"):
        claim(make_chain(ChainSpec(ring_dimension=1 << 15, scale_bits=40, levels=16, special=12)))
    with pytest.raises(ConfigError, match="128-bit bound at ring dimension 2048"):
        claim(small_chain(2048))
    secure = claim(make_chain(ChainSpec(ring_dimension=1 << 16, scale_bits=40, levels=16, special=12)))
    assert secure.security_bits == 192


def test_a_level_count_that_cannot_carry_evalmod_is_refused_with_those_that_can() -> None:
    with pytest.raises(ConfigError, match=r"use one of \[1, 2, 5, 6, 7, 8, 11"):
        make_chain(ChainSpec(ring_dimension=2048, scale_bits=35, levels=9, special=9, eval_levels=8, raise_bits=(58,)))


def test_too_few_special_primes_are_refused() -> None:
    chain = small_chain(2048)
    with pytest.raises(ConfigError, match="exceeds the special modulus"):
        replace(chain, special=chain.mains[-2:], mains=chain.mains[:-2], spans=chain.spans[:-2])


def test_a_set_that_lies_about_its_chain_is_refused() -> None:
    honest = preset("insecure-native-11")
    with pytest.raises(ConfigError, match="are not those of its chain"):
        native_set(replace(honest, log_qp=1000.0))
    with pytest.raises(ConfigError, match="its literal lacks"):
        native_set(replace(honest, literal=()))
    with pytest.raises(ConfigError, match="is a set of the openfhe engine"):
        native_set(replace(honest, engine="openfhe"))


def test_a_scale_that_no_primes_make_is_refused() -> None:
    with pytest.raises(ConfigError, match="levels of 45 bits"):
        states(45, 3)
