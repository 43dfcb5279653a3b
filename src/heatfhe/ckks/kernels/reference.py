# SPDX-License-Identifier: Apache-2.0
"""The kernels in numpy: slow, exact, and the definition that every other implementation must equal bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels import plans
from heatfhe.ckks.kernels.plans import FIXED_BITS, Conversion, DigitPlan, Division, Rows, Words
from heatfhe.ckks.primes import root_of_unity


def powers(base: int, count: int, prime: int) -> NDArray[np.uint64]:
    """base^0 ... base^(count-1) modulo prime, count a power of two."""
    out = np.ones(1, dtype=np.uint64)
    factor = base % prime
    while out.size < count:
        out = np.concatenate([out, out * np.uint64(factor) % np.uint64(prime)])
        factor = factor * factor % prime
    return out


def wide(x: NDArray[Any]) -> NDArray[np.uint64]:
    """Residues with room for a product."""
    return x.astype(np.uint64)


class ReferenceKernels:
    """Kernels over numpy integers."""

    def __init__(self, ring_dimension: int, moduli: Sequence[int]) -> None:
        self.ring_dimension = ring_dimension
        self.moduli = tuple(moduli)
        self._q = np.array(self.moduli, dtype=np.uint64)
        reversal = plans.bit_reversal(ring_dimension)
        roots = [root_of_unity(p, ring_dimension) for p in self.moduli]
        self._psi = np.array([powers(r, ring_dimension, p)[reversal] for r, p in zip(roots, self.moduli)])
        self._inverse_psi = np.array(
            [powers(pow(r, -1, p), ring_dimension, p)[reversal] for r, p in zip(roots, self.moduli)]
        )
        self._store = plans.bit_reversed_positions(ring_dimension)
        self._load = np.argsort(self._store)

    def _primes(self, rows: Rows) -> NDArray[np.uint64]:
        column: NDArray[np.uint64] = self._q[rows][:, None]
        return column

    def ntt(self, x: Words, rows: Rows) -> Words:
        """Coefficients to evaluations."""
        n, q = self.ring_dimension, self._q[rows][:, None, None]
        a, psi = wide(x), self._psi[rows]
        blocks = 1
        while blocks < n:
            view = a.reshape(*a.shape[:-1], blocks, 2, n // (2 * blocks))
            low, high = view[..., 0, :], view[..., 1, :] * psi[:, blocks : 2 * blocks, None] % q
            a = np.stack([(low + high) % q, (low + q - high) % q], axis=-2).reshape(a.shape)
            blocks *= 2
        return a[..., self._store].astype(np.uint32)

    def intt(self, x: Words, rows: Rows) -> Words:
        """Evaluations to coefficients."""
        n, q = self.ring_dimension, self._q[rows][:, None, None]
        a, psi = wide(x)[..., self._load], self._inverse_psi[rows]
        blocks = n // 2
        while blocks:
            view = a.reshape(*a.shape[:-1], blocks, 2, n // (2 * blocks))
            low, high = view[..., 0, :], view[..., 1, :]
            product = (low + q - high) * psi[:, blocks : 2 * blocks, None] % q
            a = np.stack([(low + high) % q, product], axis=-2).reshape(a.shape)
            blocks //= 2
        scale = np.array([pow(n, -1, self.moduli[r]) for r in rows], dtype=np.uint64)[:, None]
        return (a * scale % self._primes(rows)).astype(np.uint32)

    def add(self, x: Words, y: Words, rows: Rows) -> Words:
        return ((wide(x) + wide(y)) % self._primes(rows)).astype(np.uint32)

    def sub(self, x: Words, y: Words, rows: Rows) -> Words:
        q = self._primes(rows)
        return ((wide(x) + q - wide(y)) % q).astype(np.uint32)

    def negate(self, x: Words, rows: Rows) -> Words:
        q = self._primes(rows)
        return ((q - wide(x)) % q).astype(np.uint32)

    def scale(self, x: Words, factors: Words, rows: Rows) -> Words:
        """Product of each limb with a constant of its own."""
        return (wide(x) * wide(factors)[:, None] % self._primes(rows)).astype(np.uint32)

    def prepare(self, x: Words, rows: Rows) -> Words:
        """The form in which products read a constant polynomial; here the residues themselves."""
        return x

    def product(self, x: Words, p: Words, rows: Rows) -> Words:
        """Product with a prepared polynomial."""
        return (wide(x) * wide(p) % self._primes(rows)).astype(np.uint32)

    def tensor(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        """Sum over pairs ((b, a), (b', a')) of (b b', b a' + a b', a a')."""
        q = self._primes(rows)
        total = np.zeros((3, len(rows), self.ring_dimension), dtype=np.uint64)
        for x, y in pairs:
            (b, a), (c, d) = wide(x), wide(y)
            total = (total + np.stack([b * c % q, (b * d % q + a * c % q), a * d % q])) % q
        return total.astype(np.uint32)

    def automorphism(self, x: Words, element: int) -> Words:
        """X -> X^element on evaluations."""
        return np.ascontiguousarray(x[..., plans.galois_permutation(self.ring_dimension, element)])

    def residues(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        """Signed integers modulo each prime."""
        return (coefficients[None, :] % self._q[rows].astype(np.int64)[:, None]).astype(np.uint32)

    def convert(self, x: Words, c: Conversion) -> Words:
        """Basis conversion of coefficients; see plans."""
        w = wide(x) * wide(c.inverse)[:, None] % self._primes(c.src)
        e = ((w * c.fixed[:, None]).sum(axis=0) + np.uint64(1 << (FIXED_BITS - 1))) >> np.uint64(FIXED_BITS)
        q = self._primes(c.dst)
        total = np.zeros((len(c.dst), x.shape[-1]), dtype=np.uint64)
        for i in range(len(c.src)):
            total = (total + w[i] % q * wide(c.matrix[:, i])[:, None]) % q
        out: Words = ((total + (q - e % q) * wide(c.modulus)[:, None]) % q).astype(np.uint32)
        return out

    def mod_up(self, x: Words, plan: DigitPlan) -> Words:
        """Digits (beta, E, N) of the evaluations x (R, N)."""
        coefficients = self.intt(x, plan.rows)
        out = np.empty((len(plan.conversions), len(plan.extended), self.ring_dimension), dtype=np.uint32)
        for digit, (start, c) in enumerate(zip(plan.starts, plan.conversions)):
            own = slice(int(start), int(start) + len(c.src))
            others = ~np.isin(plan.extended, c.src)
            out[digit, ~others] = x[own]
            out[digit, others] = self.ntt(self.convert(coefficients[own], c), c.dst)
        return out

    def divide(self, x: Words, plan: Division) -> Words:
        """round(x * E / D) of evaluations x (B, R, N)."""
        c = plan.conversion
        q = self._primes(c.dst)
        out = np.empty((x.shape[0], len(c.dst), self.ring_dimension), dtype=np.uint32)
        for b in range(x.shape[0]):
            remainder = self.ntt(self.convert(self.intt(x[b, plan.leave], c.src), c), c.dst)
            kept = wide(x[b, np.maximum(plan.keep, 0)]) * wide(plan.lift)[:, None]
            out[b] = ((kept + q - wide(remainder)) % q).astype(np.uint32)
        return out

    def add_lifted(self, onto: Words, x: Words, factors: Words, rows: Rows) -> Words:
        """onto (B, E, N) plus factors * x (B, R, N) on its first R limbs, in place."""
        q = self._primes(rows)
        first = onto[:, : len(rows)]
        first[:] = ((wide(first) + wide(x) * wide(factors)[:, None]) % q).astype(np.uint32)
        return onto

    def key_product(self, digits: Words, key: Words, key_rows: Rows, rows: Rows) -> Words:
        """Sum over digits j of digits[j] * key[j, :, key_rows]: (2, E, N)."""
        q = self._primes(rows)
        total = np.zeros((2, len(rows), self.ring_dimension), dtype=np.uint64)
        for j in range(digits.shape[0]):
            total = (total + wide(digits[j]) * wide(key[j][:, key_rows]) % q) % q
        return total.astype(np.uint32)

    def multiply_accumulate(self, values: Words, which: Rows, plains: Words, rows: Rows) -> Words:
        """Sum over d of values[which[d]] (2, R, N) * plains[d] (R, N)."""
        q = self._primes(rows)
        total = np.zeros((2, len(rows), self.ring_dimension), dtype=np.uint64)
        for d, v in enumerate(which):
            total = (total + wide(values[v]) * wide(plains[d]) % q) % q
        return total.astype(np.uint32)
