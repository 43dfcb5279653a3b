# SPDX-License-Identifier: Apache-2.0
"""Plaintext linear maps by diagonals: baby steps hoisted, giant steps on raised sums, one division at the end.

y = sum over G of rot_G( sum over b of p_(G,b) * rot_b(x) ). Baby rotations of x share one decomposition and stay
modulo QP; plaintexts are encoded modulo QP too; each giant step divides only its second polynomial by P, to decompose
it again; the division by P of the result and its rescale are one step. (Double hoisting: Bossuat, Mouchet,
Troncoso-Pastoriza, Hubaux, ePrint 2020/1203.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.kernels import Rows, Words
from heatfhe.ckks.keys import GALOIS, galois_element
from heatfhe.ckks.ring import Ciphertext, Ring
from heatfhe.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class EncodedMap:
    """A linear map encoded at one level, modulo QP."""

    level: int
    scale: float  # of the plaintexts
    babies: tuple[int, ...]
    giants: tuple[tuple[int, Rows, Words], ...]  # rotation, which baby each plaintext multiplies, plaintexts (D, E, N)

    @property
    def memory(self) -> int:
        """Memory held."""
        return sum(words.nbytes for _, _, words in self.giants)

    @property
    def rotations(self) -> tuple[int, ...]:
        """Rotations that need a key."""
        return tuple(sorted({*self.babies, *(g for g, _, _ in self.giants)} - {0}))


Diagonals = Mapping[int, Mapping[int, Callable[[], NDArray[Any]]]]


def encode_map(ring: Ring, giants: Diagonals, level: int, scale: float) -> EncodedMap:
    """Encode giants[G][b]() for every G and b; the vectors are already rolled back by G."""
    slots = ring.chain.ring_dimension // 2
    babies = tuple(sorted({b % slots for row in giants.values() for b in row}))
    place = {b: i for i, b in enumerate(babies)}
    rows = ring.extended(level)
    out = []
    for g, row in giants.items():
        which = np.array([place[b % slots] for b in row], dtype=np.int64)
        plains = np.empty((len(row), len(rows), ring.chain.ring_dimension), dtype=np.uint32)
        for plain, make in zip(plains, row.values()):
            plain[:] = ring.plaintext(make(), scale, rows)
        out.append((g % slots, which, plains))
    return EncodedMap(level, scale, babies, tuple(out))


def apply_map(evaluator: Evaluator, a: Ciphertext, m: EncodedMap) -> Ciphertext:
    """The map's image, one level down."""
    ring, switch = evaluator.ring, evaluator.switch
    kernels, level = ring.kernels, a.level
    if level != m.level:
        raise EngineError(f"linear map: encoded at level {m.level}, the operand is at level {level}")
    rows, n = ring.extended(level), ring.chain.ring_dimension
    values = np.empty((len(m.babies), 2, len(rows), n), dtype=np.uint32)
    digits = switch.decompose(a.data[1], level) if any(m.babies) else None
    for value, baby in zip(values, m.babies):
        if baby == 0 or digits is None:
            value[:] = switch.lifted(a.data, level)
            continue
        element = galois_element(baby, n)
        product = switch.product(digits, level, GALOIS, element)
        switch.raised(a.data[:1], level, product[:1])
        value[:] = kernels.automorphism(product, element)
    total: Words | None = None
    for giant, which, plains in m.giants:
        inner = kernels.multiply_accumulate(values, which, plains, rows)
        if giant:
            element = galois_element(giant, n)
            second = switch.mod_down(inner[1:], level)[0]
            product = switch.product(switch.decompose(second, level), level, GALOIS, element)
            product[0] = kernels.add(product[0], inner[0], rows)
            inner = kernels.automorphism(product, element)
        total = inner if total is None else kernels.add(total, inner, rows)
    if total is None:
        raise EngineError("linear map: it has no diagonals")
    scale = a.scale * m.scale / float(ring.ratio(level, level - 1))
    canonical = ring.scales[level - 1] if level - 1 < len(ring.scales) else scale
    if abs(scale / canonical - 1) < 1e-12:
        scale = canonical
    return Ciphertext(level - 1, scale, switch.mod_down(total, level, level - 1))
