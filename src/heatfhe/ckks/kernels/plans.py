# SPDX-License-Identifier: Apache-2.0
"""What kernels are told: the order of evaluations, and exact basis conversions as small tables of residues.

A polynomial has limbs of N 32-bit residues. ``rows`` says which prime each limb belongs to. Every residue is canonical,
in [0, p). In the evaluation domain position s of the numpy and numba kernels holds the value at psi^exponents[s]; in
natural order, the wire's, position k holds the value at psi^(2k + 1).

Basis conversion takes x modulo D = p_1 ... p_k to its centred representative r, |r| <= D/2, modulo other primes:

    w_i = x_i * inverse_i mod p_i                              (the factor holds (D/p_i)^-1 and what is folded in)
    e   = (sum_i w_i * round(2^52/p_i) + 2^51) >> 52           (how many times D the sum below is too large)
    r_j = sum_i w_i * matrix[j, i] - e * modulus[j] mod q_j

in integers, so every implementation agrees to the last bit. The reciprocals are good to k 2^-21: only within that of
|r| = D/2 may the other of two equally near representatives be taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = Any  # opaque: polynomials (..., limbs, N), evaluations in the kernels' own order, every residue canonical
Digits = Any  # opaque: a batch of decompositions, made by mod_up, read by switch and switch_total
Rows = NDArray[np.int64]  # host: which prime each limb belongs to
Residues = NDArray[np.uint32]  # host: one residue per limb, or a table of them

FIXED_BITS = 52


def split(ring_dimension: int) -> tuple[int, int]:
    """How a transform of length N is laid out: blocks, and the length of a block (blocks <= length)."""
    log = ring_dimension.bit_length() - 1
    return 1 << (log // 2), 1 << (log - log // 2)


def bit_reversal(size: int) -> NDArray[np.int64]:
    """The bit-reversal permutation of a power of two."""
    order = np.zeros(1, dtype=np.int64)
    while order.size < size:
        order = np.concatenate([2 * order, 2 * order + 1])
    return order


def bit_reversed_positions(ring_dimension: int) -> NDArray[np.int64]:
    """For each stored position, its place in the plain bit-reversed order: blocks are stored transposed."""
    blocks, length = split(ring_dimension)
    return np.arange(ring_dimension, dtype=np.int64).reshape(blocks, length).T.reshape(-1).copy()


def exponents(ring_dimension: int) -> NDArray[np.int64]:
    """The odd exponent of psi at each stored position."""
    place = bit_reversal(ring_dimension)[bit_reversed_positions(ring_dimension)]
    return 2 * place + 1


def natural_order(ring_dimension: int) -> NDArray[np.int64]:
    """Position that holds exponent 2k+1, for each k: wire order from stored order."""
    positions = np.empty(ring_dimension, dtype=np.int64)
    positions[exponents(ring_dimension) >> 1] = np.arange(ring_dimension)
    return positions


def galois_permutation(ring_dimension: int, element: int) -> NDArray[np.int64]:
    """Gather indices that apply X -> X^element in the evaluation domain."""
    image = element * exponents(ring_dimension) % (2 * ring_dimension)
    out: NDArray[np.int64] = natural_order(ring_dimension)[image >> 1]
    return out


def montgomery(w: NDArray[Any], q: NDArray[Any]) -> Residues:
    """w 2^32 mod q."""
    return ((w.astype(np.uint64) << np.uint64(32)) % q.astype(np.uint64)).astype(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Conversion:
    """Exact conversion of the centred representative from k source primes to m destination primes."""

    src: Rows  # (k,) prime indices
    dst: Rows  # (m,)
    inverse: Residues  # (k,)
    matrix: Residues  # (m, k)
    modulus: Residues  # (m,)
    fixed: NDArray[np.uint64]  # (k,)


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """round(x * E / D): conversion of the remainder (1/D folded in), then y_j = x_keep[j] * lift_j - r_j.

    An integer factor f is folded into ``inverse`` and ``lift`` alone: round(f x E / D), the bits of scaling by f first.
    ``leave`` are positions of the leaving limbs in the input; ``keep[j]`` is the input position of output limb j, or
    -1 for a prime that enters.
    """

    conversion: Conversion
    leave: Rows
    keep: Rows
    lift: Residues


@dataclass(frozen=True, slots=True, eq=False)
class DigitPlan:
    """Decomposition of a polynomial into digits, each raised to all present primes and the special ones."""

    rows: Rows  # (R,) present primes
    extended: Rows  # (E,) primes every digit is raised to: present and special ones
    starts: Rows  # (beta,) first limb of each digit within rows
    conversions: tuple[Conversion, ...]  # one per digit; dst = extended without the digit's own primes


@dataclass(frozen=True, slots=True, eq=False)
class KeyView:
    """The part of a key that one level reads: digits from ``first`` on, limb places[e] for the e-th extended prime."""

    words: Words  # (digits, 2, limbs, N), prepared
    first: int
    places: Rows


def conversion(
    moduli: Sequence[int], src: Sequence[int], dst: Sequence[int], *, factor: int = 1, divide: bool = False
) -> Conversion:
    """Conversion of factor * x from the primes at src to those at dst; with divide, 1/D is folded in."""
    p = [moduli[i] for i in src]
    q = [moduli[j] for j in dst]
    total = prod(p)
    scale = [pow(total, -1, m) if divide else 1 for m in q]
    return Conversion(
        src=np.array(src, dtype=np.int64),
        dst=np.array(dst, dtype=np.int64),
        inverse=np.array([factor * pow(total // m, -1, m) % m for m in p], dtype=np.uint32),
        matrix=np.array([[total // pi * s % qj for pi in p] for qj, s in zip(q, scale)], dtype=np.uint32).reshape(
            len(q), len(p)
        ),
        modulus=np.array([total * s % qj for qj, s in zip(q, scale)], dtype=np.uint32),
        fixed=np.array([((1 << FIXED_BITS) + m // 2) // m for m in p], dtype=np.uint64),
    )


def division(moduli: Sequence[int], src: Sequence[int], dst: Sequence[int], *, factor: int = 1) -> Division:
    """The exact division from the primes at src to those at dst: leaving primes divide, entering ones multiply."""
    leave = [i for i in src if i not in set(dst)]
    enter = prod(moduli[j] for j in dst if j not in set(src))
    left = prod(moduli[i] for i in leave)
    place = {prime: position for position, prime in enumerate(src)}
    plain = Division(
        conversion=conversion(moduli, leave, dst, factor=enter, divide=True),
        leave=np.array([place[i] for i in leave], dtype=np.int64),
        keep=np.array([place.get(j, -1) for j in dst], dtype=np.int64),
        lift=np.array(
            [enter * pow(left, -1, moduli[j]) % moduli[j] if j in place else 0 for j in dst], dtype=np.uint32
        ),
    )
    return plain if factor == 1 else times(moduli, plain, factor)


def times(moduli: Sequence[int], plan: Division, factor: int) -> Division:
    """The division of factor * x; every table but ``inverse`` and ``lift`` is shared with the plan given."""

    def scaled(residues: Residues, rows: Rows) -> Residues:
        return np.array([factor * int(x) % moduli[r] for x, r in zip(residues, rows)], dtype=np.uint32)

    c = plan.conversion
    return replace(plan, conversion=replace(c, inverse=scaled(c.inverse, c.src)), lift=scaled(plan.lift, c.dst))


def digit_plan(
    moduli: Sequence[int], rows: Sequence[int], extended: Sequence[int], digits: Sequence[Sequence[int]]
) -> DigitPlan:
    """Plan that raises the given non-empty digits, which partition rows in order, to the extended primes."""
    starts = np.cumsum([0, *[len(d) for d in digits]])[:-1]
    return DigitPlan(
        rows=np.array(rows, dtype=np.int64),
        extended=np.array(extended, dtype=np.int64),
        starts=np.array(starts, dtype=np.int64),
        conversions=tuple(conversion(moduli, d, [r for r in extended if r not in set(d)]) for d in digits),
    )
