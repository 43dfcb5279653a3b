# SPDX-License-Identifier: Apache-2.0
"""Linear maps from arrays, for tests of engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.planning import LinearMap
from heatfhe.planning.weights import Dense


def linear_map(name: str, giants: Mapping[int, Mapping[int, NDArray[Any]]]) -> LinearMap:
    """The map with these vectors by giant and baby step, zero where there is none."""
    babies = tuple(sorted({b for row in giants.values() for b in row}))
    slots = next(v.shape for row in giants.values() for v in row.values())
    return LinearMap(
        weight=Dense(name),
        babies=babies,
        giants=tuple(giants),
        make=lambda g, b: giants[g][b] if b in giants[g] else np.zeros(slots),
    )
