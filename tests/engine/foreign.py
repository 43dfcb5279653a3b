# SPDX-License-Identifier: Apache-2.0
"""A stand-in for CuPy: arrays that numpy must not touch, and a module of the few functions the clear engine may use."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from heatfhe.engine.arrays import Arrays


class Foreign:
    """An array that meets its own kind and numbers alone, and becomes numpy's only through ``Far.get``."""

    __array_ufunc__ = None

    def __init__(self, inner: Any) -> None:
        self.inner = np.asarray(inner)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("implicit conversion of an array on a device")

    shape = property(lambda self: self.inner.shape)
    dtype = property(lambda self: self.inner.dtype)
    nbytes = property(lambda self: self.inner.nbytes)
    real = property(lambda self: Foreign(self.inner.real))
    imag = property(lambda self: Foreign(self.inner.imag))

    def __getitem__(self, where: Any) -> Foreign:
        return Foreign(self.inner[where])

    def __float__(self) -> float:
        return float(self.inner)

    def __neg__(self) -> Foreign:
        return Foreign(-self.inner)

    def max(self) -> Foreign:
        return Foreign(self.inner.max())

    def mean(self, axis: int, keepdims: bool = False) -> Foreign:
        return Foreign(self.inner.mean(axis=axis, keepdims=keepdims))

    def reshape(self, *shape: int) -> Foreign:
        return Foreign(self.inner.reshape(*shape))

    def repeat(self, times: int, axis: int) -> Foreign:
        return Foreign(self.inner.repeat(times, axis=axis))

    def astype(self, dtype: Any, order: str = "K") -> Foreign:
        return Foreign(self.inner.astype(dtype, order=order))

    __add__, __radd__, __sub__, __mul__, __iadd__ = (
        (lambda self, other, f=f: Foreign(f(self.inner, bare(other))))
        for f in (operator.add, operator.add, operator.sub, operator.mul, operator.iadd)
    )


def bare(x: Any) -> Any:
    """What an array holds, or a number; anything else lies on the wrong side."""
    if isinstance(x, Foreign):
        return x.inner
    if isinstance(x, (int, float, complex)):
        return x
    raise TypeError(f"{type(x).__name__} met an array on a device")


def _over(name: str) -> Callable[..., Foreign]:
    def call(*args: Any, **options: Any) -> Foreign:
        return Foreign(getattr(np, name)(*map(bare, args), **options))

    return call


def _multiply(a: Any, b: Any, out: Foreign) -> Foreign:
    np.multiply(bare(a), bare(b), out=out.inner)
    return out


def _concatenate(parts: list[Foreign]) -> Foreign:
    return Foreign(np.concatenate([bare(part) for part in parts]))


def _roll(a: Foreign, by: int, axis: int) -> Foreign:
    return Foreign(np.roll(bare(a), by, axis=axis))


class Far(Arrays):
    """The seam over them; ``moved`` counts numbers taken there and back."""

    xp = SimpleNamespace(
        asarray=_over("asarray"), empty_like=_over("empty_like"), abs=_over("abs"), conj=_over("conj"),
        multiply=_multiply, roll=_roll, sqrt=_over("sqrt"), concatenate=_concatenate,
    )  # fmt: skip

    def __init__(self) -> None:
        self.moved = {"put": 0, "get": 0}

    def put(self, values: Any) -> Foreign:
        assert not isinstance(values, Foreign)
        self.moved["put"] += np.size(values)
        return Foreign(values)

    def get(self, array: Any) -> Any:
        self.moved["get"] += array.inner.size
        return array.inner.copy()
