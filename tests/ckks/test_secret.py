# SPDX-License-Identifier: Apache-2.0
"""Secret material: its distributions, that nothing repeats, that nothing prints."""

from __future__ import annotations

import copy
import math
import pickle
from itertools import pairwise

import numpy as np
import pytest

from heatfhe.ckks.kernels import load_kernels
from heatfhe.ckks.keys import GALOIS, KeyId, galois_element
from heatfhe.ckks.ring import Ring
from heatfhe.ckks.secret import KeyMaker, OsSource, SecretKey, make_secret
from heatfhe.ckks.secret.sampling import TAIL, gaussian, gaussian_table, sparse_ternary, ternary
from heatfhe.errors import ConfigError
from tests.ckks.seeded import HASH, SeededSource, small_chain


def test_ternary_is_uniform_by_chi_squared() -> None:
    drawn = ternary(300_000, SeededSource(1))
    counts = np.array([(drawn == v).sum() for v in (-1, 0, 1)])
    assert counts.sum() == drawn.size
    assert float(((counts - 1e5) ** 2 / 1e5).sum()) < 27.6  # 2 degrees of freedom, p = 1e-6


def test_ternary_has_no_memory() -> None:
    drawn = ternary(300_000, SeededSource(2)).astype(np.float64)
    for lag in (1, 2, 64, 256):
        correlation = float((drawn[:-lag] * drawn[lag:]).mean()) / (2 / 3)
        assert abs(correlation) < 5 / math.sqrt(drawn.size)


@pytest.mark.parametrize("weight", [16, 32, 64])
def test_sparse_secrets_have_their_exact_weight(weight: int) -> None:
    drawn = [sparse_ternary(2048, weight, SeededSource(s)) for s in range(40)]
    assert all(np.count_nonzero(d) == weight and set(np.unique(d)) <= {-1, 0, 1} for d in drawn)
    assert len({d.tobytes() for d in drawn}) == len(drawn)


def test_sparse_positions_and_signs_are_even() -> None:
    total = np.array([sparse_ternary(64, 16, SeededSource(s)) for s in range(4000)])
    places = np.abs(total).sum(axis=0)
    expected = 4000 * 16 / 64
    assert float(((places - expected) ** 2 / expected).sum()) < 130.0
    assert abs(total.sum()) < 5 * math.sqrt(4000 * 16)


def test_errors_follow_the_discrete_gaussian() -> None:
    drawn = gaussian(400_000, SeededSource(3))
    sigma = 3.19
    weights = np.exp(-(np.arange(-14, 15) ** 2) / (2 * sigma**2))
    weights /= np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2)).sum()
    counts = np.array([(drawn == v).sum() for v in range(-14, 15)])
    expected = weights * drawn.size
    assert float(((counts - expected) ** 2 / expected).sum()) < 80.0  # 28 degrees of freedom, p = 1e-6
    assert abs(float(drawn.mean())) < 5 * sigma / math.sqrt(drawn.size)
    assert float(drawn.std()) == pytest.approx(sigma, rel=0.01)
    assert np.abs(drawn).max() <= TAIL


def test_the_table_of_the_gaussian_is_monotone_and_complete() -> None:
    table = gaussian_table().astype(object)
    assert all(a < b for a, b in pairwise(table) if b < 2**64 - 2**20)
    assert table[0] == pytest.approx(2**64 / (3.19 * math.sqrt(2 * math.pi)), rel=1e-6)


def test_the_operating_systems_bytes_never_repeat() -> None:
    source = OsSource()
    assert len({source.take(32) for _ in range(1000)}) == 1000
    assert len(source.take(12345)) == 12345


def test_keys_and_ciphertexts_never_repeat() -> None:
    chain = small_chain(256)
    ring, source = Ring(chain, load_kernels("reference", 256, chain.moduli)), OsSource()
    secrets = [make_secret(256, source) for _ in range(5)]
    assert len({s.dense.tobytes() for s in secrets}) == len({s.sparse.tobytes() for s in secrets}) == 5
    maker = KeyMaker(ring, secrets[0], source, HASH)
    key = KeyId(kind=GALOIS, element=galois_element(1, 256), cap=2)
    keys = [maker.switch_key(key) for _ in range(3)]
    assert len({k.seed for k in keys}) == len({k.b.tobytes() for k in keys}) == 3
    fresh = [maker.encrypt(np.zeros(4), 2) for _ in range(3)]
    assert len({f.seed for f in fresh}) == len({f.b.tobytes() for f in fresh}) == 3


def test_a_fresh_ciphertexts_error_is_the_gaussian() -> None:
    chain = small_chain(2048)
    ring, source = Ring(chain, load_kernels("reference", 2048, chain.moduli)), SeededSource(5)
    maker = KeyMaker(ring, make_secret(2048, source), source, HASH)
    from heatfhe.ckks.keys import fresh_half
    from heatfhe.ckks.ring import Ciphertext

    errors = []
    for _ in range(8):
        f = maker.encrypt(np.zeros(4), 3)
        a = fresh_half(f.seed, 3, chain, HASH)
        errors.append(maker.phase(Ciphertext(3, f.scale, ring.kernels.upload(np.stack([f.b, a])))))
    drawn = np.concatenate(errors)
    assert np.array_equal(drawn, np.rint(drawn))
    assert float(drawn.std()) == pytest.approx(3.19, rel=0.05)


def test_a_secret_key_does_not_print_itself() -> None:
    secret = make_secret(64, SeededSource(6))
    assert "array" not in repr(secret)
    assert "[" not in repr(secret)


def test_nothing_that_holds_a_secret_is_pickled_copied_or_printed() -> None:
    """pickle, copy and deepcopy are how libraries move objects into files, logs and other processes."""
    chain = small_chain(256)
    ring, secret = Ring(chain, load_kernels("reference", 256, chain.moduli)), make_secret(256, SeededSource(8))
    maker = KeyMaker(ring, secret, SeededSource(9), HASH)
    for thing in (secret, maker):
        with pytest.raises(ConfigError, match="not pickled or copied"):
            copy.copy(thing)
        for held in (thing, [thing], {"key": thing}):
            with pytest.raises(ConfigError, match="not pickled or copied"):
                copy.deepcopy(held)
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with pytest.raises(ConfigError, match="not pickled or copied"):
                    pickle.dumps(held, protocol)
        assert "not shown" in f"{thing} {thing!r}"


def test_a_dense_secret_that_was_never_drawn_is_refused() -> None:
    n = 2048
    good = make_secret(n, SeededSource(10))
    few = np.zeros(n, dtype=np.int64)
    few[:64] = 1
    for bad in (np.zeros(n, dtype=np.int64), np.ones(n, dtype=np.int64), np.abs(good.dense), few):
        with pytest.raises(ConfigError, match="not drawn uniformly"):
            SecretKey(bad, good.sparse)
    for tiny in range(200):  # small rings stray far, and only zero is impossible
        assert make_secret(16, SeededSource(tiny)).dense.any()


def test_a_wrong_secret_is_refused() -> None:
    n = 128
    good = make_secret(n, SeededSource(7))
    with pytest.raises(ConfigError, match="ternary"):
        SecretKey(good.dense * 2, good.sparse)
    with pytest.raises(ConfigError, match="weight"):
        SecretKey(good.dense, np.zeros(n, dtype=np.int64))
