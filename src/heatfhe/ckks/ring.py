# SPDX-License-Identifier: Apache-2.0
"""A chain bound to its kernels: rows of every level, tables of every division, plaintexts, ciphertexts."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from heatfhe.ckks.chain import Chain
from heatfhe.ckks.encoding import Encoder
from heatfhe.ckks.kernels import DigitPlan, Division, Kernels, Residues, Rows, Words
from heatfhe.ckks.kernels.plans import digit_plan, division, times
from heatfhe.errors import EngineError

T = TypeVar("T")
SCALE_TOLERANCE = 1e-12
KEPT_DIVISIONS = 4096  # divisions with a factor of their own: drops need few, constants of a circuit some


@dataclass(frozen=True, slots=True, eq=False)
class Ciphertext:
    """(b, a) with b + a s = scale * message + error: words (2, limbs, N) modulo the primes of its level."""

    level: int
    scale: float
    data: Words


class After(NamedTuple):
    """What a division does with its quotient: twice it, plus an integer in every slot, at the scale it then has."""

    twice: bool = False
    constant: int = 0


PLAIN = After()


def same_scale(a: float, b: float) -> bool:
    """Equal to rounding: anything looser would be a silent relative error of the message."""
    return abs(a / b - 1) <= SCALE_TOLERANCE


def at_scale(a: Ciphertext, scale: float, *, factor: float = 1.0) -> Ciphertext:
    """The same words under the scale they are known to have: the tracked one times the factor its caller names.

    Equal up to rounding of doubles, or refused. With a factor other than one the value is divided by it.
    """
    if not same_scale(a.scale * factor, scale):
        raise EngineError(
            f"level {a.level}: a scale of 2^{math.log2(a.scale):.9f} times {factor!r} is not 2^{math.log2(scale):.9f}; "
            "the chain or the matrices are wrong"
        )
    return Ciphertext(a.level, scale, a.data)


class Ring:
    """Chain, kernels and encoder, with every table made once and kept."""

    def __init__(self, chain: Chain, kernels: Kernels) -> None:
        if kernels.moduli != chain.moduli or kernels.ring_dimension != chain.ring_dimension:
            raise EngineError("these kernels were made for another chain")
        self.chain = chain
        self.moduli = chain.moduli
        self.kernels = kernels
        self.encoder = Encoder(chain.ring_dimension)
        self.scales = chain.scales()
        self.special = np.array(chain.special_rows, dtype=np.int64)
        self._cache: dict[tuple[Any, ...], Any] = {}
        self._divisions: OrderedDict[tuple[int, int, bool, int], Division] = OrderedDict()
        self.drop_factor = lru_cache(maxsize=KEPT_DIVISIONS)(self._drop_factor)

    def rows(self, level: int) -> Rows:
        """Prime indices of a level."""
        return self._keep(("rows", level), lambda: np.array(self.chain.rows(level), dtype=np.int64))

    def extended(self, level: int) -> Rows:
        """Prime indices of a level and the special primes."""
        return self._keep(("extended", level), lambda: np.concatenate([self.rows(level), self.special]))

    def key_places(self, level: int, cap: int) -> Rows:
        """Limbs of a key made for cap that an extended level reads."""

        def make() -> Rows:
            place = {row: i for i, row in enumerate(self.chain.key_rows(cap))}
            return np.array([place[int(r)] for r in self.extended(level)], dtype=np.int64)

        return self._keep(("places", level, cap), make)

    def _keep(self, name: tuple[Any, ...], make: Callable[[], T]) -> T:
        if name not in self._cache:
            self._cache[name] = make()
        kept: T = self._cache[name]
        return kept

    def digit_plan(self, level: int) -> DigitPlan:
        """Decomposition at a level."""
        c = self.chain
        return self._keep(
            ("digits", level),
            lambda: digit_plan(c.moduli, list(c.rows(level)), [*c.rows(level), *c.special_rows], c.digits(level)),
        )

    def division(self, source: int, target: int, *, extended: bool = False, factor: int = 1) -> Division:
        """round(factor x E / D) from a level, with the special primes or without, to a level."""
        if factor != 1:
            return self._scaled_division(source, target, extended, factor)
        c = self.chain

        def make() -> Division:
            src = [*c.rows(source), *(c.special_rows if extended else ())]
            return division(c.moduli, src, list(c.rows(target)))

        return self._keep(("division", source, target, extended), make)

    def _scaled_division(self, source: int, target: int, extended: bool, factor: int) -> Division:
        name = (source, target, extended, factor)
        if name in self._divisions:
            self._divisions.move_to_end(name)
        else:
            self._divisions[name] = times(self.moduli, self.division(source, target, extended=extended), factor)
            if len(self._divisions) > KEPT_DIVISIONS:
                self._divisions.popitem(last=False)
        return self._divisions[name]

    def ratio(self, source: int, target: int) -> Fraction:
        """D / E between two levels: what the scale is divided by, exactly."""
        return self._keep(("ratio", source, target), lambda: self.chain.ratio(source, target))

    def _drop_factor(self, source: int, target: int, scale: float) -> int:
        """What a value of this scale is multiplied by on its way to the canonical scale of a lower level."""
        return round(Fraction(self.scales[target]) * self.ratio(source, target) / Fraction(scale))

    def scale_below(self, scale: float, level: int) -> float:
        """The scale after a rescale from a level; the canonical one where it is that up to rounding of doubles."""
        out = scale / float(self.ratio(level, level - 1))
        if level - 1 < len(self.scales) and same_scale(out, self.scales[level - 1]):
            return self.scales[level - 1]
        return out

    def special_factors(self, level: int) -> Residues:
        """P modulo each prime of a level."""
        p = math.prod(self.chain.special)
        return self._keep(("factors", level), lambda: self.constant(p, self.rows(level)))

    def constant(self, value: int, rows: Rows) -> Residues:
        """An integer modulo each prime."""
        return np.array([value % self.moduli[r] for r in rows], dtype=np.uint32)

    def finish(self, level: int, after: After) -> dict[str, Any]:
        """What comes after a division to a level, as the kernels take it."""
        return {"twice": after.twice, "constant": self.constant(after.constant, self.rows(level))} if any(after) else {}

    def plaintext(self, values: NDArray[Any], scale: float, rows: Rows) -> Words:
        """Encoded slots, ready to be multiplied."""
        return self.kernels.prepare(self.kernels.encode(values, scale, rows), rows)

    def imaginary_unit(self, level: int) -> Words:
        """X^(N/2), ready to be multiplied: i in every slot."""

        def make() -> Words:
            coefficients = np.zeros(self.chain.ring_dimension, dtype=np.int64)
            coefficients[self.chain.ring_dimension // 2] = 1
            rows = self.rows(level)
            return self.kernels.prepare(self.kernels.evaluate(coefficients, rows), rows)

        return self._keep(("i", level), make)

    def lift(self, rows: Rows) -> DigitPlan:
        """Exact centred lift of one polynomial from level 0 to the given primes."""
        c = self.chain
        base = list(c.rows(0))
        name = ("lift", rows.tobytes())
        return self._keep(name, lambda: digit_plan(c.moduli, base, [int(r) for r in rows], [base]))

    def base_step(self, rows: Rows) -> Division:
        """Division that returns from the given primes to level 0."""
        c = self.chain
        name = ("base", rows.tobytes())
        return self._keep(name, lambda: division(c.moduli, [int(r) for r in rows], list(c.rows(0))))
