# SPDX-License-Identifier: Apache-2.0
"""A seeded source of secret randomness, and a whole scheme built on it: tests only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.bootstrapping import Bootstrapper, BootstrapSpec
from heatfhe.ckks.chain import Chain, ChainSpec, make_chain
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.kernels import Kernels, load_kernels
from heatfhe.ckks.keys import (
    GALOIS,
    RELINEARISE,
    TO_DENSE,
    TO_SPARSE,
    KeyId,
    KeyTable,
    conjugation_element,
    fresh_half,
    galois_element,
)
from heatfhe.ckks.ring import Ciphertext, Ring
from heatfhe.ckks.secret import KeyMaker, make_secret

HASH = hashlib.sha256(b"tests").digest()


class SeededSource:
    """SHAKE256 of a seed and a counter: the same bytes in every run."""

    def __init__(self, seed: int) -> None:
        self._seed, self._calls = seed, 0

    def take(self, count: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(b"test %d %d" % (self._seed, self._calls)).digest(count)


@lru_cache(maxsize=4)
def small_chain(ring_dimension: int, levels: int = 5, *, end: int = 0) -> Chain:
    """The unit-test chain: 5 normal levels of 35 bits, with everything a bootstrap needs above.

    ``end`` is log2 of the scale EvalMod ends at, which bootstrapping asks for.
    """
    return make_chain(
        ChainSpec(
            ring_dimension=ring_dimension, scale_bits=35, levels=levels, special=7, eval_levels=8,
            eval_bits=55 if end else 58, eval_gain=2, eval_end=end, raise_bits=(58,), spare_pairs=1,
        )
    )  # fmt: skip


def digest(words: NDArray[Any]) -> str:
    """SHA-256 of words in little-endian order."""
    return hashlib.sha256(np.ascontiguousarray(words).astype("<u4").tobytes()).hexdigest()


def random_words(
    chain_moduli: tuple[int, ...], rows: Iterable[int], lead: tuple[int, ...], n: int, seed: int
) -> NDArray[np.uint32]:
    """Uniform residues (*lead, rows, n)."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, chain_moduli[r], (*lead, n)) for r in rows], axis=-2).astype(np.uint32)


class Scheme:
    """Secret key, evaluation keys, evaluator and, given a recipe, a bootstrapper: what no server has in one place."""

    def __init__(
        self, chain: Chain, *, device: str = "cpu", seed: int = 1, rotations: Iterable[int] = (1, 5),
        periods: Iterable[int] = (), threads: int = 1, spec: BootstrapSpec | None = None,
        kernels: Kernels | None = None,
    ) -> None:  # fmt: skip
        n = chain.ring_dimension
        source = SeededSource(seed)
        self.chain, self.slots = chain, n // 2
        self.ring = Ring(chain, kernels or load_kernels(device, n, chain.moduli, threads=threads))
        self.secret = make_secret(n, source)
        self.maker = KeyMaker(self.ring, self.secret, source, HASH)
        self.table = KeyTable(chain, self.ring.kernels)
        caps = {galois_element(r, n): chain.normal_levels for r in rotations}
        caps[conjugation_element(n)] = chain.normal_levels + chain.eval_levels
        ids = [KeyId(kind=RELINEARISE, cap=chain.top)]
        for period in periods:
            assert spec is not None
            for rotation, level in spec.rotations(chain, period).items():
                element = galois_element(rotation, n)
                caps[element] = max(level, caps.get(element, 0))
        if periods:
            ids += [KeyId(kind=TO_SPARSE), KeyId(kind=TO_DENSE, cap=chain.top)]
        ids += [KeyId(kind=GALOIS, element=e, cap=c) for e, c in sorted(caps.items())]
        for key in ids:
            self.table.add(self.maker.switch_key(key))
        self.floor = 0 if spec is None else spec.floor
        self.evaluator = Evaluator(self.ring, self.table, floor=self.floor)
        if spec is not None:
            self.bootstrapper = Bootstrapper(self.evaluator, spec)

    def encrypt(self, values: NDArray[Any], level: int) -> Ciphertext:
        fresh = self.maker.encrypt(values, level)
        a = fresh_half(fresh.seed, level, self.chain, HASH)
        return Ciphertext(level, fresh.scale, self.ring.kernels.upload(np.stack([fresh.b, a])))

    def decrypt(self, a: Ciphertext) -> NDArray[np.complex128]:
        return self.maker.decrypt(a)

    def error(self, a: Ciphertext, wanted: NDArray[Any]) -> NDArray[np.complex128]:
        return self.decrypt(a) - np.tile(wanted, self.slots // len(wanted))


def plain_scale(e: Evaluator, a: Ciphertext) -> float:
    """The scale of a factor whose product with ``a``, at any scale, is canonical one level down."""
    return e.ring.scales[a.level - 1] * float(e.ring.ratio(a.level, a.level - 1)) / a.scale


def times_constant(e: Evaluator, a: Ciphertext, value: float) -> Ciphertext:
    """The product with a constant as engines make it: a factor of the division that ends it."""
    scale = plain_scale(e, a)
    return e.rescale(Ciphertext(a.level, a.scale * scale, a.data), factor=round(value * scale))


def times_plain(e: Evaluator, pairs: list[tuple[Ciphertext, NDArray[Any]]]) -> Ciphertext:
    """The sum of products with slots as engines make it: plaintexts on one scale, one rescale."""
    a, ring = pairs[0][0], e.ring
    scale, rows = plain_scale(e, a), ring.rows(a.level)
    data = ring.kernels.product_sum([(x.data, ring.plaintext(values, scale, rows)) for x, values in pairs], rows)
    return e.rescale(Ciphertext(a.level, a.scale * scale, data))
