# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of slots that repeat, of which one cycle is kept: (..., p) stands for (..., n) wherever p divides n.

Solvers act on one number per head or row, and a refresh says how often it repeats: two thirds of a token's steps work
on values of 16 to 4096 different slots of 32768. Numbers of slots are powers of two, so of two cycles the shorter one
divides the longer. The arrays are numpy's or those of any module like it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def slotwise(op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """An operation of two arrays slot by slot: (..., p) and (..., q) give (..., max(p, q))."""
    p, q = a.shape[-1], b.shape[-1]
    if p == q:
        return op(a, b)
    out = op(a[..., None, :], by_cycle(b, p)) if p < q else op(by_cycle(a, q), b[..., None, :])
    return out.reshape(*out.shape[:-2], max(p, q))


def by_cycle(a: Any, p: int) -> Any:
    """An array (..., q) as (..., q / p, p)."""
    return a.reshape(*a.shape[:-1], a.shape[-1] // p, p)


def stretched(a: Any, p: int) -> Any:
    """An array (..., q) repeated to (..., p)."""
    q = a.shape[-1]
    return a if q == p else a[..., None, :].repeat(p // q, axis=-2).reshape(*a.shape[:-1], p)


def cycled(a: Any, p: int) -> Any:
    """An array as (..., p): repeated, or the mean of its cycles, by halves, so that equal ones leave no error."""
    while a.shape[-1] > p:
        half = a.shape[-1] // 2
        a = (a[..., :half] + a[..., half:]) * 0.5
    return stretched(a, p)


def shortest(values: NDArray[Any]) -> NDArray[Any]:
    """The shortest cycle of slots in memory (..., n) that repeat exactly."""
    p = values.shape[-1]
    while p % 2 == 0 and np.array_equal(values[..., : p // 2], values[..., p // 2 : p]):
        p //= 2
    return np.ascontiguousarray(values[..., :p])
