# SPDX-License-Identifier: Apache-2.0
"""ModRaise: from q0 to the levels of CoeffsToSlots, through the sparse secret, so that the overflow is small.

Dense to sparse under q0 * P_t alone (sparse-secret encapsulation, ePrint 2022/024), exact centred lift, then back.
The result's coefficients are q0 * I + message, with |I| < 16 but for a probability of 2^-105 per ciphertext at N = 2^16
(a sum of 33 uniform terms). The sum over automorphisms keeps only the subring of a periodic value. Its first steps are
folded into the way back to the dense secret: there the second polynomial is still small, so each automorphism costs
one product with a key of one digit instead of a whole key switch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.kernels import KeyView
from heatfhe.ckks.keys import TO_DENSE, TO_SPARSE, KeyId, fold_rotations, galois_element
from heatfhe.ckks.ring import Ciphertext


def mod_raise(evaluator: Evaluator, a: Ciphertext, period: int, level: int) -> Ciphertext:
    """A ciphertext of level 0 at a level of CoeffsToSlots and the same scale, summed over the trace's folded part."""
    ring, switch = evaluator.ring, evaluator.switch
    chain, kernels = ring.chain, ring.kernels
    n, base = chain.ring_dimension, ring.rows(0)

    rows = np.array(KeyId(kind=TO_SPARSE).rows(chain), dtype=np.int64)
    words, _ = switch.keys.get(TO_SPARSE)
    key = KeyView(words, 0, np.arange(len(rows), dtype=np.int64))
    digits = kernels.mod_up(kernels.polynomial(a.data, 1), ring.lift(rows))
    special = math.prod(chain.moduli[int(r)] for r in rows[len(base) :])
    product = kernels.switch(digits, [key], rows, source=a.data, factors=ring.constant(special, base))
    sparse = kernels.polynomial(kernels.divide(product, ring.base_step(rows)), 0)

    b = kernels.extend(kernels.polynomial(sparse, 0), ring.lift(ring.rows(level)))
    digits = kernels.mod_up(kernels.polynomial(sparse, 1), ring.lift(ring.extended(level)))
    words, cap = switch.keys.get(TO_DENSE)
    elements = [galois_element(k, n) for k in folded(n // 2, period)]
    keys = [KeyView(words, i, ring.key_places(level, cap)) for i in range(len(elements))]
    total = switch.total(digits, level, keys, elements=elements, source=kernels.stack([b, b]))
    return Ciphertext(level, a.scale, switch.mod_down(total, level))


def trace(evaluator: Evaluator, a: Ciphertext, groups: Iterable[Sequence[int]]) -> Ciphertext:
    """The rest of the sum over rotations by multiples of the period: projects on the subring, times slots / period."""
    for group in groups:
        a = evaluator.add_rotations(a, group)
    return a


def folded(slots: int, period: int) -> tuple[int, ...]:
    """Rotations that ModRaise itself sums over: a subgroup of the multiples of the period."""
    every = fold_rotations(slots)
    return every[: min(len(every), slots // period)]


def trace_groups(slots: int, period: int, shared: Collection[int] = ()) -> list[tuple[int, ...]]:
    """What a value is added to its rotations by, step by step, up to what ModRaise has summed already.

    Two doublings at a time, which share a decomposition, aligned at even powers of two: periods share their keys.
    Where rotations are named whose keys there are anyway, two doublings at a time wherever all three are among them.
    """
    end = slots // len(folded(slots, period))
    out: list[tuple[int, ...]] = []
    while period < end:
        three = (period, 2 * period, 3 * period)
        fits = set(three) <= set(shared) if shared else (period.bit_length() - 1) % 2 == 0
        if fits and 2 * period < end:
            out.append(three)
            period *= 4
        else:
            out.append((period,))
            period *= 2
    return out
