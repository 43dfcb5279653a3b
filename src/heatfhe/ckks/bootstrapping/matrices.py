# SPDX-License-Identifier: Apache-2.0
"""The special FFT as products of sparse matrices, each a dictionary of diagonals, ready for linear maps.

A matrix acts as y = sum_k d_k * rot_k(x). The forward transform takes coefficients m_j + i m_(n+j), in bit-reversed
order, to slots; the inverse takes slots to coefficients in bit-reversed order. No reversal is ever performed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.linear import EncodedMap, encode_map
from heatfhe.ckks.ring import Ring

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


def layer_groups(n: int, count: int, *, inverse: bool) -> list[list[int]]:
    """Block sizes of the butterfly layers of each matrix of a transform, in the order they are applied.

    The larger groups go where the widest stride saves half of the diagonals.
    """
    sizes = [n >> i for i in range(n.bit_length() - 1)]
    share = [[int(size) for size in group] for group in np.array_split(np.array(sizes, dtype=np.int64), count)]
    return share if inverse else [group[::-1] for group in reversed(share)]


def transform(n: int, count: int, *, inverse: bool) -> list[Matrix]:
    """The transform on n slots as ``count`` matrices, in the order they are applied."""
    out = []
    for group in layer_groups(n, count, inverse=inverse):
        matrix: Matrix = {0: np.ones(n, dtype=np.complex128)}
        for size in group:
            matrix = compose(layer(n, size, inverse=inverse), matrix, n)
        out.append(matrix)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class SplitMatrix:
    """A matrix split into baby and giant steps: giants[G][b] is the diagonal G + b, rolled back by G."""

    giants: dict[int, dict[int, Vector]]

    @property
    def rotations(self) -> set[int]:
        """Rotations that need a key, not reduced to the full slots."""
        return ({b for row in self.giants.values() for b in row} | set(self.giants)) - {0}

    def turned(self, by: int, slots: int) -> SplitMatrix:
        """The matrix, then a rotation: it joins the giant steps, their diagonals stay."""
        return SplitMatrix({(g + by) % slots: row for g, row in self.giants.items()})

    def makers(self) -> dict[int, dict[int, Callable[[], Vector]]]:
        """The form linear maps encode from."""
        return {g: {b: (lambda d=d: d) for b, d in row.items()} for g, row in self.giants.items()}  # type: ignore[misc]


def split_matrix(matrix: Matrix, n: int, slots: int, babies: int = 16) -> SplitMatrix:
    """Baby-step giant-step form of a matrix whose diagonals are multiples of one stride, in slots of a full ciphertext.

    Diagonals are vectors whose period divides the slots; indices past n/2 count as negative. A few diagonals are all
    baby steps: a hoisted rotation costs a fraction of a giant step.
    """
    signed = sorted(k - n if k > n // 2 else k for k in matrix)
    if len(signed) <= FEW:
        return SplitMatrix({0: {k % slots: matrix[k % n] for k in signed}})
    stride = max(1, int(np.gcd.reduce(signed))) if any(signed) else 1
    count = min(babies, 1 << max(0, (len(signed) - 1).bit_length() - 1))
    giants: dict[int, dict[int, Vector]] = {}
    for k in signed:
        baby = (k // stride) % count * stride
        giant = (k - baby) % slots
        giants.setdefault(giant, {})[baby] = np.roll(matrix[k % n], giant)
    return SplitMatrix(giants)


# Steps that share their keys. A matrix's diagonals reach to both sides, and giant steps to the left have keys of their
# own. Rotations commute with everything a bootstrap does, so the value is turned once, to the left, where keys are
# small, and every matrix turns it back to the right as far as its own diagonals reach: its steps are then 0, 1, 2, ...
# strides, which are also baby steps of the next wider matrix and steps of the trace.


def reach(group: Sequence[int], n: int) -> int:
    """How far the diagonals of these layers reach to the left; those of the widest layer reach all slots anyway."""
    return 0 if not group or group[0] == n else sum(size // 2 for size in group)


def rungs(group: Sequence[int], n: int, babies: int) -> tuple[set[int], set[int]]:
    """Baby and giant rotations, zeros included, of the layers of one matrix of CoeffsToSlots turned to the right."""
    stride = min(group, default=2) // 2
    count = n // stride if group and group[0] == n else 2 * reach(group, n) // stride + 1
    return {j % babies * stride for j in range(count)}, {j // babies * babies * stride for j in range(count)}


def split_right(matrix: Matrix, group: Sequence[int], n: int, slots: int, babies: int, turn: int) -> SplitMatrix:
    """Baby-step giant-step form of a matrix between two turns: turned by ``turn`` before it, by reach more after."""
    right = reach(group, n)
    stride = min(group, default=2) // 2
    giants: dict[int, dict[int, Vector]] = {}
    for k, diagonal in matrix.items():
        step = (k + right) % n
        baby = step // stride % babies * stride
        giants.setdefault((step - baby) % slots, {})[baby] = np.roll(diagonal, step - baby - turn - right)
    return SplitMatrix(giants)


def slots_to_coeffs_matrices(slots: int, period: int, count: int, turn: int = 0) -> list[SplitMatrix]:
    """Matrices of the forward transform, then a rotation."""
    *most, last = (split_matrix(m, period, slots) for m in transform(period, count, inverse=False))
    return [*most, last.turned(turn, slots)]


def encode_matrices(ring: Ring, parts: Sequence[SplitMatrix], start: int, gain: float) -> list[EncodedMap]:
    """Encode from level ``start`` down; together the matrices multiply the scale by ``gain``.

    Every matrix has the same scale: the coarsest would set the precision of all.
    """
    levels = [start - i for i in range(len(parts))]
    ratios = [float(ring.ratio(level, level - 1)) for level in levels]
    scale = math.exp(math.fsum([math.log(r) for r in ratios] + [math.log(gain)]) / len(parts))
    return [encode_map(ring, part.makers(), level, scale) for part, level in zip(parts, levels)]
