# SPDX-License-Identifier: Apache-2.0
"""What the compiled loops read of constants and plans: Shoup and Montgomery words, made once and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.plans import Conversion, DigitPlan, Division, Residues, Rows, montgomery

KEPT = 4096  # constants with their Shoup words, and plans with their tables


def shoup(w: NDArray[Any], q: NDArray[Any]) -> Residues:
    """floor(w 2^32 / q)."""
    return ((w.astype(np.uint64) << np.uint64(32)) // q.astype(np.uint64)).astype(np.uint32)


def even(count: int) -> int:
    """The next even number: rows are consumed in pairs."""
    return count + count % 2


class Tables:
    """Constants of one list of primes, a bounded number of them."""

    def __init__(self, ring_dimension: int, moduli: Sequence[int]) -> None:
        self._q = np.array(moduli, dtype=np.uint32)
        self.inverse_n = np.array([pow(ring_dimension, -1, p) for p in moduli], dtype=np.uint64)
        self._plans: dict[object, tuple[Any, ...]] = {}
        self._constants_kept: dict[tuple[str, bytes, bytes], tuple[Residues, Residues]] = {}

    def shoup_rows(self, factors: NDArray[Any], rows: Rows) -> tuple[Residues, Residues]:
        """Constants with their Shoup words; the latest ones are kept, a bootstrap asks for the same ones each time."""
        name = factors.dtype.char, factors.tobytes(), rows.tobytes()
        found = self._constants_kept.get(name)
        if found is None:
            if len(self._constants_kept) >= KEPT:
                self._constants_kept.clear()
            q = self._q[rows]
            w = (factors.astype(np.uint64) % q).astype(np.uint32)
            found = self._constants_kept[name] = w, shoup(w, q)
        return found

    def digits(self, plan: DigitPlan) -> tuple[Any, ...]:
        """What mod_up reads of a plan."""
        return self._kept(plan, lambda: self._digit_tables(plan, *self._digit_tasks(plan)))

    def division(self, plan: Division) -> tuple[Any, ...]:
        """What divide reads of a plan."""
        return self._kept(plan, lambda: self._division_tables(plan))

    def _kept(self, plan: DigitPlan | Division, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Tables of a plan, made once; of many plans the least recently used leave."""
        found = self._plans.pop(plan, None) or make()
        if len(self._plans) >= KEPT:
            self._plans.pop(next(iter(self._plans)))
        self._plans[plan] = found
        return found

    def _matrix(self, c: Conversion, width: int) -> Residues:
        """Montgomery constants (m, width): sources, the overflow row with -D, a zero if the width is even."""
        q = self._q[c.dst]
        out = np.zeros((len(c.dst), width), dtype=np.uint32)
        out[:, : len(c.src)] = montgomery(c.matrix, q[:, None])
        out[:, len(c.src)] = montgomery((q - c.modulus) % q, q)
        return out

    def _constants(self, c: Conversion) -> tuple[Residues, Residues]:
        factors = np.array(
            [int(f) * int(n) % int(p) for f, n, p in zip(c.inverse, self.inverse_n[c.src], self._q[c.src])]
        )
        return self.shoup_rows(factors, c.src)

    def _digit_tasks(self, plan: DigitPlan) -> tuple[NDArray[np.int64], list[Residues]]:
        tasks, matrices, first = [], [], 0
        width = even(max(len(c.src) for c in plan.conversions) + 1)
        for digit, c in enumerate(plan.conversions):
            count = even(len(c.src) + 1)
            rows = np.zeros((len(plan.extended), width), dtype=np.uint32)
            own = {int(p): int(plan.starts[digit]) + i for i, p in enumerate(c.src)}
            others = [limb for limb, p in enumerate(plan.extended) if int(p) not in own]
            rows[others, :count] = self._matrix(c, count)
            tasks += [[digit, limb, p, own.get(int(p), -1), first, count] for limb, p in enumerate(plan.extended)]
            matrices.append(rows)
            first += count
        return np.array(tasks, dtype=np.int64), matrices

    def _digit_tables(self, plan: DigitPlan, tasks: NDArray[np.int64], matrices: list[Residues]) -> tuple[Any, ...]:
        counts = np.array([len(c.src) for c in plan.conversions], dtype=np.int64)
        sizes = np.array([even(k + 1) for k in counts], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        target = np.concatenate([s + np.arange(k) for s, k in zip(starts, counts)]).astype(np.int64)
        fixed = np.zeros((len(counts), int(counts.max())), dtype=np.uint64)
        for row, c in zip(fixed, plan.conversions):
            row[: len(c.src)] = c.fixed
        constants = [self._constants(c) for c in plan.conversions]
        w, v = (np.concatenate(parts) for parts in zip(*constants))
        return tasks, np.concatenate(matrices), starts, counts, target, fixed, w, v, int(sizes.sum())

    def _division_tables(self, plan: Division) -> tuple[Any, ...]:
        c = plan.conversion
        width = even(len(c.src) + 1)
        counts = np.array([len(c.src)], dtype=np.int64)
        target = np.arange(len(c.src), dtype=np.int64)
        lift, constants = self.shoup_rows(plan.lift, c.dst), self._constants(c)
        return (self._matrix(c, width), *lift, counts, target, *constants, c.fixed[None].copy(), width)
