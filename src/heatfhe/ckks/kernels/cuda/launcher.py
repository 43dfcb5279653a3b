# SPDX-License-Identifier: Apache-2.0
"""What every CUDA kernel needs: tables on the device, and the launches of transforms and conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.cuda.device import Buffer, Device
from heatfhe.ckks.kernels.cuda.tables import (
    ROW,
    TENSOR_WIDTH,
    TILE,
    ConversionTables,
    digit_tables,
    division_tables,
    prime_tables,
    tasks,
)
from heatfhe.ckks.kernels.plans import DigitPlan, Division, Residues, Rows, montgomery
from heatfhe.errors import ConfigError

THREADS = 256
BUSY = 512  # blocks that keep a GPU busy


@dataclass(frozen=True, slots=True, eq=False)
class Conversions:
    """ConversionTables on the device, as addresses."""

    heads: int
    destinations: int
    rows: int
    overflows: int
    fixed: int
    scales: int
    fragments: int
    offsets: int
    count: int
    most: int
    tensor: bool


class Launcher:
    """Tables of one ring on one device, uploaded when they are first met and kept, and the launches that need them."""

    def __init__(self, ring_dimension: int, moduli: Sequence[int], device: Device) -> None:
        if not ROW <= ring_dimension <= 1 << 16:
            raise ConfigError(f"the CUDA kernels take rings of dimension 256 to 65536, got {ring_dimension}")
        self.ring_dimension = n = ring_dimension
        self.moduli = tuple(moduli)
        self.device = device
        self._q = np.array(self.moduli, dtype=np.uint64)
        self._kept: dict[Any, Any] = {}
        self._tables: list[Buffer] = []
        t = prime_tables(n, self.moduli)
        self._primes, self._powers = self._table(t.primes), self._table(t.powers)
        self._forward = tuple(self._table(x) for x in t.forward)  # heads, tails, steps
        self._backward = tuple(self._table(x) for x in t.backward)
        self._inverse_n = t.inverse_n
        rows = n // ROW
        self._blocks = n // THREADS
        self._grid = max(1, rows // 16)  # blocks of a transform, in either pass
        self._row_block = 16 * min(rows, 16)

    # -- tables -------------------------------------------------------------------------------------------------------

    def _table(self, host: NDArray[Any]) -> int:
        """The address of a table that stays."""
        self._tables.append(self.device.array(host))
        return self._tables[-1].ptr

    def _keep(self, name: Any, make: Callable[[], Any]) -> Any:
        """What is under this name, made once."""
        found = self._kept.get(name)
        if found is None:
            found = self._kept[name] = make()
        return found

    def _rows(self, rows: Rows) -> int:
        return self._values("rows", rows.tobytes(), lambda: rows.astype(np.int32))

    def _values(self, what: str, name: Any, make: Callable[[], NDArray[Any]]) -> int:
        return int(self._keep((what, name), lambda: self._table(make())))

    def _constants(self, factors: Residues, rows: Rows, form: bool = True) -> int:
        """A residue per limb, in Montgomery form or as it is."""

        def make() -> NDArray[np.uint32]:
            q = self._q[rows]
            canonical = factors.astype(np.uint64) % q
            return montgomery(canonical, q) if form else canonical.astype(np.uint32)

        return self._values("form" if form else "plain", (factors.tobytes(), rows.tobytes()), make)

    def _elements(self, elements: Sequence[int], *, inverse: bool) -> int:
        """Galois elements, or their inverses; a null address where there are none."""
        if not len(elements):
            return 0
        n2 = 2 * self.ring_dimension
        return self._values(
            "inverses" if inverse else "elements", tuple(elements),
            lambda: np.array([pow(int(g), -1, n2) if inverse else int(g) for g in elements], dtype=np.uint32),
        )  # fmt: skip

    def _tasks(self, rows: Rows) -> int:
        """Every limb of a polynomial, in place."""
        places = range(len(rows))
        return self._values("tasks", rows.tobytes(), lambda: tasks(rows.tolist(), places, places))

    def _uploaded(self, t: ConversionTables) -> Conversions:
        names = ("heads", "destinations", "rows", "overflows", "fixed", "scales", "fragments", "offsets")
        tensor = self.device.tensor_cores and t.most >= TILE and t.widest <= TENSOR_WIDTH
        addresses = {name: self._table(getattr(t, name)) for name in names}
        return Conversions(**addresses, count=len(t.heads), most=t.most, tensor=tensor)

    # -- launches -----------------------------------------------------------------------------------------------------

    def _limbs(self, kernel: str, shape: tuple[int, ...], *args: int) -> None:
        """A kernel over every limb of (..., limbs, N)."""
        self.device.launch(kernel, (self._blocks, shape[-2], prod(shape[:-2])), THREADS, *args)

    def _polynomials(self, x: Buffer) -> tuple[int, int]:
        """Polynomials of x (..., limbs, N), and the words from one to the next."""
        if len(x.shape) == 2:
            return 1, 0
        if len(x.shape) == 3:
            return x.shape[0], x.stride
        return prod(x.shape[:-2]), x.shape[-2] * x.shape[-1]

    def _to_coefficients(
        self, x: Buffer, out: Buffer, read: int, written: int, count: int, scales: int, polynomials: int, apart: int
    ) -> None:
        """Inverse transforms of the limbs that tasks name, each times its constant, into out (B, count, N)."""
        heads, tails, steps = self._backward
        step, launch, grid = count * self.ring_dimension, self.device.launch, (self._grid, count, polynomials)
        launch("intt_rows", grid, self._row_block, x.ptr, out.ptr, read, apart, step, self._primes, heads, tails, steps)
        launch("intt_columns", grid, THREADS, out.ptr, out.ptr, written, step, step, scales, self._primes, heads)

    def _to_evaluations(self, x: Buffer, limbs: int, count: int, polynomials: int, apart: int) -> None:
        """Forward transforms of the limbs that tasks name, in place."""
        heads, tails, steps = self._forward
        launch, grid, p = self.device.launch, (self._grid, count, polynomials), x.ptr
        launch("ntt_columns", grid, THREADS, p, p, limbs, apart, apart, self._primes, heads)
        launch("ntt_rows", grid, self._row_block, p, p, limbs, apart, apart, self._primes, heads, tails, steps)

    def _convert(self, x: Buffer, out: Buffer, t: Conversions, in_apart: int, out_apart: int, count: int) -> None:
        """Conversions of ``count`` polynomials, by tensor cores where there are destinations enough to fill them."""
        launch, jobs = self.device.launch, t.count * count
        if t.tensor:
            tiles = -(-t.most // TILE)
            chunk = tiles if jobs >= 2 else -(-tiles // 2)
            grid = (self.ring_dimension // 128, -(-tiles // chunk), jobs)
            launch(
                "convert_tensor", grid, 128, x.ptr, out.ptr, t.heads, t.count, t.destinations, t.fragments, t.offsets,
                t.overflows, t.fixed, in_apart, out_apart, chunk, self._primes,
            )  # fmt: skip
            return
        blocks, kernel, chunk = self._blocks, "convert_one", t.most
        if blocks >= 2:
            blocks, kernel = blocks // 2, "convert_two"
        while blocks * jobs * -(-t.most // chunk) < BUSY and chunk > 4:
            chunk = -(-chunk // 2)
        launch(
            kernel, (blocks, -(-t.most // chunk), jobs), THREADS, x.ptr, out.ptr, t.heads, t.count, t.destinations,
            t.rows, t.overflows, t.fixed, in_apart, out_apart, chunk, self._primes,
        )  # fmt: skip

    def _digit_tables(self, plan: DigitPlan) -> tuple[Any, ...]:
        """Tasks of the source and of what is converted, the conversions, own limbs on the device and here."""

        def make() -> tuple[Any, ...]:
            t = digit_tables(plan, self.moduli, self._inverse_n)
            source, target, own = self._table(t.source), self._table(t.target), self._table(t.own)
            return source, target, len(t.target), self._uploaded(t.conversions), own, t.own, plan  # whose id stays

        return self._keep(("digits", id(plan)), make)  # type: ignore[no-any-return]

    def _division_tables(self, plan: Division) -> tuple[Any, ...]:
        """Tasks of what leaves, read and written, of what is kept, its constants, the conversions."""

        def make() -> tuple[Any, ...]:
            t = division_tables(plan, self.moduli, self._inverse_n)
            leaving, target, lifts = self._table(t.leaving), self._table(t.target), self._table(t.lifts)
            left = self._tasks(plan.conversion.src)
            return leaving, left, target, lifts, self._uploaded(t.conversions), plan  # whose id stays

        return self._keep(("division", id(plan)), make)  # type: ignore[no-any-return]
