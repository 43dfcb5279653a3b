# SPDX-License-Identifier: Apache-2.0
"""Uniform halves from seeds: published vectors of the XOFs, exact uniformity, golden words, no two labels alike."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from heatfhe.ckks import expand
from heatfhe.ckks.expand import label, uniform
from heatfhe.errors import ConfigError

SEED, HASH = bytes(range(32)), bytes(32)


@pytest.mark.parametrize(
    ("name", "message", "output"),
    [  # FIPS 202 examples and the empty-message vectors of the Keccak team
        ("shake_128", b"", "7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26"),
        ("shake_256", b"", "46b9dd2b0ba88d13233b3feb743eeb243fcd52ea62b81b82b50c27646ed5762f"),
        ("shake_128", b"\xa3" * 200, "131ab8d2b594946b9c81333f9bb6e0ce75c3b93104fa3469d3917457385da037"),
        ("shake_256", b"\xa3" * 200, "cd8a920ed141aa0407a22d59288652e9d9f1a7ee0c1e7c1ca699424da84a904d"),
    ],
)
def test_the_xofs_meet_their_published_vectors(name: str, message: bytes, output: str) -> None:
    assert hashlib.new(name, message).digest(32).hex() == output  # type: ignore[call-arg]


def test_golden_words() -> None:
    got = uniform(SEED, HASH, label(2, 5, 0), [2147352577, 33292289], 8)
    assert got.tolist() == GOLDEN


GOLDEN = [
    [478485304, 464428951, 1911017595, 1187372966, 1521906113, 49444310, 1806327615, 943181082],
    [2021241, 28129631, 3050384, 15406837, 5456080, 24774994, 28531943, 8652447],
]


def test_words_follow_the_stated_stream() -> None:
    """Word j of chunk c, by hand."""
    p, count = 33292289, 4100
    got = uniform(SEED, HASH, label(1, 1, 3), [p], count)[0]
    head = expand.TAG + HASH + SEED + (12).to_bytes(4, "little") + label(1, 1, 3)
    for chunk, j in ((0, 0), (0, 4095), (1, 3)):
        stream = hashlib.shake_128(head + b"".join(v.to_bytes(4, "little") for v in (p, 0, chunk))).digest(8 * 4096)
        assert int(got[4096 * chunk + j]) == int.from_bytes(stream[8 * j : 8 * j + 8], "little") % p


def test_rejected_words_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    p = 33292289

    def stream(head: bytes, prime: int, attempt: int, count: int) -> NDArray[np.uint64]:
        words = np.arange(count, dtype=np.uint64) + np.uint64(1000 * attempt)
        if attempt < 2:
            words[3] = np.uint64(2**64 - 1)  # above the largest multiple of p
        return words

    monkeypatch.setattr(expand, "_words", stream)
    assert uniform(SEED, HASH, b"x", [p], 6)[0].tolist() == [0, 1, 2, 2003, 4, 5]


def test_uniform_by_chi_squared() -> None:
    p, bins = 2147352577, 64
    words = uniform(SEED, HASH, b"chi", [p], 1 << 16)[0].astype(np.float64)
    counts = np.histogram(words, bins=bins, range=(0, p))[0]
    expected = words.size / bins
    assert float(((counts - expected) ** 2 / expected).sum()) < 130.0  # 63 degrees of freedom: beyond it p < 1e-6


def test_labels_seeds_and_parameters_separate_streams() -> None:
    seen = set()
    for seed in (SEED, SEED[::-1]):
        for params in (HASH, bytes([1]) + HASH[1:]):
            for what in (label(1, 1, 0), label(1, 1, 1), label(2, 1, 0), label(2, 5, 0), b"", b"\0"):
                seen.add(uniform(seed, params, what, [2147352577], 16).tobytes())
    assert len(seen) == 24


def test_short_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="32 bytes"):
        uniform(bytes(31), HASH, b"", [33292289], 4)
