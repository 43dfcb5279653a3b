# SPDX-License-Identifier: Apache-2.0
"""Kernels: the arithmetic of residue polynomials behind one protocol. reference defines, cpu runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.kernels.plans import Conversion, DigitPlan, Division, Rows, Words
from heatfhe.ckks.kernels.reference import ReferenceKernels

__all__ = ["Conversion", "DigitPlan", "Division", "Kernels", "ReferenceKernels", "Rows", "Words", "load_kernels"]


class Kernels(Protocol):
    """What the evaluator needs. The meaning of every method is ReferenceKernels' own, bit for bit."""

    ring_dimension: int
    moduli: tuple[int, ...]

    def ntt(self, x: Words, rows: Rows) -> Words: ...
    def intt(self, x: Words, rows: Rows) -> Words: ...
    def add(self, x: Words, y: Words, rows: Rows) -> Words: ...
    def sub(self, x: Words, y: Words, rows: Rows) -> Words: ...
    def negate(self, x: Words, rows: Rows) -> Words: ...
    def scale(self, x: Words, factors: Words, rows: Rows) -> Words: ...
    def prepare(self, x: Words, rows: Rows) -> Words: ...
    def product(self, x: Words, p: Words, rows: Rows) -> Words: ...
    def tensor(self, pairs: Sequence[tuple[Words, Words]], rows: Rows) -> Words: ...
    def automorphism(self, x: Words, element: int) -> Words: ...
    def residues(self, coefficients: NDArray[np.int64], rows: Rows) -> Words: ...
    def mod_up(self, x: Words, plan: DigitPlan) -> Words: ...
    def divide(self, x: Words, plan: Division) -> Words: ...
    def add_lifted(self, onto: Words, x: Words, factors: Words, rows: Rows) -> Words: ...
    def key_product(self, digits: Words, key: Words, key_rows: Rows, rows: Rows) -> Words: ...
    def multiply_accumulate(self, values: Words, which: Rows, plains: Words, rows: Rows) -> Words: ...


def load_kernels(device: str, ring_dimension: int, moduli: Sequence[int], *, threads: int = 1) -> Kernels:
    """Kernels by name: reference (numpy) or cpu (numba)."""
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
    raise ConfigError(f"unknown device {device!r} for the native engine; have: cpu, reference")
