# SPDX-License-Identifier: Apache-2.0
"""CpuKernels: the compiled loops of cpu.py behind the kernel protocol, limbs spread over a pool of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels import cpu, plans
from heatfhe.ckks.kernels.plans import Conversion, DigitPlan, Division, Rows, Words
from heatfhe.ckks.kernels.reference import powers
from heatfhe.ckks.primes import root_of_unity
from heatfhe.errors import ConfigError

KEPT = 4096  # constants with their Shoup words


def shoup(w: NDArray[Any], q: NDArray[Any]) -> Words:
    """floor(w 2^32 / q)."""
    return ((w.astype(np.uint64) << np.uint64(32)) // q.astype(np.uint64)).astype(np.uint32)


def montgomery(w: NDArray[Any], q: NDArray[Any]) -> Words:
    """w 2^32 mod q."""
    return ((w.astype(np.uint64) << np.uint64(32)) % q.astype(np.uint64)).astype(np.uint32)


class CpuKernels:
    """Kernels compiled by numba. One object may be used from one thread at a time; it owns its pool and tables."""

    def __init__(self, ring_dimension: int, moduli: Sequence[int], *, threads: int = 1) -> None:
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}")
        self.ring_dimension = n = ring_dimension
        self.moduli = tuple(moduli)
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._q = q = np.array(self.moduli, dtype=np.uint32)
        self._qi = np.array([pow(p, -1, 1 << 32) for p in self.moduli], dtype=np.uint32)
        roots = [root_of_unity(p, n) for p in self.moduli]
        self._forward = self._twiddles(roots)
        self._backward = self._twiddles([pow(r, -1, p) for r, p in zip(roots, self.moduli)])
        self._inverse_n = np.array([pow(n, -1, p) for p in self.moduli], dtype=np.uint64)
        self._square = np.array([pow(2, 64, p) for p in self.moduli], dtype=np.uint32)
        self._square_v = shoup(self._square, q)
        self._shift = montgomery(np.ones_like(q), q)
        self._shift_v = shoup(self._shift, q)
        self._tables: dict[object, tuple[Any, ...]] = {}
        self._indices: dict[int, NDArray[np.int32]] = {}
        self._constants_kept: dict[tuple[str, bytes, bytes], tuple[Words, Words]] = {}

    def _twiddles(self, roots: Sequence[int]) -> tuple[Words, Words, Words, Words]:
        """Twiddles of the first stages (P, blocks) and of the transposed ones (P, N), with Shoup words."""
        n = self.ring_dimension
        blocks, length = plans.split(n)
        reversal = plans.bit_reversal(n)
        head = np.empty((len(roots), blocks), dtype=np.uint32)
        tail = np.zeros((len(roots), length, blocks), dtype=np.uint32)
        for i, (root, p) in enumerate(zip(roots, self.moduli)):
            psi = powers(root, n, p)[reversal].astype(np.uint32)
            head[i] = psi[:blocks]
            groups = 1
            while groups < length:
                tail[i, groups : 2 * groups] = psi[blocks * groups : 2 * blocks * groups].reshape(blocks, groups).T
                groups *= 2
        q = self._q
        flat = tail.reshape(len(roots), n)
        return head, shoup(head, q[:, None]), flat, shoup(flat, q[:, None])

    def _run(self, loop: Callable[..., None], count: int, *args: Any) -> None:
        """Spread tasks 0..count over the pool."""
        if self._pool is None or count < 2:
            loop(*args, 0, count)
            return
        parts = min(self.threads, count)
        edges = [count * i // parts for i in range(parts + 1)]
        waiting = [self._pool.submit(loop, *args, edges[i], edges[i + 1]) for i in range(1, parts)]
        loop(*args, 0, edges[1])
        for part in waiting:
            part.result()

    def _flat(self, x: Words) -> Words:
        """(B, R, N), contiguous."""
        return np.ascontiguousarray(x).reshape(-1, *x.shape[-2:])

    def _shoup_rows(self, factors: NDArray[Any], rows: Rows) -> tuple[Words, Words]:
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

    def ntt(self, x: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        self._run(cpu.ntt, flat.shape[0] * flat.shape[1], out, flat, rows, *self._forward, self._q)
        return out.reshape(x.shape)

    def intt(self, x: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        place = np.arange(len(rows), dtype=np.int64)
        w, v = self._shoup_rows(self._inverse_n[rows], rows)
        self._intt(out, flat, place, place, rows, w, v)
        return out.reshape(x.shape)

    def _intt(self, out: Words, x: Words, source: Rows, target: Rows, rows: Rows, w: Words, v: Words) -> None:
        tasks = x.shape[0] * len(rows)
        self._run(cpu.intt, tasks, out, x, source, target, rows, w, v, *self._backward, self._q)

    def _add_or_sub(self, x: Words, y: Words, rows: Rows, minus: bool) -> Words:
        a, b = self._flat(x), self._flat(y)
        out = np.empty_like(a)
        self._run(cpu.add_or_sub, a.shape[0] * a.shape[1], out, a, b, rows, self._q, minus)
        return out.reshape(x.shape)

    def add(self, x: Words, y: Words, rows: Rows) -> Words:
        return self._add_or_sub(x, y, rows, False)

    def sub(self, x: Words, y: Words, rows: Rows) -> Words:
        return self._add_or_sub(x, y, rows, True)

    def negate(self, x: Words, rows: Rows) -> Words:
        return self._add_or_sub(np.zeros_like(x), x, rows, True)

    def scale(self, x: Words, factors: Words, rows: Rows) -> Words:
        return self._scale(x, *self._shoup_rows(factors, rows), rows)

    def _scale(self, x: Words, w: Words, v: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        self._run(cpu.scale, flat.shape[0] * flat.shape[1], out, flat, w, v, rows, self._q)
        return out.reshape(x.shape)

    def prepare(self, x: Words, rows: Rows) -> Words:
        return self._scale(x, self._shift[rows], self._shift_v[rows], rows)

    def product(self, x: Words, p: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        self._run(cpu.product, flat.shape[0] * flat.shape[1], out, flat, p, rows, self._q, self._qi)
        return out.reshape(x.shape)

    def tensor(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        out = np.zeros((3, len(rows), self.ring_dimension), dtype=np.uint32)
        for x, y in pairs:
            self._run(cpu.tensor_add, len(rows), out, x, y, rows, self._q, self._qi)
        return self._scale(out, self._shift[rows], self._shift_v[rows], rows)

    def automorphism(self, x: Words, element: int) -> Words:
        if element not in self._indices:
            self._indices[element] = plans.galois_permutation(self.ring_dimension, element).astype(np.int32)
        flat = np.ascontiguousarray(x).reshape(-1, self.ring_dimension)
        out = np.empty_like(flat)
        self._run(cpu.gather, flat.shape[0], out, flat, self._indices[element])
        return out.reshape(x.shape)

    def residues(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        out = np.empty((len(rows), self.ring_dimension), dtype=np.uint32)
        self._run(cpu.residues, len(rows), out, np.ascontiguousarray(coefficients), rows, self._q)
        return out

    # -- conversions ------------------------------------------------------------------------------------------------

    def _matrix(self, c: Conversion, width: int) -> Words:
        """Montgomery constants (m, width): sources, the overflow row with -D, a zero if the width is even."""
        q = self._q[c.dst]
        out = np.zeros((len(c.dst), width), dtype=np.uint32)
        out[:, : len(c.src)] = montgomery(c.matrix, q[:, None])
        out[:, len(c.src)] = montgomery((q - c.modulus) % q, q)
        return out

    def _constants(self, c: Conversion) -> tuple[Words, Words]:
        factors = np.array(
            [int(f) * int(n) % int(p) for f, n, p in zip(c.inverse, self._inverse_n[c.src], self._q[c.src])]
        )
        return self._shoup_rows(factors, c.src)

    def mod_up(self, x: Words, plan: DigitPlan) -> Words:
        tables = self._tables.get(plan)
        if tables is None:
            tables = self._tables[plan] = (plan, *self._digit_tables(plan, *self._digit_tasks(plan)))
        return self._mod_up(np.ascontiguousarray(x), *tables)

    def _digit_tasks(self, plan: DigitPlan) -> tuple[NDArray[np.int64], list[Words]]:
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

    def _digit_tables(self, plan: DigitPlan, tasks: NDArray[np.int64], matrices: list[Words]) -> tuple[Any, ...]:
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

    def _mod_up(
        self, x: Words, plan: DigitPlan, tasks: NDArray[np.int64], matrix: Words, starts: Rows, counts: Rows,
        target: Rows, fixed: NDArray[np.uint64], w: Words, v: Words, height: int,
    ) -> Words:  # fmt: skip
        n = self.ring_dimension
        buffer = np.empty((1, height, n), dtype=np.uint32)
        buffer[0, starts + counts + (counts + 1) % 2] = 0  # makes a digit's rows even, or is the overflow's own
        place = np.arange(len(plan.rows), dtype=np.int64)
        self._intt(buffer, x[None], place, target, plan.rows, w, v)
        self._run(cpu.overflow, len(starts), buffer, starts, counts, fixed)
        out = np.empty((len(plan.conversions), len(plan.extended), n), dtype=np.uint32)
        self._run(cpu.mod_up, len(tasks), out, x, buffer[0], tasks, matrix, *self._forward, self._q, self._qi)
        return out

    def divide(self, x: Words, plan: Division) -> Words:
        c = plan.conversion
        tables = self._tables.get(plan)
        if tables is None:
            width = even(len(c.src) + 1)
            lift, lift_v = self._shoup_rows(plan.lift, c.dst)
            counts = np.array([len(c.src)], dtype=np.int64)
            constants = self._constants(c)
            target = np.arange(len(c.src), dtype=np.int64)
            tables = (self._matrix(c, width), lift, lift_v, counts, target, *constants, c.fixed[None].copy(), width)
            self._tables[plan] = tables
        matrix, lift, lift_v, counts, target, w, v, fixed, width = tables
        x = np.ascontiguousarray(x)
        buffer = np.empty((x.shape[0], width, self.ring_dimension), dtype=np.uint32)
        buffer[:, -1] = 0  # makes the rows even, if it is not the overflow's own
        self._intt(buffer, x, plan.leave, target, c.src, w, v)
        self._run(cpu.overflow, x.shape[0], buffer, np.zeros(1, dtype=np.int64), counts, fixed)
        out = np.empty((x.shape[0], len(c.dst), self.ring_dimension), dtype=np.uint32)
        self._run(
            cpu.divide, x.shape[0] * len(c.dst), out, x, buffer, c.dst, plan.keep, matrix, lift, lift_v,
            *self._forward, self._q, self._qi,
        )  # fmt: skip
        return out

    def add_lifted(self, onto: Words, x: Words, factors: Words, rows: Rows) -> Words:
        w, v = self._shoup_rows(factors, rows)
        self._run(cpu.add_lifted, x.shape[0] * len(rows), onto, np.ascontiguousarray(x), w, v, rows, self._q)
        return onto

    def key_product(self, digits: Words, key: Words, key_rows: Rows, rows: Rows) -> Words:
        out = np.empty((2, len(rows), self.ring_dimension), dtype=np.uint32)
        self._run(cpu.key_product, len(rows), out, digits, key, key_rows, rows, self._q, self._qi)
        return out

    def multiply_accumulate(self, values: Words, which: Rows, plains: Words, rows: Rows) -> Words:
        out = np.empty((2, len(rows), self.ring_dimension), dtype=np.uint32)
        self._run(cpu.multiply_accumulate, len(rows), out, values, which, plains, rows, self._q, self._qi)
        return out


def even(count: int) -> int:
    """The next even number: rows are consumed in pairs."""
    return count + count % 2
