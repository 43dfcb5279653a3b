# SPDX-License-Identifier: Apache-2.0
"""Hybrid key switching: decompose, multiply by a key modulo QP, divide by P; apart, so that parts can be shared."""

from __future__ import annotations

import numpy as np

from heatfhe.ckks.kernels import Words
from heatfhe.ckks.keys import KeyTable
from heatfhe.ckks.ring import Ring
from heatfhe.errors import MissingKeyError


class KeySwitcher:
    """Key switching over one ring and one table of keys.

    Noise of one switch, per coefficient: sigma * sqrt(beta N / 12) * (largest digit / P) from the keys, at most one
    bit, and sqrt((h + 1) / 12) from the rounding of the division by P.
    """

    def __init__(self, ring: Ring, keys: KeyTable) -> None:
        self.ring, self.keys = ring, keys

    def decompose(self, a: Words, level: int) -> Words:
        """Digits of a polynomial (limbs, N), raised to the extended level: shared by every rotation of it."""
        return self.ring.kernels.mod_up(a, self.ring.digit_plan(level))

    def product(self, digits: Words, level: int, kind: int, element: int = 1) -> Words:
        """Inner product with a key: (2, extended limbs, N), P times the switched polynomial modulo QP."""
        words, cap = self.keys.get(kind, element)
        if cap < level:
            raise MissingKeyError(
                f"the key for Galois element {element} serves levels up to {cap}, the operand is at level {level}; "
                "drop the operand first or ask for a key of a higher cap"
            )
        ring = self.ring
        present = ring.chain.digit_numbers(level)
        key = words[present[0] : present[-1] + 1]
        return ring.kernels.key_product(digits, key, ring.key_places(level, cap), ring.extended(level))

    def raised(self, data: Words, level: int, onto: Words) -> Words:
        """onto + P * data: polynomials (B, limbs, N) joined to polynomials modulo QP, in place."""
        ring = self.ring
        return ring.kernels.add_lifted(onto, data, ring.special_factors(level), ring.rows(level))

    def lifted(self, data: Words, level: int) -> Words:
        """P * data modulo QP."""
        shape = (data.shape[0], len(self.ring.extended(level)), data.shape[-1])
        return self.raised(data, level, np.zeros(shape, dtype=np.uint32))

    def mod_down(self, x: Words, level: int, target: int | None = None) -> Words:
        """Divide by P and, where a lower target is given, rescale in the same step."""
        ring = self.ring
        return ring.kernels.divide(x, ring.step(level, level if target is None else target, extended=True))
