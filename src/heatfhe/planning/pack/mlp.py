# SPDX-License-Identifier: Apache-2.0
"""The MLP in variant B: a hidden vector with period F, after one level, from an input skewed where levels are to spare.

Skew: region a of F slots holds x[s + skew * a], so that the n / F regions see different inputs at one rotation. The
tree over the regions is then exact in all slots. The way back spreads its partial sums at a stride that is an odd
multiple of its near rotations and at least the width; they are right on the first width slots, a mask and a replication
follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heatfhe.planning.pack.layout import Index, Packing, periodic
from heatfhe.planning.pack.linear_map import LinearMap, linear_map
from heatfhe.planning.weights import Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicMlp:
    """The sizes of variant B for one packing."""

    packing: Packing
    halve: bool

    @property
    def fits(self) -> bool:
        """Whether the packing allows it: one hidden ciphertext, at least as long as the stream's period."""
        return self.packing.hidden_parts == 1 and self.packing.F >= self.packing.D

    @property
    def regions(self) -> int:
        """Copies of the hidden vector, each made from its own share of the input."""
        return self.packing.n // self.packing.F

    @property
    def skew(self) -> int:
        """The offset from one region to the next, which is how many inputs each region sees."""
        return max(1, self.packing.D * self.packing.F // self.packing.n // (2 if self.halves_input else 1))

    @property
    def halves_input(self) -> bool:
        """Whether real and imaginary part of the input carry its two halves."""
        return self.halve and self.packing.D * self.packing.F // self.packing.n >= 2

    def skewed(self, offset: int) -> Index:
        """Layout of the skewed input: index of the entry each slot holds, ``offset`` further on."""
        p = self.packing
        s = np.arange(p.n)
        index = (s + self.skew * (s // p.F) + offset) % p.D
        return np.where(index < p.shape.width, index, -1)

    @property
    def hidden(self) -> Index:
        """Layout of the hidden vector."""
        return periodic(self.packing.n, self.packing.F, self.packing.shape.hidden)

    def up(self, weight: Weight) -> LinearMap:
        """Skewed P -> P(F); a tree of stride F over all regions follows, valid everywhere."""
        return linear_map(weight, self.skew, halve=False, join=self.halves_input)

    @property
    def spread(self) -> tuple[int, int]:
        """Terms of the tree on the way back, and their stride: as many as fit into the slots without meeting."""
        p = self.packing
        terms = min(p.t, max(1, p.F // (2 if self.halve else 1)))
        while terms > 1:
            near = p.F // (2 if self.halve else 1) // terms
            stride = next(k for k in range(near, 2 * (p.shape.width + near) + 1, 2 * near) if k >= p.shape.width)
            if (terms - 1) * stride + p.shape.width <= p.n:
                return terms, stride
            terms //= 2
        return 1, 0

    @property
    def spread_out(self) -> Index:
        """Layout of the partial sums on the way back."""
        p = self.packing
        terms, stride = self.spread
        if terms == 1:
            return p.residual
        s = np.arange(p.n)
        index = np.where(s < terms * stride, s % stride, -1)
        return np.where(index < p.shape.width, index, -1)

    def down(self, weight: Weight) -> LinearMap:
        """P(F) -> P; a tree of stride and terms of ``spread`` follows, valid on the first width slots."""
        terms, _ = self.spread
        half = self.packing.F // 2 if self.halve and self.packing.F > 1 else 0
        return replace(linear_map(weight, (half or self.packing.F) // terms, halve=False), half=half)
