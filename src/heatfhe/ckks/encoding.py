# SPDX-License-Identifier: Apache-2.0
"""Slots to integer coefficients and back: the canonical embedding, by one twisted FFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.errors import ConfigError

LARGEST = float(1 << 62)


def checked_slots(values: NDArray[Any], most: int) -> NDArray[Any]:
    """Slots that can be encoded: a power of two of finite numbers."""
    z = np.asarray(values)
    if z.ndim != 1 or z.size == 0 or z.size & (z.size - 1) or z.size > most:
        raise ConfigError(f"slots must be a power of two of at most {most} values, got shape {z.shape}")
    if not np.isfinite(z).all():
        raise ConfigError("slots must be finite numbers")
    return z


def too_large(scale: float) -> ConfigError:
    """What is said of integers that do not fit."""
    return ConfigError(f"a plaintext at scale 2^{np.log2(scale):.1f} does not fit 62 bits; make its values smaller")


@dataclass(frozen=True, slots=True, eq=False)
class SlotMatrix:
    """A matrix between two layouts of slots. Its diagonals are the plaintexts of a linear map.

    Slot s holds row ``rows[s]`` of the entries on the way in and column ``columns[s]`` on the way out; -1 is padding.
    The diagonal by r is factor * entries[rows[s + r + ahead], columns[s]] in slot s, zero where either is padding.
    """

    entries: NDArray[np.float64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    factor: complex = 1.0
    ahead: int = 0

    def diagonal(self, r: int) -> NDArray[Any]:
        """The slots by one rotation."""
        rows = np.roll(self.rows, -(r + self.ahead))
        real = (rows >= 0) & (self.columns >= 0)
        entries = self.entries[np.where(real, rows, 0), np.where(real, self.columns, 0)]
        return np.asarray(np.where(real, entries, 0.0) * self.factor)


def diagonal(matrices: Sequence[SlotMatrix], giant: int, baby: int) -> NDArray[Any]:
    """The plaintext of one (giant, baby): diagonals by their sum, added up and rolled back by the giant."""
    return np.roll(np.asarray(sum(m.diagonal(giant + baby) for m in matrices)), giant)


def checked_matrices(matrices: Sequence[SlotMatrix], scale: float, most: int) -> int:
    """The slots that matrices are laid out over, where every diagonal of theirs can be encoded at the scale."""
    period = matrices[0].rows.size
    for m in matrices:
        if m.entries.ndim != 2 or not np.isfinite(m.entries).all():
            raise ConfigError(f"a matrix between slots has rows and columns of finite numbers, got {m.entries.shape}")
        if {m.rows.shape, m.columns.shape} != {(period,)}:
            raise ConfigError(f"layouts of {m.rows.shape} and {m.columns.shape} slots: all must be of {period}")
        if m.rows.max() >= m.entries.shape[0] or m.columns.max() >= m.entries.shape[1]:
            raise ConfigError(f"a layout names an entry outside a matrix of {m.entries.shape}")
    if period & (period - 1) or not 0 < period <= most:
        raise ConfigError(f"slots must be a power of two of at most {most} values, got layouts of {period}")
    if sum(abs(m.factor) * np.abs(m.entries).max(initial=0.0) for m in matrices) * scale >= LARGEST:
        raise too_large(scale)
    return period


def slot_places(ring_dimension: int) -> NDArray[np.int64]:
    """Where slot j stands among the evaluations at odd powers of zeta: its power is 5^j."""
    powers = np.ones(ring_dimension // 2, dtype=np.int64)
    for j in range(1, ring_dimension // 2):
        powers[j] = powers[j - 1] * 5 % (2 * ring_dimension)
    return powers >> 1


class Encoder:
    """Slot j is the value of the polynomial at zeta^(5^j), zeta = exp(i pi / N).

    Domain  at most N/2 slots, a power of two; fewer slots repeat with their period.
    Bound   |decode(encode(z, D) / D) - z| <= N / (2 D) in every slot, rounding of doubles (2^-50 relative) aside.
    Source  Cheon, Kim, Kim, Song, "Homomorphic encryption for arithmetic of approximate numbers", 2017.
    """

    def __init__(self, ring_dimension: int) -> None:
        n = self.ring_dimension = ring_dimension
        self._place = slot_places(n)
        self._twist = np.exp(1j * np.pi * np.arange(n) / n)

    def embed(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Real coefficients of the polynomial with these slots."""
        n = self.ring_dimension
        z = checked_slots(values, n // 2)
        z = np.tile(z, n // 2 // z.size)
        points = np.empty(n, dtype=np.complex128)
        points[self._place] = z
        points[n - 1 - self._place] = z.conj()
        out: NDArray[np.float64] = (np.fft.fft(points) / n * self._twist.conj()).real
        return out

    def encode(self, values: NDArray[Any], scale: float) -> NDArray[np.int64]:
        """Integer coefficients at a scale."""
        coefficients = np.rint(self.embed(values) * scale)
        if np.abs(coefficients).max() >= LARGEST:
            raise too_large(scale)
        return coefficients.astype(np.int64)

    def decode(self, coefficients: NDArray[np.float64]) -> NDArray[np.complex128]:
        """All N/2 slots of real coefficients."""
        points = np.fft.ifft(coefficients * self._twist) * self.ring_dimension
        out: NDArray[np.complex128] = points[self._place]
        return out
