# SPDX-License-Identifier: Apache-2.0
"""What a solver may ask of its operands: addition, subtraction, multiplication, and nothing else."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar, runtime_checkable

from heatfhe.errors import ObliviousError


class Arithmetic(Protocol):
    """Anything with + - * against itself, a float, or a plaintext on its right.

    The results are typed Any because numpy, torch and tracers each have their own overloads; every solver pins them
    back to T. A plaintext that is not a plain number always stands on the right, so that a tracer sees it first.
    """

    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...


T = TypeVar("T", bound=Arithmetic)

Plain: TypeAlias = Any
"""A public factor: a float, a numpy vector of slots, or whatever the operand multiplies as a plaintext."""


@runtime_checkable
class Recording(Protocol):
    """An operand that records what is done to it, and wants to know where a part begins that belongs together."""

    def region(self, name: str) -> AbstractContextManager[None]: ...


def region(t: object, name: str) -> AbstractContextManager[None]:
    """A context around one part of an approximation (a polynomial): a recording operand hears of it, others do not."""
    return t.region(name) if isinstance(t, Recording) else nullcontext()


@dataclass(frozen=True, slots=True, eq=False)
class Depth:
    """A value that knows only how many levels were spent to make it.

    Every product costs a level, also one with a public factor: solvers write x + x where a doubling is meant.
    """

    spent: int = 0

    __array_ufunc__ = None  # numpy hands `array * depth` over to __rmul__ instead of looping over the array

    def __add__(self, other: object) -> Depth:
        return Depth(max(self.spent, _spent(other)))

    def __mul__(self, other: object) -> Depth:
        return Depth(max(self.spent, _spent(other)) + 1)

    __radd__ = __sub__ = __rsub__ = __add__
    __rmul__ = __mul__

    def _refuse(self, *_: object) -> NoReturn:
        raise ObliviousError("a solver looked at its data: the server cannot, and must not, see it")

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __abs__ = __array__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __mod__ = __getitem__ = _refuse


def _spent(value: object) -> int:
    return value.spent if isinstance(value, Depth) else 0
