# SPDX-License-Identifier: Apache-2.0
"""The kernels in numpy: slow, exact, and the definition that every other implementation must equal bit for bit.

Words are arrays. The first methods of the class are the parts that the protocol's own are defined by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels import plans
from heatfhe.ckks.kernels.host import HostKernels
from heatfhe.ckks.kernels.plans import (
    FIXED_BITS,
    Conversion,
    DigitPlan,
    Digits,
    Division,
    KeyView,
    Residues,
    Rows,
    Words,
)
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


class ReferenceKernels(HostKernels):
    """Kernels over numpy integers."""

    device_name = "numpy"

    def __init__(self, ring_dimension: int, moduli: Sequence[int]) -> None:
        super().__init__(ring_dimension, moduli)
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

    # -- parts --------------------------------------------------------------------------------------------------------

    def ntt(self, x: Words, rows: Rows) -> Words:
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

    def residues(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        return (coefficients[None, :] % self._q[rows].astype(np.int64)[:, None]).astype(np.uint32)

    def convert(self, x: Words, c: Conversion) -> Words:
        """Basis conversion of coefficients; see plans."""
        w = wide(x) * wide(c.inverse)[:, None] % self._primes(c.src)
        e = ((w * c.fixed[:, None]).sum(axis=0) + np.uint64(1 << (FIXED_BITS - 1))) >> np.uint64(FIXED_BITS)
        q = self._primes(c.dst)
        total = np.zeros((len(c.dst), x.shape[-1]), dtype=np.uint64)
        for i in range(len(c.src)):
            total = (total + w[i] % q * wide(c.matrix[:, i])[:, None]) % q
        return ((total + (q - e % q) * wide(c.modulus)[:, None]) % q).astype(np.uint32)

    def key_product(self, digits: Words, key: KeyView, rows: Rows) -> Words:
        """Sum over digits j of one decomposition (beta, E, N) of digits[j] * key[j]: (2, E, N)."""
        q = self._primes(rows)
        total = np.zeros((2, len(rows), self.ring_dimension), dtype=np.uint64)
        for j in range(len(digits)):
            total = (total + wide(digits[j]) * wide(key.words[key.first + j][:, key.places]) % q) % q
        return total.astype(np.uint32)

    def raised(self, x: Words, factors: Residues, rows: Rows) -> Words:
        """x (..., R, N) modulo QP: as it is where it has all limbs, else factors * x, the other limbs zero."""
        limbs = x.shape[-2]
        if limbs == len(rows):
            return x
        out = np.zeros((*x.shape[:-2], len(rows), self.ring_dimension), dtype=np.uint32)
        out[..., :limbs, :] = self.scale(x, factors, rows[:limbs])
        return out

    # -- limb by limb -------------------------------------------------------------------------------------------------

    def add(self, x: Words, y: Words, rows: Rows) -> Words:
        return ((wide(x) + wide(y)) % self._primes(rows)).astype(np.uint32)

    def sub(self, x: Words, y: Words, rows: Rows) -> Words:
        q = self._primes(rows)
        return ((wide(x) + q - wide(y)) % q).astype(np.uint32)

    def negate(self, x: Words, rows: Rows) -> Words:
        q = self._primes(rows)
        return ((q - wide(x)) % q).astype(np.uint32)

    def scale(self, x: Words, factors: Residues, rows: Rows) -> Words:
        return (wide(x) * wide(factors)[:, None] % self._primes(rows)).astype(np.uint32)

    def combine(self, terms: Sequence[tuple[Words, Residues]], rows: Rows, onto: Words | None = None) -> Words:
        for x, factors in terms:
            term = self.scale(x, factors, rows)
            onto = term if onto is None else self.add(onto, term, rows)
        return onto

    def add_first(self, x: Words, p: Words, rows: Rows) -> Words:
        """(b + p, a)."""
        return np.stack([self.add(x[0], p, rows), x[1]])

    def add_constant(self, x: Words, residues: Residues, rows: Rows) -> Words:
        """(b + c, a): every evaluation of a constant is that constant."""
        return self.add_first(x, np.repeat(residues[:, None], self.ring_dimension, axis=1), rows)

    def prepare(self, x: Words, rows: Rows) -> Words:
        """The form in which products read a constant polynomial; here the residues themselves."""
        return x

    def product(self, x: Words, p: Words, rows: Rows) -> Words:
        return (wide(x) * wide(p) % self._primes(rows)).astype(np.uint32)

    def product_sum(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        total = self.product(*pairs[0], rows)
        for x, p in pairs[1:]:
            total = self.add(total, self.product(x, p, rows), rows)
        return total

    def tensor(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        q = self._primes(rows)
        total = np.zeros((3, len(rows), self.ring_dimension), dtype=np.uint64)
        for x, y in pairs:
            (b, a), (c, d) = wide(x), wide(y)
            total = (total + np.stack([b * c % q, (b * d % q + a * c % q), a * d % q])) % q
        return total.astype(np.uint32)

    def automorphism(self, x: Words, element: int) -> Words:
        return np.ascontiguousarray(x[..., plans.galois_permutation(self.ring_dimension, element)])

    # -- basis conversions --------------------------------------------------------------------------------------------

    def extend(self, x: Words, plan: DigitPlan) -> Words:
        """The only digit of the only decomposition."""
        return self.mod_up(x, plan)[0, 0]

    def mod_up(self, x: Words, plan: DigitPlan) -> Digits:
        """Digits (B, beta, E, N) of the evaluations x (B, R, N), or (R, N) for a batch of one."""
        return np.stack([self._mod_up(y, plan) for y in x.reshape(-1, *x.shape[-2:])])

    def _mod_up(self, x: Words, plan: DigitPlan) -> Words:
        coefficients = self.intt(x, plan.rows)
        out = np.empty((len(plan.conversions), len(plan.extended), self.ring_dimension), dtype=np.uint32)
        for digit, (start, c) in enumerate(zip(plan.starts, plan.conversions)):
            own = slice(int(start), int(start) + len(c.src))
            others = ~np.isin(plan.extended, c.src)
            out[digit, ~others] = x[own]
            out[digit, others] = self.ntt(self.convert(coefficients[own], c), c.dst)
        return out

    def divide(
        self, x: Words, plan: Division, elements: Sequence[int] = (), *, twice: bool = False,
        constant: Residues | None = None,
    ) -> Words:  # fmt: skip
        """round(x * E / D) of evaluations, each then moved by its automorphism, doubled, and a constant added."""
        rows = plan.conversion.dst
        out = np.stack([self._divide(y, plan) for y in x.reshape(-1, *x.shape[-2:])])
        out = out.reshape(*x.shape[:-2], *out.shape[-2:])
        out = np.stack([self.automorphism(y, g) for y, g in zip(out, elements)]) if elements else out
        out = self.add(out, out, rows) if twice else out
        return out if constant is None else self.add_constant(out, constant, rows)

    def _divide(self, x: Words, plan: Division) -> Words:
        c = plan.conversion
        q = self._primes(c.dst)
        remainder = self.ntt(self.convert(self.intt(x[plan.leave], c.src), c), c.dst)
        kept = wide(x[np.maximum(plan.keep, 0)]) * wide(plan.lift)[:, None]
        return ((kept + q - wide(remainder)) % q).astype(np.uint32)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def switch(
        self, digits: Digits | None, keys: Sequence[KeyView | None], rows: Rows, *, source: Words, factors: Residues,
        elements: Sequence[int] = (),
    ) -> Words:  # fmt: skip
        """Each key's product with the digits, the raised source joined to it, moved by its automorphism."""
        out = []
        for key, element in zip(keys, elements or [1] * len(keys)):
            value = self.raised(source, factors, rows)
            if key is not None:
                assert digits is not None  # only the identity does without
                value = self.add_first(self.key_product(digits[0], key, rows), value[0], rows)
            out.append(self.automorphism(value, element))
        return np.stack(out)

    def switch_total(
        self, digits: Digits, keys: Sequence[KeyView], rows: Rows, *, factors: Residues, elements: Sequence[int] = (),
        source: Words | None = None, base: Words | None = None,
    ) -> Words:  # fmt: skip
        """The sum of what the keys give, each moved by its automorphism."""
        total = None if base is None else self.raised(base, factors, rows)
        for i, (key, element) in enumerate(zip(keys, elements or [1] * len(keys))):
            value = self.key_product(digits[i if len(digits) > 1 else 0], key, rows)
            if source is not None:
                own = source[i] if source.ndim == 4 else source
                value = self.add_first(value, self.raised(own, factors, rows)[0], rows)
            value = self.automorphism(value, element)
            total = value if total is None else self.add(total, value, rows)
        return total

    # -- maps, and whole operations -----------------------------------------------------------------------------------

    def giant_sums(self, values: Words, which: Sequence[Rows], plains: Sequence[Words], rows: Rows) -> Words:
        pairs = [[(values[v], p) for v, p in zip(some, ready)] for some, ready in zip(which, plains)]
        return np.stack([self.product_sum(one, rows) for one in pairs])
