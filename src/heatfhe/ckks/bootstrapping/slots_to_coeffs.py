# SPDX-License-Identifier: Apache-2.0
"""SlotsToCoeffs: slots become coefficients, multiplied by what the order of stages asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from heatfhe.ckks.bootstrapping.matrices import Matrix, Steps, steps, transform
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.linear import EncodedMap, apply_map, encode_map
from heatfhe.ckks.ring import Ciphertext, Ring


def slots_to_coeffs_steps(slots: int, period: int, count: int, ratio: float, *, beside: bool) -> list[Steps]:
    """Matrices of the forward transform times a ratio, of halves side by side where EvalMod leaves them so."""
    factor = ratio ** (1 / count)
    matrices: list[Matrix] = [{k: d * factor for k, d in m.items()} for m in transform(period, count, inverse=False)]
    if beside:  # the halves hold real and imaginary parts: multiply them by 1 and i, the sum follows by rotation
        halves = np.concatenate([np.ones(period), 1j * np.ones(period)])
        matrices[0] = {
            k: np.tile(d, 2) * np.roll(halves, -(k - period if k > period // 2 else k)) for k, d in matrices[0].items()
        }
    return [steps(m, period, slots) for m in matrices]


def encode_slots_to_coeffs(ring: Ring, parts: Sequence[Steps], start: int, gain: float) -> list[EncodedMap]:
    """Encode from level ``start`` down, every matrix at one scale; together they multiply the scale by ``gain``."""
    levels = [start - i for i in range(len(parts))]
    ratios = [float(ring.ratio(level, level - 1)) for level in levels]
    scale = math.exp(math.fsum([math.log(r) for r in ratios] + [math.log(gain)]) / len(parts))
    return [encode_map(ring, part.makers(), level, scale) for part, level in zip(parts, levels)]


def slots_to_coeffs(
    evaluator: Evaluator, halves: Sequence[Ciphertext], maps: Sequence[EncodedMap], period: int
) -> Ciphertext:
    """The refreshed ciphertext, from the one or two ciphertexts of EvalMod."""
    full = len(halves) == 2
    a = evaluator.add(halves[0], evaluator.times_i(halves[1])) if full else halves[0]
    for i, m in enumerate(maps):
        a = apply_map(evaluator, a, m)
        if i == 0 and not full:
            a = evaluator.add(a, evaluator.rotate(a, period))
    return Ciphertext(a.level, evaluator.ring.scales[a.level], a.data)  # equal up to rounding of doubles
