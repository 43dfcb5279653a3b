# SPDX-License-Identifier: Apache-2.0
"""SlotsToCoeffs: slots become coefficients, at the scale that ModRaise wants."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heatfhe.ckks.bootstrapping.matrices import SplitMatrix, split_matrix, transform
from heatfhe.ckks.linear import EncodedMap, encode_map
from heatfhe.ckks.ring import Ring


def slots_to_coeffs_matrices(slots: int, period: int, count: int, turn: int = 0) -> list[SplitMatrix]:
    """Matrices of the forward transform, then a rotation."""
    *most, last = (split_matrix(m, period, slots) for m in transform(period, count, inverse=False))
    return [*most, last.turned(turn, slots)]


def encode_slots_to_coeffs(ring: Ring, parts: Sequence[SplitMatrix], start: int, gain: float) -> list[EncodedMap]:
    """Encode from level ``start`` down, every matrix at one scale; together they multiply the scale by ``gain``."""
    levels = [start - i for i in range(len(parts))]
    ratios = [float(ring.ratio(level, level - 1)) for level in levels]
    scale = math.exp(math.fsum([math.log(r) for r in ratios] + [math.log(gain)]) / len(parts))
    return [encode_map(ring, part.makers(), level, scale) for part, level in zip(parts, levels)]
