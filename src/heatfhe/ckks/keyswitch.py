# SPDX-License-Identifier: Apache-2.0
"""Hybrid key switching: decompose, multiply by a key modulo QP, divide by P; apart, so that parts can be shared."""

from __future__ import annotations

from collections.abc import Sequence

from heatfhe.ckks.kernels import Digits, KeyView, Words
from heatfhe.ckks.keys import GALOIS, KeyTable
from heatfhe.ckks.ring import PLAIN, After, Ring
from heatfhe.errors import MissingKeyError


class KeySwitcher:
    """Key switching over one ring and one table of keys.

    Noise of one switch, per coefficient: sigma * sqrt(beta N / 12) * (largest digit / P) from the keys, at most one
    bit, and sqrt((h + 1) / 12) from the rounding of the division by P.
    """

    def __init__(self, ring: Ring, keys: KeyTable) -> None:
        self.ring, self.keys = ring, keys
        self._views: dict[tuple[int, int, int], KeyView] = {}

    def decompose(self, a: Words, level: int) -> Digits:
        """Digits of a polynomial (limbs, N), or of each of several, raised to the extended level."""
        return self.ring.kernels.mod_up(a, self.ring.digit_plan(level))

    def view(self, level: int, kind: int, element: int = 1) -> KeyView:
        """What a level reads of a key."""
        words, cap = self.keys.get(kind, element)
        name = (kind, element, level)
        if name not in self._views or self._views[name].words is not words:
            if cap < level:
                raise MissingKeyError(
                    f"the key for Galois element {element} serves levels up to {cap}, the operand is at level {level}; "
                    "drop the operand first or ask for a key of a higher cap"
                )
            first = self.ring.chain.rows(level).start // len(self.ring.chain.special)
            self._views[name] = KeyView(words, first, self.ring.key_places(level, cap))
        return self._views[name]

    def products(
        self, digits: Digits | None, level: int, elements: Sequence[int], source: Words, *, moved: bool
    ) -> Words:
        """(K, 2, E, N): a ciphertext under the key of each automorphism, modulo QP, itself moved or yet to be.

        ``digits`` are those of its second polynomial; element 1 is the ciphertext itself and needs none.
        """
        ring = self.ring
        keys = [None if g == 1 else self.view(level, GALOIS, g) for g in elements]
        return ring.kernels.switch(
            digits, keys, ring.extended(level), source=source, factors=ring.special_factors(level),
            elements=elements if moved else (),
        )  # fmt: skip

    def total(
        self, digits: Digits, level: int, keys: Sequence[KeyView], *, elements: Sequence[int] = (),
        source: Words | None = None, base: Words | None = None,
    ) -> Words:  # fmt: skip
        """(2, E, N): base plus the sum of what the keys give, modulo QP; see the kernels' switch_total."""
        ring = self.ring
        return ring.kernels.switch_total(
            digits, keys, ring.extended(level), factors=ring.special_factors(level), elements=elements, source=source,
            base=base,
        )  # fmt: skip

    def mod_down(
        self, x: Words, level: int, target: int | None = None, *, elements: Sequence[int] = (), after: After = PLAIN
    ) -> Words:
        """Divide by P and, where a lower target is given, rescale in the same division; then move, or finish."""
        target = level if target is None else target
        plan = self.ring.division(level, target, extended=True)
        return self.ring.kernels.divide(x, plan, elements, **self.ring.finish(target, after))
