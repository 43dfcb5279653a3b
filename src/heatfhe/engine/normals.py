# SPDX-License-Identifier: Apache-2.0
"""Standard normal numbers of a generator; where they are many, drawn by all cores."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

MANY = 1 << 20  # from here on in pieces: noise of 64 windows of a real model's ring took longer than all its arithmetic
PIECE = 1 << 17


def standard_normals(
    rng: np.random.Generator, shape: tuple[int, ...], *, threads: int | None = None
) -> NDArray[np.float64]:
    """Numbers of this shape. Fewer than MANY are the generator's own; of more every PIECE has a generator of its own,
    seeded by this one, so that the same seed gives the same numbers on any number of cores (default: all there are)."""
    out = np.empty(shape)
    if out.size < MANY:
        return rng.standard_normal(out=out)
    flat = out.reshape(-1)
    pieces = [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]
    seeds = rng.integers(1 << 63, size=(len(pieces), 2))

    def draw(piece: NDArray[np.float64], seed: NDArray[np.int64]) -> None:
        np.random.default_rng(seed).standard_normal(out=piece)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        list(pool.map(draw, pieces, seeds))
    return out
