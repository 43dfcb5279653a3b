# SPDX-License-Identifier: Apache-2.0
"""Second stage: from q0 to the whole chain, through the sparse secret, so that the overflow is small.

Dense to sparse under q0 * P_t alone (sparse-secret encapsulation, ePrint 2022/024), exact centred lift, then back.
The result's coefficients are q0 * I + message, with |I| < 16 but for a probability of 2^-105 per ciphertext at N = 2^16
(a sum of 33 uniform terms); the sum over automorphisms keeps only the subring of a periodic value.
"""

from __future__ import annotations

import math

import numpy as np

from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.keys import TO_DENSE, TO_SPARSE, KeyId
from heatfhe.ckks.ring import Ciphertext


def mod_raise(evaluator: Evaluator, a: Ciphertext) -> Ciphertext:
    """A ciphertext of level 0 at the top level, its scale q0."""
    ring, keys = evaluator.ring, evaluator.switch.keys
    chain, kernels = ring.chain, ring.kernels
    base, top = ring.rows(0), chain.top

    rows = np.array(KeyId(kind=TO_SPARSE).rows(chain), dtype=np.int64)
    key, _ = keys.get(TO_SPARSE)
    every = np.arange(len(rows), dtype=np.int64)
    product = kernels.key_product(kernels.mod_up(a.data[1], ring.lift(rows)), key, every, rows)
    special = math.prod(chain.moduli[int(r)] for r in rows[len(base) :])
    kernels.add_lifted(product[:1], a.data[:1], ring.constant(special, base), base)
    sparse = kernels.divide(product, ring.base_step(rows))

    b = kernels.mod_up(sparse[0], ring.lift(ring.rows(top)))
    digits = kernels.mod_up(sparse[1], ring.lift(ring.extended(top)))
    key, _ = keys.get(TO_DENSE)
    product = kernels.key_product(digits, key, ring.key_places(top, top), ring.extended(top))
    evaluator.switch.raised(b, top, product[:1])
    return Ciphertext(top, float(chain.base_modulus), evaluator.switch.mod_down(product, top))


def trace(evaluator: Evaluator, a: Ciphertext, period: int) -> Ciphertext:
    """Sum over the rotations by multiples of the period: projects on the subring, times slots / period."""
    for rotation in trace_rotations(evaluator.ring.chain.ring_dimension // 2, period):
        a = evaluator.add(a, evaluator.rotate(a, rotation))
    return a


def trace_rotations(slots: int, period: int) -> list[int]:
    """period, 2 period, ... up to half of the slots."""
    out = []
    while period < slots:
        out.append(period)
        period *= 2
    return out
