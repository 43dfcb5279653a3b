# SPDX-License-Identifier: Apache-2.0
"""Primes, shapes and operands for the checks of kernels: on the host, in natural order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.encoding import SlotMatrix
from heatfhe.ckks.kernels import DigitPlan, Kernels, KeyView, Residues, Rows
from heatfhe.ckks.kernels.plans import digit_plan
from heatfhe.ckks.primes import primes_below, primes_near
from tests.ckks.seeded import random_words

Host = NDArray[np.uint32]


@lru_cache(maxsize=16)
def moduli(n: int) -> tuple[int, ...]:
    """Eight of the largest primes, four near 2^25, two near 2^22: every size of word at once."""
    return (
        *islice(primes_below(1 << 31, n), 8),
        *islice(primes_near(2.0**25, n), 4),
        *islice(primes_near(2.0**22, n), 2),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of the primes above a level has, its special ones, its digits, and where a division leads."""

    rows: tuple[int, ...]
    special: tuple[int, ...]
    digits: tuple[tuple[int, ...], ...]
    target: tuple[int, ...]  # from rows
    below: tuple[int, ...]  # from rows and special primes

    @property
    def extended(self) -> tuple[int, ...]:
        return (*self.rows, *self.special)


SHAPES = (
    Shape((8, 9, 10, 0, 1, 2, 3), (4, 5, 6), ((8, 9, 10), (0, 1, 2), (3,)), (9, 10, 11, 0, 1), (9, 10, 11, 0, 1, 2)),
    Shape((9, 0, 1), (4, 5), ((9, 0), (1,)), (9, 2), (9, 0)),
    Shape((12, 13), (0, 1, 2), ((12, 13),), (12, 3, 4), (12, 13)),
    Shape(tuple(range(8)), (8,), (tuple(range(8)),), (0, 1, 12, 13), tuple(range(8))),
    Shape((11,), (7,), ((11,),), (0,), (11,)),
)


def words(n: int, rows: Sequence[int], lead: tuple[int, ...], seed: int) -> Host:
    """Random residues; for odd seeds a third of them are 0, 1, q - 1 or q / 2, and some limbs are constant extremes."""
    out = random_words(moduli(n), rows, lead, n, seed)
    if seed % 2:
        rng = np.random.default_rng(seed)
        q = np.array([moduli(n)[r] for r in rows], dtype=np.int64)[:, None]
        extreme = np.stack(np.broadcast_arrays(0 * q, 0 * q + 1, q - 1, q // 2))
        choice = np.broadcast_to(extreme[rng.integers(0, 4, out.shape), np.arange(len(rows))[:, None], 0], out.shape)
        out = np.where(rng.random(out.shape) < 1 / 3, choice, out).astype(np.uint32)
        if seed % 4 == 1:
            out[..., :] = (q - 1).astype(np.uint32)
    return np.ascontiguousarray(out)


def residues(n: int, rows: Sequence[int], seed: int) -> Residues:
    """One residue per limb."""
    return words(n, rows, (), seed)[:, seed % n].copy()


def row_array(rows: Sequence[int]) -> Rows:
    return np.array(rows, dtype=np.int64)


def slot_matrix(rng: np.random.Generator, slots: int, factor: complex, ahead: int = 0) -> SlotMatrix:
    """A random matrix of 12 x 9 between random layouts with padding."""
    rows, columns = rng.integers(-1, 12, slots), rng.integers(-1, 9, slots)
    return SlotMatrix(rng.uniform(-1, 1, (12, 9)), rows, columns, factor, ahead)


def view(k: Kernels, key: Host, rows: Sequence[int], first: int, extended: Sequence[int]) -> KeyView:
    """A key over more primes and digits than are read."""
    ready = k.stack([k.prepare(k.upload(digit), row_array(rows)) for digit in key])
    return KeyView(ready, first, row_array([list(rows).index(e) for e in extended]))


@dataclass(frozen=True, slots=True)
class KeyCase:
    """Operands and keys of one shape, on the host: keys of one digit and one prime more than are read."""

    n: int
    shape: Shape
    plan: DigitPlan
    second: Host  # (3, R, N), what is decomposed
    source: Host  # (3, 2, R, N)
    tall: Host  # (3, 2, E, N)
    keys: Host  # (3, beta + 1, 2, E + 1, N)
    factors: Residues
    elements: tuple[int, ...]

    @property
    def key_rows(self) -> tuple[int, ...]:
        spare = next(r for r in range(14) if r not in self.shape.extended)
        return (spare, *reversed(self.shape.extended))

    def views(self, k: Kernels, first: int = 1) -> list[KeyView]:
        return [view(k, key, self.key_rows, first, self.shape.extended) for key in self.keys]


def key_case(n: int, seed: int, shape: Shape) -> KeyCase:
    spare = next(r for r in range(14) if r not in shape.extended)
    return KeyCase(
        n, shape, digit_plan(moduli(n), shape.rows, shape.extended, shape.digits),
        words(n, shape.rows, (3,), seed), words(n, shape.rows, (3, 2), seed + 1),
        words(n, shape.extended, (3, 2), seed + 2),
        words(n, (spare, *reversed(shape.extended)), (3, len(shape.digits) + 1, 2), seed + 3),
        residues(n, shape.rows, seed + 4), (2 * (seed % n) + 1, 1, 2 * n - 1),
    )  # fmt: skip
