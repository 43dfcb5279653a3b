# SPDX-License-Identifier: Apache-2.0
"""Plaintexts on the device: slots to evaluations, one vector or all diagonals of a linear map at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.encoding import LARGEST, SlotMatrix, checked_matrices, checked_slots, slot_places, too_large
from heatfhe.ckks.kernels.cuda.device import WORD, Buffer
from heatfhe.ckks.kernels.cuda.launcher import THREADS, Launcher
from heatfhe.ckks.kernels.plans import Rows

TOGETHER = 64  # diagonals in one launch: at N = 2^16 their spectra take 64 MiB, the transform as much again
MATRIX = np.dtype(  # SlotMatrix of limbs.cu
    [
        ("entries", "u8"), ("rows", "u8"), ("columns", "u8"), ("width", "i4"), ("ahead", "i4"),
        ("real", "f8"), ("imaginary", "f8"),
    ]
)  # fmt: skip


class Encoding(Launcher):
    """What of the kernels makes plaintexts. A diagonal is never a vector on the host: entries are read from the matrix,
    transformed, rounded and reduced in batches, and leave as they are multiplied, in Montgomery form."""

    def evaluate(self, coefficients: NDArray[np.int64], rows: Rows) -> Buffer:
        integers = self.device.array(coefficients.astype(np.int64, copy=False))
        out = self.device.empty((len(rows), self.ring_dimension))
        self._evaluate(integers, out, rows, self._powers)
        return out

    def encode(self, slots: NDArray[Any], scale: float, rows: Rows) -> Buffer:
        n = self.ring_dimension
        z = checked_slots(slots, n // 2)
        if float(np.abs(z).max()) * scale >= LARGEST:  # no coefficient is larger than the largest slot
            raise too_large(scale)
        values = self.device.array(z.astype(np.complex128))
        points = self._points(1)
        self.device.launch(
            "place_slots", self._half_blocks(1), THREADS, values.ptr, points.ptr, self._places, z.size
        )
        out = self.device.empty((len(rows), n))
        self._transformed(points, out, scale, rows, self._powers)
        return out

    def diagonals(
        self, matrices: Sequence[SlotMatrix], turns: Sequence[tuple[int, int]], scale: float, rows: Rows
    ) -> Buffer:
        n = self.ring_dimension
        period = checked_matrices(matrices, scale, n // 2)
        parts, table = self._matrices(matrices)
        steps = self.device.array((np.array(turns, dtype=np.int64) & (period - 1)).astype(np.uint32))
        out = self.device.empty((len(turns), len(rows), n))
        for start in range(0, len(turns), TOGETHER):
            count = min(TOGETHER, len(turns) - start)
            points = self._points(count)
            self.device.launch(
                "place_diagonals", self._half_blocks(count), THREADS, table.ptr, len(parts), steps.ptr + 8 * start,
                points.ptr, self._places, period,
            )  # fmt: skip
            some = Buffer(out.ptr + WORD * out.stride * start, (count, *out.shape[1:]), out.owner)
            self._transformed(points, some, scale, rows, self._shifted_powers)
        return out

    def _matrices(self, matrices: Sequence[SlotMatrix]) -> tuple[list[list[Buffer]], Buffer]:
        """Matrices on the device, and the table that names them; what is given twice is sent once."""
        sent: dict[int, Buffer] = {}

        def at(host: NDArray[Any], kind: type) -> Buffer:
            if id(host) not in sent:
                sent[id(host)] = self.device.array(host.astype(kind, copy=False))
            return sent[id(host)]

        parts = [[at(m.entries, np.float64), at(m.rows, np.int32), at(m.columns, np.int32)] for m in matrices]
        lines = [
            (*(x.ptr for x in part), m.entries.shape[1], m.ahead, complex(m.factor).real, complex(m.factor).imag)
            for part, m in zip(parts, matrices)
        ]
        return parts, self.device.array(np.array(lines, dtype=MATRIX))

    def _transformed(self, points: Buffer, out: Buffer, scale: float, rows: Rows, powers: int) -> None:
        """Spectra (T, N) of conjugate pairs to evaluations (T, limbs, N), or (limbs, N) of one."""
        n, count = self.ring_dimension, points.shape[0]
        twist = self._values("twist", n, lambda: np.exp(1j * np.pi * np.arange(n) / n))
        integers = self.device.empty((count, n, 2))
        self.device.fourier(points)
        grid = (self._blocks, count, 1)
        self.device.launch("round_spectrum", grid, THREADS, points.ptr, twist, integers.ptr, scale / n)
        self._evaluate(integers, out, rows, powers)

    def _evaluate(self, integers: Buffer, out: Buffer, rows: Rows, powers: int) -> None:
        limbs = self._tasks(rows)
        self._limbs("residues", out.shape, integers.ptr, out.ptr, limbs, self._primes, powers)
        self._to_evaluations(out, limbs, len(rows), *self._polynomials(out))

    def _points(self, count: int) -> Buffer:
        """Room for spectra: two doubles a point."""
        return self.device.empty((count, self.ring_dimension, 4))

    def _half_blocks(self, count: int) -> tuple[int, int, int]:
        return max(1, self.ring_dimension // 2 // THREADS), count, 1

    @property
    def _places(self) -> int:
        """Where each slot stands among the points."""
        n = self.ring_dimension
        return self._values("slots", n, lambda: slot_places(n).astype(np.int32))

    @property
    def _shifted_powers(self) -> int:
        """As ``_powers``, for residues that come out in Montgomery form: 2^96 and 2^64."""
        pairs = [[pow(2, 96, q), pow(2, 64, q)] for q in self.moduli]
        return self._values("shifted powers", 0, lambda: np.array(pairs, dtype=np.uint32))
