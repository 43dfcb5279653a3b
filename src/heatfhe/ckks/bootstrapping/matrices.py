# SPDX-License-Identifier: Apache-2.0
"""The special FFT as products of sparse matrices, each a dictionary of diagonals, ready for linear maps.

A matrix acts as y = sum_k d_k * rot_k(x). The forward transform takes coefficients m_j + i m_(n+j), in bit-reversed
order, to slots; the inverse takes slots to coefficients in bit-reversed order. No reversal is ever performed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.complex128]
Matrix = dict[int, Vector]
FEW = 8  # diagonals that need no giant steps


def layer(n: int, size: int, *, inverse: bool) -> Matrix:
    """One butterfly layer on blocks of ``size`` among n slots: diagonals 0, size/2 and -size/2."""
    half = size // 2
    angle = np.array([pow(5, j, 4 * size) for j in range(half)]) / (4 * size)
    w = np.exp(2j * np.pi * angle)
    ones, zeros = np.ones(half), np.zeros(half)
    if inverse:
        parts = [np.concatenate(p) / 2 for p in ((ones, -w.conj()), (ones, zeros), (zeros, w.conj()))]
    else:
        parts = [np.concatenate(p) for p in ((ones, -w), (w, zeros), (zeros, ones))]
    out: Matrix = {}
    for k, part in zip((0, half % n, -half % n), parts):
        out[k] = out.get(k, np.zeros(n, dtype=np.complex128)) + np.tile(part, n // size)
    return out


def compose(a: Matrix, b: Matrix, n: int) -> Matrix:
    """The matrix of a after b."""
    out: Matrix = {}
    for i, d in a.items():
        for j, e in b.items():
            k = (i + j) % n
            out[k] = out.get(k, np.zeros(n, dtype=np.complex128)) + d * np.roll(e, -i)
    return {k: d for k, d in out.items() if np.abs(d).max() > 1e-12}


def transform(n: int, count: int, *, inverse: bool) -> list[Matrix]:
    """The transform on n slots as ``count`` matrices, in the order they are applied."""
    sizes = [2 << i for i in range(n.bit_length() - 1)]
    if inverse:
        sizes.reverse()
    share = np.array_split(np.array(sizes, dtype=np.int64), count)
    if not inverse:  # the larger groups go where the widest stride saves half of the diagonals
        share = np.array_split(np.array(sizes[::-1], dtype=np.int64), count)
        share = [group[::-1] for group in reversed(share)]
    out = []
    for group in share:
        matrix: Matrix = {0: np.ones(n, dtype=np.complex128)}
        for size in group:
            matrix = compose(layer(n, int(size), inverse=inverse), matrix, n)
        out.append(matrix)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A matrix split into baby and giant steps: giants[G][b] is the diagonal G + b, rolled back by G."""

    giants: dict[int, dict[int, Vector]]

    @property
    def rotations(self) -> set[int]:
        """Rotations that need a key, not reduced to the full slots."""
        return ({b for row in self.giants.values() for b in row} | set(self.giants)) - {0}

    def makers(self) -> dict[int, dict[int, Callable[[], Vector]]]:
        """The form linear maps encode from."""
        return {g: {b: (lambda d=d: d) for b, d in row.items()} for g, row in self.giants.items()}  # type: ignore[misc]


def steps(matrix: Matrix, n: int, slots: int, babies: int = 16) -> Steps:
    """Baby-step giant-step form of a matrix whose diagonals are multiples of one stride, in slots of a full ciphertext.

    Diagonals are vectors whose period divides the slots; indices past n/2 count as negative. A few diagonals are all
    baby steps: a hoisted rotation costs a fraction of a giant step.
    """
    signed = sorted(k - n if k > n // 2 else k for k in matrix)
    if len(signed) <= FEW:
        return Steps({0: {k % slots: matrix[k % n] for k in signed}})
    stride = max(1, int(np.gcd.reduce(signed))) if any(signed) else 1
    count = min(babies, 1 << max(0, (len(signed) - 1).bit_length() - 1))
    giants: dict[int, dict[int, Vector]] = {}
    for k in signed:
        baby = (k // stride) % count * stride
        giant = (k - baby) % slots
        giants.setdefault(giant, {})[baby] = np.roll(matrix[k % n], giant)
    return Steps(giants)
