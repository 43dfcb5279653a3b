# SPDX-License-Identifier: Apache-2.0
"""Plaintext linear maps by diagonals: baby steps hoisted, giant steps on raised sums, one division at the end.

y = sum over G of rot_G( sum over b of p_(G,b) * rot_b(x) ). Baby rotations of x share one decomposition and stay
modulo QP; plaintexts are encoded modulo QP too; each giant step divides only its second polynomial by P, to decompose
it again; the division by P of the result and its rescale are one step. (Double hoisting: Bossuat, Mouchet,
Troncoso-Pastoriza, Hubaux, ePrint 2020/1203.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.encoding import SlotMatrix
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.kernels import Rows, Words
from heatfhe.ckks.keys import GALOIS, galois_element
from heatfhe.ckks.ring import Ciphertext, Ring
from heatfhe.errors import EngineError

TOGETHER = 4  # giant steps that share a call: their sums and digits are held at once


@dataclass(frozen=True, slots=True, eq=False)
class EncodedMap:
    """A linear map encoded at one level, modulo QP.

    ``name`` is that of a map that is kept and applied again, unique among the maps of one ring; None for any other.
    """

    level: int
    scale: float  # of the plaintexts
    babies: tuple[int, ...]
    giants: tuple[tuple[int, Rows, Words], ...]  # rotation, which baby each plaintext multiplies, plaintexts (D, E, N)
    memory: int  # bytes held
    name: Hashable | None = None

    @property
    def rotations(self) -> tuple[int, ...]:
        """Rotations that need a key."""
        return tuple(sorted({*self.babies, *(g for g, _, _ in self.giants)} - {0}))


Diagonals = Mapping[int, Mapping[int, Callable[[], NDArray[Any]]]]


def encode_map(ring: Ring, giants: Diagonals, level: int, scale: float, *, name: Hashable | None = None) -> EncodedMap:
    """Encode giants[G][b]() for every G and b; the vectors are already rolled back by G."""
    slots = ring.chain.ring_dimension // 2
    babies = tuple(sorted({b % slots for row in giants.values() for b in row}))
    if not babies:
        raise EngineError("linear map: it has no diagonals")
    place = {b: i for i, b in enumerate(babies)}
    rows = ring.extended(level)
    out = []
    for g, row in ((g, row) for g, row in giants.items() if row):
        which = np.array([place[b % slots] for b in row], dtype=np.int64)
        plains = ring.kernels.stack([ring.plaintext(make(), scale, rows) for make in row.values()])
        out.append((g % slots, which, plains))
    memory = sum(ring.kernels.size(plains) for _, _, plains in out)
    return EncodedMap(level, scale, babies, tuple(out), memory, name)


def encode_matrices(
    ring: Ring,
    matrices: Sequence[SlotMatrix],
    babies: Sequence[int],
    giants: Sequence[int],
    level: int,
    scale: float,
    *,
    name: Hashable | None = None,
) -> EncodedMap:
    """Encode the map whose plaintexts are the diagonals of matrices, all of them at once."""
    slots, each = ring.chain.ring_dimension // 2, len(babies)
    sources = tuple(sorted({b % slots for b in babies}))
    turns = [(g, b) for g in giants for b in babies]
    plains = ring.kernels.diagonals(matrices, turns, scale, ring.extended(level))
    which = np.array([sources.index(b % slots) for b in babies], dtype=np.int64)
    rows = tuple((g % slots, which, ring.kernels.polynomials(plains, i * each, each)) for i, g in enumerate(giants))
    return EncodedMap(level, scale, sources, rows, ring.kernels.size(plains), name)


def apply_map(evaluator: Evaluator, a: Ciphertext, m: EncodedMap) -> Ciphertext:
    """The map's image, one level down."""
    ring, level = evaluator.ring, a.level
    if level != m.level:
        raise EngineError(f"linear map: encoded at level {m.level}, the operand is at level {level}")
    (data,) = ring.kernels.replay(m.name, lambda words: [_image(evaluator, words, m)], a.data)
    return Ciphertext(level - 1, ring.scale_below(a.scale * m.scale, level), data)


def _image(evaluator: Evaluator, data: Words, m: EncodedMap) -> Words:
    """The words of the image."""
    ring, switch, level = evaluator.ring, evaluator.switch, m.level
    kernels, n = ring.kernels, ring.chain.ring_dimension
    digits = switch.decompose(kernels.polynomial(data, 1), level) if any(m.babies) else None
    values = switch.products(digits, level, [galois_element(b, n) for b in m.babies], data, moved=True)

    def sums(giants: Sequence[tuple[int, Rows, Words]]) -> Words:
        return kernels.giant_sums(values, [w for _, w, _ in giants], [p for _, _, p in giants], ring.extended(level))

    giants = sorted(m.giants, key=lambda g: g[0] != 0)  # what is not moved first: the others are added to it
    total: Words | None = None
    for first in range(0, len(giants), TOGETHER):
        some = giants[first : first + TOGETHER]
        inner = sums(some)
        if some[0][0] == 0:
            total, some = kernels.polynomial(inner, 0), some[1:]
            inner = kernels.polynomials(inner, 1, len(some))
        if some:
            elements = [galois_element(g, n) for g, _, _ in some]
            keys = [switch.view(level, GALOIS, element) for element in elements]
            second = switch.decompose(switch.mod_down(kernels.each(inner, 1), level), level)
            total = switch.total(second, level, keys, elements=elements, source=inner, base=total)
    return switch.mod_down(total, level, level - 1)
