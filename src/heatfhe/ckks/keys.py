# SPDX-License-Identifier: Apache-2.0
"""Public evaluation keys: what each is, how it travels (half of it a seed), and the table an evaluator reads.

A switching key from s' to s holds, for each digit i, (b_i, a_i) with b_i = -a_i s + e_i + P w_i s', where w_i is 1
modulo the primes of digit i and 0 modulo the others. Rotation keys switch from s to phi^-1(s) and the automorphism phi
follows, so that many rotations share one decomposition. The sparse-to-dense key holds one digit for each automorphism
that ModRaise sums over (fold_rotations): after ModRaise the second polynomial is small, so one digit each is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.chain import Chain
from heatfhe.ckks.expand import expansion_head, label, uniform
from heatfhe.ckks.kernels import Kernels, Words
from heatfhe.ckks.primes import log2_product
from heatfhe.errors import ConfigError, MissingKeyError

RELINEARISE, GALOIS, TO_SPARSE, TO_DENSE = 1, 2, 3, 4
KIND_NAMES = {RELINEARISE: "relinearise", GALOIS: "galois", TO_SPARSE: "to_sparse", TO_DENSE: "to_dense"}
FRESH = 16  # label of fresh ciphertexts in seed expansion
FOLD = 8  # automorphisms of the sparse-to-dense key: the identity and seven rotations


def galois_element(rotation: int, ring_dimension: int) -> int:
    """X -> X^(5^k) rotates the slots by k."""
    return pow(5, rotation % (ring_dimension // 2), 2 * ring_dimension)


def conjugation_element(ring_dimension: int) -> int:
    """X -> X^-1 conjugates every slot."""
    return 2 * ring_dimension - 1


def fold_rotations(slots: int) -> tuple[int, ...]:
    """Rotations of the sparse-to-dense key's digits: every prefix of a power of two is a subgroup."""
    count = min(FOLD, slots)
    bits = count.bit_length() - 1
    return tuple(int(f"{i:0{bits}b}"[::-1], 2) * (slots // count) if bits else 0 for i in range(count))


def sparse_special(chain: Chain) -> int:
    """Special primes of the dense-to-sparse key: the fewest whose product reaches q0."""
    for count in range(1, len(chain.special) + 1):
        if log2_product(chain.special[:count]) >= log2_product([chain.moduli[i] for i in chain.rows(0)]):
            return count
    raise ConfigError("the special modulus is smaller than the base modulus; use more special primes")


def sparse_modulus_bits(chain: Chain) -> float:
    """log2 of the only modulus under which anything is encrypted to the sparse secret."""
    base = [chain.moduli[i] for i in chain.rows(0)]
    return log2_product([*base, *chain.special[: sparse_special(chain)]])


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class KeyId:
    """Which key: its kind, Galois element (1 where there is none), and the highest level it serves."""

    kind: int
    element: int = 1
    cap: int = 0

    def rows(self, chain: Chain) -> list[int]:
        """Prime indices of the key's limbs."""
        if self.kind == TO_SPARSE:
            return [*chain.rows(0), *list(chain.special_rows)[: sparse_special(chain)]]
        return chain.key_rows(self.cap)

    def digits(self, chain: Chain) -> int:
        """Number of digits."""
        if self.kind == TO_DENSE:
            return len(fold_rotations(chain.ring_dimension // 2))
        return 1 if self.kind == TO_SPARSE else chain.key_digits(self.cap)

    def check(self, chain: Chain) -> None:
        """Refuse what no key set of this chain contains."""
        n = chain.ring_dimension
        if self.kind not in KIND_NAMES or not 0 <= self.cap <= chain.top:
            raise ConfigError(f"no key has kind {self.kind} and level cap {self.cap}")
        if self.kind == GALOIS:
            # every odd element is a power of 5, or minus one
            if not (self.element % 2 == 1 and 1 < self.element < 2 * n):
                raise ConfigError(f"{self.element} is not a Galois element at ring dimension {n}")
        elif self.element != 1:
            raise ConfigError(f"a {KIND_NAMES[self.kind]} key has no Galois element, got {self.element}")
        if self.kind == TO_SPARSE and self.cap != 0:
            raise ConfigError("the dense-to-sparse key lives at level 0 only")
        if self.kind == TO_DENSE and self.cap != chain.top:
            raise ConfigError("the sparse-to-dense key lives at the top level only")

    @property
    def name(self) -> str:
        """Its name in a key set."""
        return f"{KIND_NAMES[self.kind]}-{self.element}" if self.kind == GALOIS else KIND_NAMES[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class SwitchKey:
    """A key as it travels: the computed half, and the seed of the uniform half."""

    id: KeyId
    seed: bytes
    b: NDArray[np.uint32]  # (digits, limbs, N), natural order
    params_hash: bytes  # what the uniform half is expanded under


def key_heads(key: KeyId, seed: bytes, chain: Chain, params_hash: bytes) -> list[bytes]:
    """What the uniform half of each digit is expanded from."""
    return [
        expansion_head(seed, params_hash, label(key.kind, key.element, digit)) for digit in range(key.digits(chain))
    ]


def fresh_half(seed: bytes, level: int, chain: Chain, params_hash: bytes) -> NDArray[np.uint32]:
    """The uniform half of a fresh ciphertext, in natural order."""
    primes = [chain.moduli[r] for r in chain.rows(level)]
    return uniform(seed, params_hash, label(FRESH, level, 0), primes, chain.ring_dimension)


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """A fresh ciphertext as it travels: the computed half, and the seed of the uniform one."""

    level: int
    scale: float
    seed: bytes
    b: NDArray[np.uint32]  # (limbs, N), natural order


class KeyTable:
    """Evaluation keys ready for use, by kind and Galois element.

    Digit i of the sparse-to-dense key multiplies a digit moved by the automorphism phi_i. It is kept moved by phi_i^-1:
    the product with the digit as it is, moved by phi_i, is the same.
    """

    def __init__(self, chain: Chain, kernels: Kernels) -> None:
        self._chain, self._kernels = chain, kernels
        self._keys: dict[tuple[int, int], tuple[Words, int]] = {}

    def add(self, key: SwitchKey) -> None:
        """Expand a key's uniform half and keep it, both halves prepared."""
        kernels, n = self._kernels, self._chain.ring_dimension
        rows = np.array(key.id.rows(self._chain), dtype=np.int64)
        fold = fold_rotations(n // 2) if key.id.kind == TO_DENSE else ()
        b = kernels.upload(key.b)
        a = kernels.uniform(key_heads(key.id, key.seed, self._chain, key.params_hash), rows)
        ready = []
        for digit in range(len(key.b)):
            both = kernels.stack([kernels.polynomial(b, digit), kernels.polynomial(a, digit)])
            words = kernels.prepare(both, rows)
            if fold and fold[digit]:
                words = kernels.automorphism(words, galois_element(-fold[digit], n))
            ready.append(words)
        self._keys[key.id.kind, key.id.element] = (kernels.stack(ready), key.id.cap)

    def get(self, kind: int, element: int = 1) -> tuple[Words, int]:
        """A key's words (digits, 2, limbs, N) and its level cap."""
        try:
            return self._keys[kind, element]
        except KeyError:
            raise MissingKeyError(
                f"no {KIND_NAMES[kind]} key for Galois element {element}; add its rotation to the key request"
            ) from None

    @property
    def memory(self) -> int:
        """Memory held."""
        return sum(self._kernels.size(words) for words, _ in self._keys.values())
