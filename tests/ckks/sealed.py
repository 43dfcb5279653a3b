# SPDX-License-Identifier: Apache-2.0
"""Kernels whose words are bare objects: whoever looks into them outside the kernels fails. Tests only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from heatfhe.ckks.kernels import Kernels, KeyView

WORDS = ("Words", "Words | None", "Digits", "Digits | None")


class Sealed:
    """Words of some kernels. No shape, no index, no array."""

    __slots__ = ("_words",)

    def __init__(self, words: Any) -> None:
        self._words = words

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("words belong to the kernels: nothing else reads or compares them")

    __array__ = __bool__ = __eq__ = __iter__ = __len__ = __getitem__ = __setitem__ = _refuse
    __hash__ = object.__hash__


class SealedKernels:
    """Every method of the protocol over the inner kernels, words sealed on the way out and opened on the way in."""

    def __init__(self, inner: Kernels) -> None:
        self._inner = inner
        self.ring_dimension, self.moduli = inner.ring_dimension, inner.moduli
        self.records, self.device_name = inner.records, inner.device_name
        self.called: set[str] = set()
        self.replayed: list[Any] = []
        for name, method in inspect.getmembers(Kernels, inspect.isfunction):
            if not name.startswith("_") and name != "replay":
                setattr(self, name, self._sealed(name, inspect.signature(method)))

    def _sealed(self, name: str, signature: inspect.Signature) -> Callable[..., Any]:
        bare = {p.name for p in signature.parameters.values() if p.annotation in WORDS}
        method = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.called.add(name)
            given = signature.bind(self, *args, **kwargs).arguments
            for word in bare & set(given):
                assert given[word] is None or isinstance(given[word], Sealed), f"{name}: {word} is not the kernels' own"
            out = method(*map(opened, args), **{k: opened(v) for k, v in kwargs.items()})
            return Sealed(out) if signature.return_annotation in WORDS else out

        return call

    def replay(self, name: Any, body: Callable[..., Any], *inputs: Any, short: bool = False) -> Any:
        self.called.add("replay")
        self.replayed += [] if short else [name]
        assert all(isinstance(x, Sealed) for x in inputs)
        out = body(*inputs)
        assert all(isinstance(x, Sealed) for x in out)
        return out


def opened(x: Any) -> Any:
    """An argument as the inner kernels take it."""
    if isinstance(x, Sealed):
        return x._words
    if isinstance(x, KeyView):
        assert isinstance(x.words, Sealed)
        return replace(x, words=x.words._words)
    if isinstance(x, (list, tuple)):
        return type(x)(map(opened, x))
    assert not (isinstance(x, np.ndarray) and x.dtype == object)
    return x
