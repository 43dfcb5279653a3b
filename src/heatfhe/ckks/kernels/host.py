# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a processor share: words are numpy arrays in stored order, and nothing is recorded."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.encoding import Encoder, SlotMatrix, checked_matrices, diagonal
from heatfhe.ckks.expand import expanded
from heatfhe.ckks.kernels import plans
from heatfhe.ckks.kernels.plans import Rows, Words


class HostKernels(ABC):
    """Words made, read, cut and joined on the host."""

    records = False

    def __init__(self, ring_dimension: int, moduli: Sequence[int]) -> None:
        self.ring_dimension = ring_dimension
        self.moduli = tuple(moduli)
        self._encoder = Encoder(ring_dimension)
        self._natural = plans.natural_order(ring_dimension)

    @abstractmethod
    def ntt(self, x: Words, rows: Rows) -> Words:
        """Coefficients to evaluations."""

    @abstractmethod
    def intt(self, x: Words, rows: Rows) -> Words:
        """Evaluations to coefficients."""

    @abstractmethod
    def residues(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        """Signed integers modulo each prime."""

    @abstractmethod
    def prepare(self, x: Words, rows: Rows) -> Words:
        """The form in which products read a constant polynomial."""

    def upload(self, natural: NDArray[np.uint32]) -> Words:
        """Natural order to stored order."""
        out = np.empty(natural.shape, dtype=np.uint32)
        out[..., self._natural] = natural
        return out

    def download(self, x: Words) -> NDArray[np.uint32]:
        """Stored order to natural order."""
        return np.ascontiguousarray(x[..., self._natural])

    def evaluate(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        return self.ntt(self.residues(coefficients, rows), rows)

    def encode(self, slots: NDArray[Any], scale: float, rows: Rows) -> Words:
        return self.evaluate(self._encoder.encode(slots, scale), rows)

    def diagonals(
        self, matrices: Sequence[SlotMatrix], turns: Sequence[tuple[int, int]], scale: float, rows: Rows
    ) -> Words:
        checked_matrices(matrices, scale, self.ring_dimension // 2)
        out = np.empty((len(turns), len(rows), self.ring_dimension), dtype=np.uint32)
        for words, turn in zip(out, turns):
            words[:] = self.prepare(self.encode(diagonal(matrices, *turn), scale, rows), rows)
        return out

    def coefficients(self, x: Words, rows: Rows) -> NDArray[np.uint32]:
        return np.asarray(self.intt(x, rows))

    def uniform(self, heads: Sequence[bytes], rows: Rows) -> Words:
        return self.upload(expanded(heads, [self.moduli[r] for r in rows], self.ring_dimension))

    def size(self, x: Words) -> int:
        return int(x.nbytes)

    def polynomial(self, x: Words, index: int) -> Words:
        return x[index]

    def polynomials(self, x: Words, first: int, count: int) -> Words:
        return x[first : first + count]

    def each(self, x: Words, index: int) -> Words:
        return x[:, index]

    def limbs(self, x: Words, first: int, count: int) -> Words:
        return np.ascontiguousarray(x[..., first : first + count, :])

    def stack(self, parts: Sequence[Words]) -> Words:
        return np.stack(parts)

    def replay(
        self, name: Hashable, body: Callable[..., Sequence[Words]], *inputs: Words, short: bool = False
    ) -> Sequence[Words]:
        """The body itself."""
        return body(*inputs)

    def synchronize(self) -> None:
        """Everything is done when a method returns."""
        return

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def elapsed(self, first: float, then: float) -> float:
        return then - first
