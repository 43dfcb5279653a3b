# SPDX-License-Identifier: Apache-2.0
"""Plan instructions, one row each: recorder, placement, tally, legality and the runner read this table and no other.

A kind that engines know is the name of their method. ``input``, ``join`` and ``select`` are recorded only: a program
names ciphertexts one by one and needs no step for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heatfhe.planning.cost import IN_MAPS
from heatfhe.planning.pack import LinearMap

Samples = Sequence[NDArray[np.float64]]
Work = dict[str, int]  # how often, by the words of cost tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one instruction is called with, at a position."""

    args: Sequence[Any]
    plains: Sequence[Any] = ()
    by: Sequence[int] = ()
    number: int = 0
    level: int = 0
    map: LinearMap | None = None
    period: int = 0
    bound: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One kind of instruction.

    ``args`` values are read (by each term of a sum) and ``results`` made (0: one per rotation); ``plain`` says that
    each value meets a plaintext, ``gathers`` that all rotations go into one result. ``work`` counts what one ciphertext
    of the result costs, from the number of values, of rotations, and the linear map. ``linear`` instructions spend no
    level and may as well run after a refresh of their values. ``magnitude`` follows values (or, not ``sampled``, their
    bounds), plaintexts, the integer, and whether these are values rather than bounds. ``summed`` is the kind that a sum
    of such instructions becomes.
    """

    call: Callable[[Callable[..., Any], Given], Any] | None = lambda method, g: method(*g.args)
    work: Callable[[int, int, LinearMap | None], Work] = lambda terms, turns, m: {}
    magnitude: Callable[[Samples, Samples, int, bool], Any] = lambda v, p, number, exact: v[0]
    args: int = 1
    results: int = 1
    levels: int = 0
    linear: bool = False
    plain: bool = False
    sampled: bool = True
    rotates: bool = False
    gathers: bool = False
    conjugates: bool = False
    refreshes: bool = False
    passes_empty: bool = False  # an empty cache among its values leaves the others, or nothing
    summed: str = ""

    def counted(self, terms: int, turns: int, m: LinearMap | None) -> Work:
        """Its work without what is not needed."""
        return {word: count for word, count in self.work(terms, turns, m).items() if count}


def _each(*words: str) -> Callable[[int, int, LinearMap | None], Work]:
    return lambda terms, turns, m: dict.fromkeys(words, 1)


def _plain_work(terms: int, turns: int, m: LinearMap | None) -> Work:
    return {"multiply_plain": terms, "add": terms - 1, "rescale": 1}


def _product_work(terms: int, turns: int, m: LinearMap | None) -> Work:
    return {"tensor": terms // 2, "add": terms // 2 - 1, "relinearise": 1, "rescale": 1}


def _linear_work(terms: int, turns: int, m: LinearMap | None) -> Work:
    assert m is not None
    moved = sum(b != 0 for b in m.babies)
    hoisted = {"hoist": int(moved > 0), "rotate_hoisted": moved, "rotate": sum(g != 0 for g in m.giants)}
    return {f"{IN_MAPS}{word}": count for word, count in (_plain_work(m.plaintexts, 0, None) | hoisted).items()}


def _dot(v: Samples, p: Samples) -> Any:
    return sum(a * b for a, b in zip(v, p))


def _refresh(**row: Any) -> Instruction:
    return Instruction(call=lambda f, g: f(*g.args, period=g.period, bound=g.bound), refreshes=True, **row)


_PLAIN: dict[str, Any] = {"plain": True, "levels": 1, "work": _plain_work, "summed": "multiply_plain_sum"}
_PRODUCT: dict[str, Any] = {"args": 2, "levels": 1, "summed": "multiply_sum"}
_FREE: dict[str, Any] = {"linear": True, "work": _each("add")}

KINDS: Mapping[str, Instruction] = {
    "input": Instruction(call=None, args=0),
    "join": Instruction(call=None, args=0, sampled=False, magnitude=lambda v, *_: np.maximum.reduce(v)),
    "select": Instruction(call=None, linear=True),
    "add": Instruction(**_FREE, args=2, magnitude=lambda v, *_: v[0] + v[1], passes_empty=True),
    "sub": Instruction(
        **_FREE, args=2, magnitude=lambda v, p, number, exact: v[0] - v[1] if exact else v[0] + v[1]
    ),
    "negate": Instruction(**_FREE, magnitude=lambda v, p, number, exact: -v[0] if exact else v[0]),
    "add_plain": Instruction(
        **_FREE, plain=True, magnitude=lambda v, p, *_: v[0] + p[0], call=lambda f, g: f(g.args[0], g.plains[0])
    ),
    "times": Instruction(
        **_FREE, magnitude=lambda v, p, number, _: v[0] * number, call=lambda f, g: f(g.args[0], g.number)
    ),
    "times_i": Instruction(**_FREE),
    "multiply": Instruction(**_PRODUCT, work=_each("multiply"), magnitude=lambda v, *_: v[0] * v[1]),
    "multiply_sum": Instruction(
        **_PRODUCT, work=_product_work, magnitude=lambda v, *_: _dot(v[0::2], v[1::2]),
        call=lambda f, g: f(list(zip(g.args[0::2], g.args[1::2]))),
    ),
    "multiply_plain": Instruction(
        **_PLAIN, magnitude=lambda v, p, *_: v[0] * p[0], call=lambda f, g: f(g.args[0], g.plains[0])
    ),
    "multiply_plain_sum": Instruction(
        **_PLAIN, magnitude=lambda v, p, *_: _dot(v, p), call=lambda f, g: f(list(zip(g.args, g.plains)))
    ),
    "linear": Instruction(levels=1, work=_linear_work, sampled=False, call=lambda f, g: f(g.args[0], g.map)),
    "rotate": Instruction(
        linear=True, rotates=True, work=_each("rotate"), call=lambda f, g: f(g.args[0], g.by[0])
    ),
    "rotate_many": Instruction(
        linear=True, rotates=True, results=0, work=lambda terms, turns, m: {"hoist": 1, "rotate_hoisted": turns},
        call=lambda f, g: f(g.args[0], g.by),
    ),
    "add_rotations": Instruction(
        linear=True, rotates=True, gathers=True, sampled=False,  # written after placement, so nobody asks its magnitude
        work=lambda terms, turns, m: {"rotate": 1, "rotate_summed": turns - 1}, call=lambda f, g: f(g.args[0], g.by),
    ),
    "conjugate": Instruction(linear=True, conjugates=True, work=_each("conjugate")),
    "drop": Instruction(work=_each("drop"), passes_empty=True, call=lambda f, g: f(g.args[0], g.level)),
    "bootstrap": _refresh(),
    "bootstrap_pair": _refresh(args=2, results=2, conjugates=True),
}  # fmt: skip
