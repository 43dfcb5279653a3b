# SPDX-License-Identifier: Apache-2.0
"""Normal numbers drawn in pieces: the same on any number of cores, few ones as the generator itself draws them."""

from __future__ import annotations

import numpy as np
import pytest

from heatfhe.engine.normals import MANY, PIECE, standard_normals


def test_few_numbers_are_the_generators_own() -> None:
    shape = (4, 1, 1000)
    wanted = np.random.default_rng(3).standard_normal(shape)
    assert np.array_equal(standard_normals(np.random.default_rng(3), shape), wanted)


@pytest.mark.parametrize("shape", [(MANY,), (3, 1, MANY // 2 + 1)])
def test_many_numbers_do_not_depend_on_the_cores(shape: tuple[int, ...]) -> None:
    """Normal by their first four moments, within six deviations; no two pieces alike; the next draw is another."""
    rng = np.random.default_rng(3)
    first, second = standard_normals(rng, shape, threads=1), standard_normals(rng, shape, threads=1)
    assert first.shape == shape
    assert np.array_equal(first, standard_normals(np.random.default_rng(3), shape, threads=3))
    assert not np.array_equal(first, second)
    flat = first.reshape(-1)
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96)}.items():
        assert abs((flat**power).mean() - mean) < 6 * np.sqrt(variance / flat.size)
    pieces = [flat[start : start + 100] for start in range(0, flat.size, PIECE)]
    assert len({piece.tobytes() for piece in pieces}) == len(pieces) == -(-flat.size // PIECE)
    assert abs(np.corrcoef(flat[:PIECE], flat[PIECE : 2 * PIECE])[0, 1]) < 6 / np.sqrt(PIECE)
