# SPDX-License-Identifier: Apache-2.0
"""CpuKernels: the compiled loops of cpu.py behind the kernel protocol, limbs spread over a pool of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels import cpu, plans
from heatfhe.ckks.kernels.cpu_tables import Tables, shoup
from heatfhe.ckks.kernels.host import HostKernels
from heatfhe.ckks.kernels.plans import DigitPlan, Digits, Division, KeyView, Residues, Rows, Words, montgomery
from heatfhe.ckks.kernels.reference import powers
from heatfhe.ckks.primes import root_of_unity
from heatfhe.errors import ConfigError


class CpuKernels(HostKernels):
    """Kernels compiled by numba. One object may be used from one thread at a time; it owns its pool and tables."""

    device_name = "CPU"

    def __init__(self, ring_dimension: int, moduli: Sequence[int], *, threads: int = 1) -> None:
        if threads < 1:
            raise ConfigError(f"threads must be at least 1, got {threads}")
        super().__init__(ring_dimension, moduli)
        n = ring_dimension
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._q = q = np.array(self.moduli, dtype=np.uint32)
        self._qi = np.array([pow(p, -1, 1 << 32) for p in self.moduli], dtype=np.uint32)
        roots = [root_of_unity(p, n) for p in self.moduli]
        self._forward = self._twiddles(roots)
        self._backward = self._twiddles([pow(r, -1, p) for r, p in zip(roots, self.moduli)])
        self._square = np.array([pow(2, 64, p) for p in self.moduli], dtype=np.uint32)
        self._square_v = shoup(self._square, q)
        self._shift = montgomery(np.ones_like(q), q)
        self._shift_v = shoup(self._shift, q)
        self._stored = plans.exponents(n) >> 1
        self._tables = Tables(n, self.moduli)
        self._indices: dict[int, NDArray[np.int32]] = {}

    def _twiddles(self, roots: Sequence[int]) -> tuple[Residues, Residues, Residues, Residues]:
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

    # -- words --------------------------------------------------------------------------------------------------------

    def upload(self, natural: NDArray[np.uint32]) -> Words:
        return np.ascontiguousarray(natural[..., self._stored], dtype=np.uint32)

    # -- transforms ---------------------------------------------------------------------------------------------------

    def ntt(self, x: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        self._run(cpu.ntt, flat.shape[0] * flat.shape[1], out, flat, rows, *self._forward, self._q)
        return out.reshape(x.shape)

    def intt(self, x: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        place = np.arange(len(rows), dtype=np.int64)
        w, v = self._tables.shoup_rows(self._tables.inverse_n[rows], rows)
        self._intt(out, flat, place, place, rows, w, v)
        return out.reshape(x.shape)

    def residues(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        out = np.empty((len(rows), self.ring_dimension), dtype=np.uint32)
        self._run(cpu.residues, len(rows), out, np.ascontiguousarray(coefficients), rows, self._q)
        return out

    def _intt(self, out: Words, x: Words, source: Rows, target: Rows, rows: Rows, w: Residues, v: Residues) -> None:
        tasks = x.shape[0] * len(rows)
        self._run(cpu.intt, tasks, out, x, source, target, rows, w, v, *self._backward, self._q)

    # -- limb by limb -------------------------------------------------------------------------------------------------

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

    def scale(self, x: Words, factors: Residues, rows: Rows) -> Words:
        return self._scale(x, *self._tables.shoup_rows(factors, rows), rows)

    def _scale(self, x: Words, w: Residues, v: Residues, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        self._run(cpu.scale, flat.shape[0] * flat.shape[1], out, flat, w, v, rows, self._q)
        return out.reshape(x.shape)

    def combine(self, terms: Sequence[tuple[Words, Residues]], rows: Rows, onto: Words | None = None) -> Words:
        if onto is None:
            (x, factors), *terms = terms
            out = self.scale(x, factors, rows)
        else:
            out = onto.copy()
        for x, factors in terms:
            self._add_scaled(out, x, factors, rows)
        return out

    def _add_scaled(self, out: Words, x: Words, factors: Residues, rows: Rows) -> None:
        """Adds factors * x (B, R, N) to the first limbs of out (B, E, N)."""
        w, v = self._tables.shoup_rows(factors, rows)
        self._run(cpu.add_lifted, x.shape[0] * len(rows), out, np.ascontiguousarray(x), w, v, rows, self._q)

    def add_first(self, x: Words, p: Words, rows: Rows) -> Words:
        out = np.empty_like(x)
        out[1:] = x[1:]
        self._run(cpu.add_or_sub, len(rows), out[:1], x[:1], p[None], rows, self._q, False)
        return out

    def add_constant(self, x: Words, residues: Residues, rows: Rows) -> Words:
        out = np.empty_like(x)
        out[1:] = x[1:]
        self._run(cpu.add_constant, len(rows), out[0], x[0], residues, rows, self._q)
        return out

    def prepare(self, x: Words, rows: Rows) -> Words:
        return self._scale(x, self._shift[rows], self._shift_v[rows], rows)

    def product(self, x: Words, p: Words, rows: Rows) -> Words:
        flat = self._flat(x)
        out = np.empty_like(flat)
        self._run(cpu.product, flat.shape[0] * flat.shape[1], out, flat, p, rows, self._q, self._qi)
        return out.reshape(x.shape)

    def product_sum(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        alone, fours = pairs[: len(pairs) % 4], pairs[len(pairs) % 4 :]
        out = self.product(*alone[0], rows) if alone else np.zeros_like(pairs[0][0])
        tasks = 2 * len(rows)
        for x, p in alone[1:]:
            self._run(cpu.product_add, tasks, out, x, p, rows, self._q, self._qi)
        for i in range(0, len(fours), 4):
            xs, ps = zip(*fours[i : i + 4])
            self._run(cpu.product_add4, tasks, out, *xs, *ps, rows, self._q, self._qi)
        return out

    def tensor(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        out = np.zeros((3, len(rows), self.ring_dimension), dtype=np.uint32)
        for x, y in pairs:
            self._run(cpu.tensor_add, len(rows), out, x, y, rows, self._q, self._qi)
        return self._scale(out, self._shift[rows], self._shift_v[rows], rows)

    def _index(self, element: int) -> NDArray[np.int32]:
        if element not in self._indices:
            self._indices[element] = plans.galois_permutation(self.ring_dimension, element).astype(np.int32)
        return self._indices[element]

    def _move(self, out: Words, x: Words, element: int) -> None:
        """Writes the automorphism of x, contiguous, to out."""
        n = self.ring_dimension
        rows = x.reshape(-1, n)
        self._run(cpu.gather, len(rows), out.reshape(-1, n), rows, self._index(element))

    def automorphism(self, x: Words, element: int) -> Words:
        out = np.empty(x.shape, dtype=np.uint32)
        self._move(out, np.ascontiguousarray(x), element)
        return out

    # -- basis conversions --------------------------------------------------------------------------------------------

    def extend(self, x: Words, plan: DigitPlan) -> Words:
        return self.mod_up(x, plan)[0, 0]

    def mod_up(self, x: Words, plan: DigitPlan) -> Digits:
        tables = self._tables.digits(plan)
        batch = x if x.ndim == 3 else x[None]
        out = np.empty((len(batch), len(plan.conversions), len(plan.extended), self.ring_dimension), dtype=np.uint32)
        for digits, one in zip(out, batch):
            self._mod_up(digits, np.ascontiguousarray(one), plan, *tables)
        return out

    def _mod_up(
        self, out: Words, x: Words, plan: DigitPlan, tasks: NDArray[np.int64], matrix: Residues, starts: Rows,
        counts: Rows, target: Rows, fixed: NDArray[np.uint64], w: Residues, v: Residues, height: int,
    ) -> None:  # fmt: skip
        buffer = np.empty((1, height, self.ring_dimension), dtype=np.uint32)
        buffer[0, starts + counts + (counts + 1) % 2] = 0  # makes a digit's rows even, or is the overflow's own
        place = np.arange(len(plan.rows), dtype=np.int64)
        self._intt(buffer, x[None], place, target, plan.rows, w, v)
        self._run(cpu.overflow, len(starts), buffer, starts, counts, fixed)
        self._run(cpu.mod_up, len(tasks), out, x, buffer[0], tasks, matrix, *self._forward, self._q, self._qi)

    def divide(
        self, x: Words, plan: Division, elements: Sequence[int] = (), *, twice: bool = False,
        constant: Residues | None = None,
    ) -> Words:  # fmt: skip
        rows, out = plan.conversion.dst, self._divided(x, plan, elements)
        out = self.add(out, out, rows) if twice else out
        return out if constant is None else self.add_constant(out, constant, rows)

    def _divided(self, x: Words, plan: Division, elements: Sequence[int]) -> Words:
        limbs, n = len(plan.conversion.dst), self.ring_dimension
        if x.flags.c_contiguous:
            flat = x.reshape(-1, *x.shape[-2:])
            out = np.empty((len(flat), limbs, n), dtype=np.uint32)
            self._divide(out, flat, plan)
        else:  # a polynomial of each of several ciphertexts
            out = np.empty((len(x), limbs, n), dtype=np.uint32)
            for i in range(len(x)):
                self._divide(out[i : i + 1], np.ascontiguousarray(x[i : i + 1]), plan)
        out = out.reshape(*x.shape[:-2], limbs, n)
        if not elements:
            return out
        moved = np.empty_like(out)
        for value, quotient, element in zip(moved, out, elements):
            self._move(value, quotient, element)
        return moved

    def _divide(self, out: Words, x: Words, plan: Division) -> None:
        tables = self._tables.division(plan)
        matrix, lift, lift_v, counts, target, w, v, fixed, width = tables
        c = plan.conversion
        buffer = np.empty((x.shape[0], width, self.ring_dimension), dtype=np.uint32)
        buffer[:, -1] = 0  # makes the rows even, if it is not the overflow's own
        self._intt(buffer, x, plan.leave, target, c.src, w, v)
        self._run(cpu.overflow, x.shape[0], buffer, np.zeros(1, dtype=np.int64), counts, fixed)
        self._run(
            cpu.divide, x.shape[0] * len(c.dst), out, x, buffer, c.dst, plan.keep, matrix, lift, lift_v,
            *self._forward, self._q, self._qi,
        )  # fmt: skip

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _key_product(self, out: Words, digits: Words, key: KeyView, rows: Rows) -> None:
        """Writes the sum over one decomposition (beta, E, N) of its products with a key to out (2, E, N)."""
        part = key.words[key.first : key.first + len(digits)]
        self._run(cpu.key_product, len(rows), out, digits, part, key.places, rows, self._q, self._qi)

    def _join(self, out: Words, x: Words, factors: Residues, rows: Rows) -> None:
        """Adds x (B, R or E, N), raised where it has fewer limbs, to out (B, E, N)."""
        limbs = x.shape[1]
        if limbs < len(rows):
            self._add_scaled(out, x, factors, rows[:limbs])
        else:
            self._run(cpu.add_or_sub, len(x) * limbs, out, out, np.ascontiguousarray(x), rows, self._q, False)

    def switch(
        self, digits: Digits | None, keys: Sequence[KeyView | None], rows: Rows, *, source: Words, factors: Residues,
        elements: Sequence[int] = (),
    ) -> Words:  # fmt: skip
        out = np.empty((len(keys), 2, len(rows), self.ring_dimension), dtype=np.uint32)
        work = np.empty_like(out[0]) if any(g != 1 for g in elements) else None
        for value, key, element in zip(out, keys, elements or [1] * len(keys)):
            still = value if work is None or element == 1 else work
            if key is None:
                still[:] = 0
                self._join(still, source, factors, rows)
            else:
                assert digits is not None  # only the identity does without
                self._key_product(still, digits[0], key, rows)
                self._join(still[:1], source[:1], factors, rows)
            if still is not value:
                self._move(value, still, element)
        return out

    def switch_total(
        self, digits: Digits, keys: Sequence[KeyView], rows: Rows, *, factors: Residues, elements: Sequence[int] = (),
        source: Words | None = None, base: Words | None = None,
    ) -> Words:  # fmt: skip
        total: Words | None = None
        work = np.empty((2, len(rows), self.ring_dimension), dtype=np.uint32)
        for i, (key, element) in enumerate(zip(keys, elements or [1] * len(keys))):
            self._key_product(work, digits[i if len(digits) > 1 else 0], key, rows)
            if source is not None:
                own = source[i] if source.ndim == 4 else source
                self._join(work[:1], own[:1], factors, rows)
            if total is None:
                total, work = (work, np.empty_like(work)) if element == 1 else (self.automorphism(work, element), work)
            else:
                self._run(cpu.gather_add, 2 * len(rows), total, work, self._index(element), rows, self._q)
        if base is not None:
            self._join(total, base, factors, rows)
        return total

    # -- maps, and whole operations -----------------------------------------------------------------------------------

    def giant_sums(self, values: Words, which: Sequence[Rows], plains: Sequence[Words], rows: Rows) -> Words:
        out = np.empty((len(which), 2, len(rows), self.ring_dimension), dtype=np.uint32)
        for total, some, ready in zip(out, which, plains):
            self._run(cpu.multiply_accumulate, len(rows), total, values, some, ready, rows, self._q, self._qi)
        return out
