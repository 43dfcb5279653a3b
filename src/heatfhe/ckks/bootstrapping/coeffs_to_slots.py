# SPDX-License-Identifier: Apache-2.0
"""CoeffsToSlots: coefficients become slots, divided by what EvalMod wants."""

from __future__ import annotations

from collections.abc import Sequence

from heatfhe.ckks.bootstrapping.matrices import (
    Matrix,
    SplitMatrix,
    layer_groups,
    reach,
    rungs,
    split_matrix,
    split_right,
    transform,
)
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.linear import EncodedMap, apply_map
from heatfhe.ckks.ring import Ciphertext, at_scale


def turn(period: int, count: int) -> int:
    """The rotation, to the left, of the value that matrices with ``babies`` take: they turn it back."""
    return -sum(reach(group, period) for group in layer_groups(period, count, inverse=True))


def shared_rotations(period: int, count: int, babies: int) -> set[int]:
    """Every rotation of matrices with that many baby steps."""
    groups = layer_groups(period, count, inverse=True)
    return {k for group in groups for part in rungs(group, period, babies) for k in part} - {0}


def coeffs_to_slots_matrices(
    slots: int, period: int, count: int, interval: float, babies: int = 0
) -> list[SplitMatrix]:
    """Matrices from slots to (I + m/R) / (2 * interval), of a value that is turned if ``babies`` are given.

    The factor holds the trace's slots / period, the 1/2 of adding the conjugate, and the interval of EvalMod.
    """
    factor = (period / slots / (2 * interval)) ** (1 / count)
    matrices: list[Matrix] = [{k: d * factor for k, d in m.items()} for m in transform(period, count, inverse=True)]
    if not babies:
        return [split_matrix(m, period, slots) for m in matrices]
    out, now = [], turn(period, count)
    for m, group in zip(matrices, layer_groups(period, count, inverse=True)):
        out.append(split_right(m, group, period, slots, babies, now))
        now += reach(group, period)
    return out


def coeffs_to_slots(
    evaluator: Evaluator, a: Ciphertext, maps: Sequence[EncodedMap], *, imaginary: bool
) -> list[Ciphertext]:
    """The real coefficients, and the imaginary ones if asked."""
    for m in maps:
        a = apply_map(evaluator, a, m)
    a = at_scale(a, 2.0**evaluator.ring.chain.eval_bits)
    conjugate = evaluator.conjugate(a)
    real = evaluator.add(a, conjugate)
    return [real, evaluator.times_i(evaluator.sub(conjugate, a))] if imaginary else [real]
