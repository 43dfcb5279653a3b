# SPDX-License-Identifier: Apache-2.0
"""Kernels: the arithmetic of residue polynomials behind one protocol. reference defines, cpu runs.

Words belong to the kernels. They have a shape (..., limbs, N) and are otherwise opaque: outside this room they are
made, cut, joined and read by the methods below alone, so that a device can keep them and choose the order of
evaluations. Rows and residues (one per limb) are small and stay on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.encoding import SlotMatrix
from heatfhe.ckks.kernels.plans import DigitPlan, Digits, Division, KeyView, Residues, Rows, Words
from heatfhe.ckks.kernels.reference import ReferenceKernels

__all__ = [
    "DigitPlan",
    "Digits",
    "Division",
    "Kernels",
    "KeyView",
    "ReferenceKernels",
    "Residues",
    "Rows",
    "Words",
    "load_kernels",
]


class Kernels(Protocol):
    """What the evaluator needs. The meaning of every method is ReferenceKernels' own, bit for bit.

    No method changes its arguments. What a method returns may share memory with them.
    """

    ring_dimension: int
    moduli: tuple[int, ...]
    records: bool  # whether replay records anything
    device_name: str

    # -- words: made, read, cut, joined -------------------------------------------------------------------------------

    def upload(self, natural: NDArray[np.uint32]) -> Words:
        """Evaluations (..., limbs, N) in natural order of exponents, taken into the kernels' keeping."""

    def download(self, x: Words) -> NDArray[np.uint32]:
        """Inverse of upload: natural order, on the host."""

    def evaluate(self, coefficients: NDArray[np.int64], rows: Rows) -> Words:
        """(limbs, N): evaluations of a polynomial of N signed integers, each below 2^62 in magnitude."""

    def encode(self, slots: NDArray[Any], scale: float, rows: Rows) -> Words:
        """(limbs, N): the polynomial with these slots at a scale (see ckks/encoding.py), evaluated.

        This and diagonals are not bit for bit the reference's: a device's own transform may round a coefficient to the
        other of two neighbouring integers.
        """

    def diagonals(
        self, matrices: Sequence[SlotMatrix], turns: Sequence[tuple[int, int]], scale: float, rows: Rows
    ) -> Words:
        """(T, limbs, N): for each turn (giant, baby) the matrices' diagonal (see ckks/encoding.py), encoded, prepared.

        Like encode, it may differ from the reference by one in a coefficient.
        """

    def coefficients(self, x: Words, rows: Rows) -> NDArray[np.uint32]:
        """Residues of the coefficients of x, on the host."""

    def uniform(self, heads: Sequence[bytes], rows: Rows) -> Words:
        """Polynomials (len(heads), limbs, N) expanded from public seeds, as ckks/expand.py defines them."""

    def size(self, x: Words) -> int:
        """Bytes held."""

    def polynomial(self, x: Words, index: int) -> Words:
        """x[index]."""

    def polynomials(self, x: Words, first: int, count: int) -> Words:
        """x[first : first + count]."""

    def each(self, x: Words, index: int) -> Words:
        """x[:, index]: (G, limbs, N) of (G, 2, limbs, N)."""

    def limbs(self, x: Words, first: int, count: int) -> Words:
        """x[..., first : first + count, :]."""

    def stack(self, parts: Sequence[Words]) -> Words:
        """Words of one shape joined along a new first axis."""

    # -- limb by limb: x is (limbs, N) or (B, limbs, N) ---------------------------------------------------------------

    def add(self, x: Words, y: Words, rows: Rows) -> Words: ...

    def sub(self, x: Words, y: Words, rows: Rows) -> Words: ...

    def negate(self, x: Words, rows: Rows) -> Words: ...

    def scale(self, x: Words, factors: Residues, rows: Rows) -> Words:
        """Product of each limb with a constant of its own."""

    def combine(self, terms: Sequence[tuple[Words, Residues]], rows: Rows, onto: Words | None = None) -> Words:
        """onto + sum of factors * x, all (B, limbs, N); at least one term, or onto."""

    def add_first(self, x: Words, p: Words, rows: Rows) -> Words:
        """x (2, R, N) with p (R, N) added to its first polynomial."""

    def add_constant(self, x: Words, residues: Residues, rows: Rows) -> Words:
        """x (2, R, N) with a constant added to its first polynomial: to every evaluation."""

    def prepare(self, x: Words, rows: Rows) -> Words:
        """The form in which products read a constant polynomial."""

    def product(self, x: Words, p: Words, rows: Rows) -> Words:
        """Product with a prepared polynomial (R, N)."""

    def product_sum(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        """Sum of products of x (2, R, N) with prepared p (R, N)."""

    def tensor(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words:
        """Sum over pairs ((b, a), (b', a')) of (b b', b a' + a b', a a'): (3, R, N)."""

    def automorphism(self, x: Words, element: int) -> Words:
        """X -> X^element."""

    # -- basis conversions --------------------------------------------------------------------------------------------

    def extend(self, x: Words, plan: DigitPlan) -> Words:
        """The exact centred lift (E, N) of x (R, N); the plan has one digit."""

    def mod_up(self, x: Words, plan: DigitPlan) -> Digits:
        """Decompositions of x (R, N), a batch of one, or of each polynomial of x (B, R, N)."""

    def divide(
        self,
        x: Words,
        plan: Division,
        elements: Sequence[int] = (),
        *,
        twice: bool = False,
        constant: Residues | None = None,
    ) -> Words:
        """round(x E / D), x (..., R, N) to (..., R', N); twice that, where asked.

        Where elements are given, x is (len(elements), 2, R, N) and automorphism elements[i] moves the quotient of x[i].
        Where a constant is given, x is (2, R, N) and the result's first polynomial has it added.
        """

    # -- keys: sums modulo QP, E limbs. A polynomial of fewer limbs than rows is raised: multiplied by factors (P modulo
    # each of its primes) and joined to the first limbs.

    def switch(
        self,
        digits: Digits | None,
        keys: Sequence[KeyView | None],
        rows: Rows,
        *,
        source: Words,
        factors: Residues,
        elements: Sequence[int] = (),
    ) -> Words:
        """(K, 2, E, N): for key i, phi_i(sum over j of digits[j] * key_i[j] + raised (source[0], 0)).

        One decomposition serves all keys; source is (2, R, N). elements are those of phi_i; nothing moves without them.
        A key that is None stands for the identity: the raised source, both polynomials (digits may be None if all are).
        """

    def switch_total(
        self,
        digits: Digits,
        keys: Sequence[KeyView],
        rows: Rows,
        *,
        factors: Residues,
        elements: Sequence[int] = (),
        source: Words | None = None,
        base: Words | None = None,
    ) -> Words:
        """(2, E, N): base + sum over i of phi_i(sum over j of digits_i[j] * key_i[j] + (source_i[0], 0)), each raised.

        digits are one decomposition for all keys or one for each; source is (2, R or E, N) for all keys or
        (K, 2, R or E, N), one for each; base is (2, R or E, N).
        """

    # -- linear maps --------------------------------------------------------------------------------------------------

    def giant_sums(self, values: Words, which: Sequence[Rows], plains: Sequence[Words], rows: Rows) -> Words:
        """(G, 2, E, N): for each g the sum over d of values[which[g][d]] (2, E, N) * prepared plains[g][d] (E, N)."""

    # -- whole operations ---------------------------------------------------------------------------------------------

    def replay(
        self, name: Hashable, body: Callable[..., Sequence[Words]], *inputs: Words, short: bool = False
    ) -> Sequence[Words]:
        """body(*inputs). A device may record what body launches under this name and play it again.

        body must do the same for every input of that name and depend on nothing else. None is never recorded. A short
        body, of a dozen launches, may be recorded in another way than a whole refresh.
        """

    def synchronize(self) -> None:
        """Wait until everything asked for is done."""

    def mark(self) -> Any:
        """The moment at which everything asked for so far will be done; nothing waits for it."""
        ...

    def elapsed(self, first: Any, then: Any) -> float:
        """Seconds between two such moments, once everything is done."""
        ...


def load_kernels(device: str, ring_dimension: int, moduli: Sequence[int], *, threads: int = 1) -> Kernels:
    """Kernels by name: reference (numpy), cpu (numba) or cuda (CuPy)."""
    from heatfhe.errors import ConfigError, MissingExtraError

    if device == "reference":
        return ReferenceKernels(ring_dimension, moduli)
    if device == "cpu":
        try:
            from heatfhe.ckks.kernels.threaded import CpuKernels
        except ModuleNotFoundError as err:
            if err.name != "numba":
                raise
            raise MissingExtraError("native", needed_by="the native engine on a CPU") from err
        return CpuKernels(ring_dimension, moduli, threads=threads)
    if device == "cuda":
        from heatfhe.ckks.kernels.cuda import CudaKernels, CupyDevice

        return CudaKernels(ring_dimension, moduli, CupyDevice(ring_dimension.bit_length() - 1))
    raise ConfigError(f"unknown device {device!r} for the native engine; have: cpu, cuda, reference")
