# SPDX-License-Identifier: Apache-2.0
"""CudaKernels: the kernel protocol over the `.cu` sources, on any device that runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.expand import LANES, padded_blocks, uniform_limb
from heatfhe.ckks.kernels.cuda.device import WORD, Buffer, Device, Recording
from heatfhe.ckks.kernels.cuda.encoder import Encoding
from heatfhe.ckks.kernels.cuda.launcher import THREADS
from heatfhe.ckks.kernels.cuda.tables import pairs
from heatfhe.ckks.kernels.cuda.tape import Mailbox, Tape, TapeFull, TapeRecorder
from heatfhe.ckks.kernels.plans import DigitPlan, Division, KeyView, Residues, Rows
from heatfhe.errors import ConfigError

MOST_DIGITS = 8  # of a key, as switching.cu is instantiated
GIANTS = 4  # sums in one launch
FEW = 4  # terms in one launch
REJECTED = 64  # words of a key that may be drawn again: 2^-33 of them are


@dataclass(frozen=True, slots=True, eq=False)
class CudaDigits:
    """Decompositions (count, beta, E, N) whose own limbs are read from the polynomials themselves."""

    words: Buffer
    source: Buffer
    count: int
    apart: int  # words from one source polynomial to the next
    beta: int
    own: int  # address


class CudaKernels(Encoding):
    """Kernels of one ring on one device. Words are buffers of the device, evaluations in bit-reversed order.

    One object may be used from one thread at a time.
    """

    records = True

    def __init__(self, ring_dimension: int, moduli: Sequence[int], device: Device) -> None:
        super().__init__(ring_dimension, moduli, device)
        self.device_name = device.name
        self._recordings: dict[Hashable, Recording | None] = {}
        self._inside = False
        self._mailbox = Mailbox(device)

    # -- words --------------------------------------------------------------------------------------------------------

    def upload(self, natural: NDArray[np.uint32]) -> Buffer:
        return self._reordered(self.device.array(natural.astype(np.uint32, copy=False)))

    def download(self, x: Buffer) -> NDArray[np.uint32]:
        return self.device.host(self._reordered(self._contiguous(x)))

    def _contiguous(self, x: Buffer) -> Buffer:
        if x.stride == prod(x.shape[1:]):
            return x
        return self.stack([self.polynomial(x, i) for i in range(x.shape[0])])

    def _reordered(self, x: Buffer) -> Buffer:
        out = self.device.empty(x.shape)
        self._limbs("reorder", x.shape, x.ptr, out.ptr)
        return out

    def coefficients(self, x: Buffer, rows: Rows) -> NDArray[np.uint32]:
        polynomials, apart = self._polynomials(x)
        out, limbs = self.device.empty((*x.shape[:-2], len(rows), self.ring_dimension)), self._tasks(rows)
        scales = self._values("1/N", rows.tobytes(), lambda: pairs(self._inverse_n[rows], self._q[rows]))
        self._to_coefficients(x, out, limbs, limbs, len(rows), scales, polynomials, apart)
        return self.device.host(out)

    def uniform(self, heads: Sequence[bytes], rows: Rows) -> Buffer:
        """Polynomials (len(heads), limbs, N) expanded from seeds on the device; see ckks/expand.py."""
        n, limbs = self.ring_dimension, len(rows)
        primes = [self.moduli[r] for r in rows]
        host = padded_blocks(heads, primes, n)
        total = host.size // LANES
        blocks = self.device.array(host)
        rejected = self.device.array(np.zeros(1 + 2 * REJECTED, dtype=np.uint32))
        out = self.device.empty((len(heads), limbs, n))
        self.device.launch(
            "expand", (-(-total // 64), 1, 1), 64, blocks.ptr, out.ptr, rejected.ptr, REJECTED, total,
            self._rows(np.tile(rows, len(heads))), self._primes, self._powers,
        )  # fmt: skip
        found = self.device.host(rejected)
        if found[0]:  # one word in 2^33 is drawn again
            natural = self.download(out).reshape(-1, n)
            for limb in {int(k) for k in found[1 : 1 + 2 * min(int(found[0]), REJECTED) : 2]}:
                natural[limb] = uniform_limb(heads[limb // limbs], primes[limb % limbs], n)
            return self.upload(natural.reshape(out.shape))
        return out

    def size(self, x: Buffer) -> int:
        return x.nbytes

    def polynomial(self, x: Buffer, index: int) -> Buffer:
        return Buffer(x.ptr + WORD * x.stride * (index % x.shape[0]), x.shape[1:], x.owner)

    def polynomials(self, x: Buffer, first: int, count: int) -> Buffer:
        return Buffer(x.ptr + WORD * x.stride * first, (count, *x.shape[1:]), x.owner, x.stride)

    def each(self, x: Buffer, index: int) -> Buffer:
        inner = prod(x.shape[2:])
        return Buffer(x.ptr + WORD * inner * index, (x.shape[0], *x.shape[2:]), x.owner, x.stride)

    def limbs(self, x: Buffer, first: int, count: int) -> Buffer:
        out = self.device.empty((*x.shape[:-2], count, self.ring_dimension))
        self._limbs("copy_limbs", out.shape, x.ptr, out.ptr, first, x.shape[-2])
        return out

    def stack(self, parts: Sequence[Buffer]) -> Buffer:
        out = self.device.empty((len(parts), *parts[0].shape))
        for i, part in enumerate(map(self._contiguous, parts)):
            self.device.copy(out.ptr + i * part.nbytes, part.ptr, part.nbytes)
        return out

    # -- limb by limb -------------------------------------------------------------------------------------------------

    def _map(self, kernel: str, x: Buffer, rows: Rows, *more: int) -> Buffer:
        """x, other addresses, a result of x's shape."""
        out = self.device.empty(x.shape)
        self._limbs(kernel, x.shape, x.ptr, *more, out.ptr, self._rows(rows), self._primes)
        return out

    def add(self, x: Buffer, y: Buffer, rows: Rows) -> Buffer:
        return self._map("add", x, rows, y.ptr)

    def sub(self, x: Buffer, y: Buffer, rows: Rows) -> Buffer:
        return self._map("subtract", x, rows, y.ptr)

    def negate(self, x: Buffer, rows: Rows) -> Buffer:
        return self._map("negate", x, rows)

    def add_first(self, x: Buffer, p: Buffer, rows: Rows) -> Buffer:
        return self._map("add_first", x, rows, p.ptr)

    def add_constant(self, x: Buffer, residues: Residues, rows: Rows) -> Buffer:
        return self._map("add_constant", x, rows, self._constants(residues, rows, form=False))

    def scale(self, x: Buffer, factors: Residues, rows: Rows) -> Buffer:
        return self.combine([(x, factors)], rows)

    def combine(self, terms: Sequence[tuple[Buffer, Residues]], rows: Rows, onto: Buffer | None = None) -> Buffer:
        shape = terms[0][0].shape
        ready = [(x.ptr, self._constants(f, rows)) for x, f in terms]
        return self._few("combine", ready, shape, shape, onto, self._rows(rows))

    def _few(
        self, kernel: str, terms: Sequence[tuple[int, int]], grid: tuple[int, ...], shape: tuple[int, ...],
        onto: Buffer | None, *args: int,
    ) -> Buffer:  # fmt: skip
        """A sum of terms, a few in each launch."""
        for start in range(0, len(terms), FEW):
            part = terms[start : start + FEW]
            out = self.device.empty(shape)
            flat = [a for term in part for a in term] + [0, 0] * (FEW - len(part))
            self._limbs(kernel, grid, 0 if onto is None else onto.ptr, *flat, out.ptr, *args, self._primes)
            onto = out
        assert onto is not None  # a sum of nothing is never asked for
        return onto

    def prepare(self, x: Buffer, rows: Rows) -> Buffer:
        """Montgomery form."""
        return self.scale(x, np.array([(1 << 32) % self.moduli[r] for r in rows], dtype=np.uint32), rows)

    def product(self, x: Buffer, p: Buffer, rows: Rows) -> Buffer:
        return self.product_sum([(x, p)], rows)

    def product_sum(self, pairs: Sequence[tuple[Buffer, Buffer]], rows: Rows) -> Buffer:
        shape = pairs[0][0].shape
        return self._few("products", [(x.ptr, p.ptr) for x, p in pairs], shape, shape, None, self._rows(rows))

    def tensor(self, pairs: Sequence[tuple[Buffer, Buffer]], rows: Rows) -> Buffer:
        grid = (len(rows), self.ring_dimension)
        ready = [(x.ptr, y.ptr) for x, y in pairs]
        return self._few("tensor", ready, grid, (3, *grid), None, self._powers, self._rows(rows))

    def automorphism(self, x: Buffer, element: int) -> Buffer:
        out = self.device.empty(x.shape)
        self._limbs("automorphism", x.shape, x.ptr, out.ptr, element)
        return out

    # -- basis conversions --------------------------------------------------------------------------------------------

    def mod_up(self, x: Buffer, plan: DigitPlan) -> CudaDigits:
        source, target, targets, conversions, own, _, _ = self._digit_tables(plan)
        n, present, beta, extended = self.ring_dimension, len(plan.rows), len(plan.conversions), len(plan.extended)
        count, apart = self._polynomials(x)
        low = self.device.empty((count, present, n))
        words = self.device.empty((count, beta, extended, n))
        self._to_coefficients(x, low, source, source, present, conversions.scales, count, apart)
        self._convert(low, words, conversions, present * n, words.stride, count)
        self._to_evaluations(words, target, targets, count, words.stride)
        return CudaDigits(words, x, count, apart, beta, own)

    def extend(self, x: Buffer, plan: DigitPlan) -> Buffer:
        words = self.mod_up(x, plan).words
        limb = WORD * self.ring_dimension
        for e, mine in enumerate(self._digit_tables(plan)[5][0]):
            if mine >= 0:
                self.device.copy(words.ptr + e * limb, x.ptr + int(mine) * limb, limb)
        return Buffer(words.ptr, words.shape[2:], words.owner)

    def divide(
        self, x: Buffer, plan: Division, elements: Sequence[int] = (), *, twice: bool = False,
        constant: Residues | None = None,
    ) -> Buffer:  # fmt: skip
        leaving, left, target, lifts, conversions, _ = self._division_tables(plan)
        n, leave, kept = self.ring_dimension, len(plan.conversion.src), len(plan.conversion.dst)
        count, apart = self._polynomials(x)
        low = self.device.empty((count, leave, n))
        rest = self.device.empty((count, kept, n))
        out = self.device.empty((*x.shape[:-2], kept, n))
        self._to_coefficients(x, low, leaving, left, leave, conversions.scales, count, apart)
        self._convert(low, rest, conversions, leave * n, kept * n, count)
        added = 0 if constant is None else self._constants(constant, plan.conversion.dst, form=False)
        heads, tails, steps = self._forward
        launch, grid, p, step = self.device.launch, (self._grid, kept, count), rest.ptr, kept * n
        launch("ntt_columns", grid, THREADS, p, p, target, step, step, self._primes, heads)
        launch(
            "ntt_rows_divide", grid, self._row_block, p, out.ptr, target, step, step, x.ptr, apart, lifts,
            self._elements(elements, inverse=True), added, int(twice), self._primes, heads, tails, steps,
        )  # fmt: skip
        return out

    # -- keys ---------------------------------------------------------------------------------------------------------

    def _key_tables(self, keys: Sequence[KeyView]) -> tuple[int, int, int]:
        """Addresses, limbs and places of keys."""
        name = tuple((k.words.ptr, k.first, k.places.tobytes()) for k in keys)

        def make() -> tuple[int, int, int]:
            addresses = np.array([k.words.ptr + WORD * k.words.stride * k.first for k in keys], dtype=np.uint64)
            limbs = np.array([k.words.shape[-2] for k in keys], dtype=np.int32)
            places = np.concatenate([k.places for k in keys]).astype(np.int32)
            return self._table(addresses), self._table(limbs), self._table(places)

        return self._keep(("keys", name), make)  # type: ignore[no-any-return]

    def _beta(self, digits: CudaDigits) -> int:
        if digits.beta > MOST_DIGITS:
            raise ConfigError(f"the CUDA kernels take keys of at most {MOST_DIGITS} digits, got {digits.beta}")
        return digits.beta

    def switch(
        self, digits: CudaDigits | None, keys: Sequence[KeyView | None], rows: Rows, *, source: Buffer,
        factors: Residues, elements: Sequence[int] = (),
    ) -> Buffer:  # fmt: skip
        extended, present = len(rows), source.shape[-2]
        out = self.device.empty((len(keys), 2, extended, self.ring_dimension))
        constants, primes = self._constants(factors, rows[:present]), self._rows(rows)
        for start, stop in runs(keys):
            at = out.ptr + WORD * out.stride * start
            views = [k for k in keys[start:stop] if k is not None]
            if not views:
                grid = (self._blocks, extended, 2)
                for i in range(stop - start):
                    element = pow(elements[start + i], -1, 2 * self.ring_dimension) if len(elements) else 1
                    self.device.launch(
                        "raise_limbs", grid, THREADS, source.ptr, at + WORD * out.stride * i, constants, present,
                        extended, element, primes, self._primes,
                    )  # fmt: skip
                continue
            assert digits is not None  # there is a key
            addresses, limbs, places = self._key_tables(views)
            self.device.launch(
                f"switch_each_{self._beta(digits)}", (self._blocks, extended, 1), THREADS, digits.words.ptr,
                digits.source.ptr, digits.own, addresses, limbs, places, len(views), source.ptr, constants, present,
                self._elements(elements[start:stop], inverse=True), at, out.stride, extended, primes, self._primes,
            )  # fmt: skip
        return out

    def switch_total(
        self, digits: CudaDigits, keys: Sequence[KeyView], rows: Rows, *, factors: Residues,
        elements: Sequence[int] = (), source: Buffer | None = None, base: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        extended = len(rows)
        out = self.device.empty((2, extended, self.ring_dimension))
        addresses, limbs, places = self._key_tables(keys)
        constants = self._constants(factors, rows[: len(factors)])
        digit_apart, source_apart = (0, 0) if digits.count == 1 else (digits.words.stride, digits.apart)
        given = (0, 0, 0) if source is None else (source.ptr, source.stride, source.shape[-2])
        if source is not None and len(source.shape) == 3:
            given = (source.ptr, 0, source.shape[-2])
        onto = (0, 0) if base is None else (base.ptr, base.shape[-2])
        self.device.launch(
            f"switch_sum_{self._beta(digits)}", (self._blocks, extended, 1), THREADS, digits.words.ptr, digit_apart,
            digits.source.ptr, source_apart, digits.own, addresses, limbs, places, len(keys), *given, *onto, constants,
            self._elements(elements, inverse=False), out.ptr, extended, self._rows(rows), self._primes,
        )  # fmt: skip
        return out

    # -- linear maps --------------------------------------------------------------------------------------------------

    def giant_sums(self, values: Buffer, which: Sequence[Rows], plains: Sequence[Buffer], rows: Rows) -> Buffer:
        extended = len(rows)
        out = self.device.empty((len(which), 2, extended, self.ring_dimension))
        for start in range(0, len(which), GIANTS):
            part = which[start : start + GIANTS]
            name = ("which", *(w.tobytes() for w in part))
            order, index = self._keep(name, partial(self._columns, part))
            addresses = tuple(p.ptr for p in plains[start : start + GIANTS])
            table = self._values("plains", addresses, partial(np.array, addresses, dtype=np.uint64))
            self.device.launch(
                f"giant_sums_{len(part)}", (self._blocks, extended, 1), THREADS, values.ptr, table, order[0], index,
                order[1], out.ptr + WORD * out.stride * start, extended, self._rows(rows), self._primes,
            )  # fmt: skip
        return out

    def _columns(self, which: Sequence[Rows]) -> tuple[tuple[int, int], int]:
        """The values that sums read, in order and counted, and each sum's plaintext for them."""
        order, index = columns(which)
        return (self._table(order), len(order)), self._table(index)

    # -- whole operations ---------------------------------------------------------------------------------------------

    def replay(
        self, name: Hashable, body: Callable[..., Sequence[Buffer]], *inputs: Buffer, short: bool = False
    ) -> Sequence[Buffer]:
        """The first time as it is, which makes every table; the second time recorded; from then on played."""
        if name is None or self._inside:
            return body(*inputs)
        play = self._recordings.get(name)
        if play is None:
            first = name not in self._recordings
            self._recordings.setdefault(name, None)
            self._inside = True
            try:
                record = self._tape if short else self.device.record
                play = None if first else record(body, inputs)
                if play is None:
                    return body(*inputs)
            finally:
                self._inside = False
            self._recordings[name] = play
        return play(inputs)

    def _tape(self, body: Callable[..., Sequence[Buffer]], inputs: Sequence[Buffer]) -> Recording | None:
        """The launches of body, or body itself if it has too many operands; None where one is not in one piece."""
        if any(x.stride != prod(x.shape[1:]) for x in inputs):
            return None
        device, recorder = self.device, TapeRecorder(self.device)
        stand_ins = [recorder.empty(x.shape) for x in inputs]
        self.device = recorder
        try:
            results = list(body(*stand_ins))
            return Tape(device, self._mailbox, recorder, stand_ins, results).play
        except TapeFull:
            return lambda now: list(body(*now))
        finally:
            self.device = device

    def synchronize(self) -> None:
        self.device.synchronize()

    def mark(self) -> Any:
        return self.device.mark()

    def elapsed(self, first: Any, then: Any) -> float:
        return self.device.elapsed(first, then)


def runs(keys: Sequence[object | None]) -> list[tuple[int, int]]:
    """Longest stretches that are all keys, or all None."""
    edges = [i for i in range(1, len(keys)) if (keys[i] is None) != (keys[i - 1] is None)]
    return list(zip([0, *edges], [*edges, len(keys)]))


def columns(which: Sequence[Rows]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Every value as often as one sum needs it, and for each sum and column the plaintext it takes, or -1."""
    most: Counter[int] = Counter()
    for row in which:
        for value, times in Counter(row.tolist()).items():
            most[value] = max(most[value], times)
    order = [value for value in sorted(most) for _ in range(most[value])]
    first = {value: order.index(value) for value in most}
    index = np.full((len(which), len(order)), -1, dtype=np.int32)
    for line, row in zip(index, which):
        met: Counter[int] = Counter()
        for d, value in enumerate(row.tolist()):
            line[first[value] + met[value]] = d
            met[value] += 1
    return np.array(order, dtype=np.int32), index
