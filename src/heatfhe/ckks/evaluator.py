# SPDX-License-Identifier: Apache-2.0
"""CKKS arithmetic on ciphertexts, written once over any kernels, with exact scale tracking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

from heatfhe.ckks.kernels import Words
from heatfhe.ckks.keys import GALOIS, RELINEARISE, KeyTable, conjugation_element, galois_element
from heatfhe.ckks.keyswitch import KeySwitcher
from heatfhe.ckks.ring import PLAIN, After, Ciphertext, Ring, same_scale
from heatfhe.errors import EngineError, OutOfLevelsError


class Evaluator:
    """Operations on ciphertexts of one ring under one table of keys. Holds nothing secret.

    Noise of the operations, standard deviation in the slots with h = 2N/3: a rescale or a key switch adds
    sqrt((h + 1) / 12) * sqrt(N) / scale at the resulting scale; a product carries its operands' noise times the other
    operand.
    """

    def __init__(self, ring: Ring, keys: KeyTable, *, floor: int = 0) -> None:
        self.ring = ring
        self.switch = KeySwitcher(ring, keys)
        self.floor = floor  # products end here: the levels below belong to a bootstrap

    # -- sums ---------------------------------------------------------------------------------------------------------

    def _match(self, a: Ciphertext, b: Ciphertext, what: str) -> None:
        if a.level != b.level:
            raise EngineError(f"{what}: levels {a.level} and {b.level} differ; drop the higher operand first")
        if not same_scale(a.scale, b.scale):
            raise EngineError(f"{what}: scales 2^{math.log2(a.scale):.9f} and 2^{math.log2(b.scale):.9f} differ")

    def add(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        self._match(a, b, "add")
        return Ciphertext(a.level, a.scale, self.ring.kernels.add(a.data, b.data, self.ring.rows(a.level)))

    def sub(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        self._match(a, b, "sub")
        return Ciphertext(a.level, a.scale, self.ring.kernels.sub(a.data, b.data, self.ring.rows(a.level)))

    def negate(self, a: Ciphertext) -> Ciphertext:
        return Ciphertext(a.level, a.scale, self.ring.kernels.negate(a.data, self.ring.rows(a.level)))

    def add_polynomial(self, a: Ciphertext, p: Words) -> Ciphertext:
        """Sum with a plaintext polynomial (limbs, N) at the ciphertext's scale."""
        return Ciphertext(a.level, a.scale, self.ring.kernels.add_first(a.data, p, self.ring.rows(a.level)))

    def add_constant(self, a: Ciphertext, value: float) -> Ciphertext:
        """Sum with a real constant in every slot."""
        rows = self.ring.rows(a.level)
        residues = self.ring.constant(round(Fraction(value) * Fraction(a.scale)), rows)
        return Ciphertext(a.level, a.scale, self.ring.kernels.add_constant(a.data, residues, rows))

    def times_integer(self, a: Ciphertext, k: int) -> Ciphertext:
        """Product with an integer; no level."""
        rows = self.ring.rows(a.level)
        return Ciphertext(a.level, a.scale, self.ring.kernels.scale(a.data, self.ring.constant(k, rows), rows))

    def times_i(self, a: Ciphertext) -> Ciphertext:
        """Product with the imaginary unit: X^(N/2), exact and free of levels."""
        rows = self.ring.rows(a.level)
        return Ciphertext(a.level, a.scale, self.ring.kernels.product(a.data, self.ring.imaginary_unit(a.level), rows))

    # -- products -----------------------------------------------------------------------------------------------------

    def _need_level(self, level: int, what: str) -> None:
        if level <= self.floor:
            raise OutOfLevelsError(f"{what}: needs 1 level, has {level - self.floor}; bootstrap the operand first")

    def multiply_sum(
        self,
        pairs: Sequence[tuple[Ciphertext, Ciphertext]],
        terms: Sequence[tuple[Ciphertext, int]] = (),
        after: After = PLAIN,
    ) -> Ciphertext:
        """Sum of products: one relinearisation, one division by P and the rescale together.

        ``terms`` are ciphertexts of the same level with integer factors, added before the rescale.
        """
        if not pairs:
            raise EngineError("multiply_sum: needs at least one pair")
        level, scale = pairs[0][0].level, pairs[0][0].scale * pairs[0][1].scale
        for a, b in pairs:
            if a.level != level or b.level != level or not same_scale(a.scale * b.scale, scale):
                raise EngineError(
                    f"multiply_sum: operands at levels {a.level} and {b.level}, want {level} and equal scales"
                )
        self._need_level(level, "multiply")
        operands = [*(c.data for pair in pairs for c in pair), *(c.data for c, _ in terms)]
        factors = tuple(factor for _, factor in terms)
        (data,) = self.ring.kernels.replay(
            ("product", level, len(pairs), factors, after),
            partial(self._product, level, factors, after),
            *operands,
            short=True,
        )
        return Ciphertext(level - 1, self.ring.scale_below(scale, level), data)

    def _product(self, level: int, factors: Sequence[int], after: After, *operands: Words) -> list[Words]:
        """The words of a sum of products; as many terms as factors come last."""
        kernels, switch = self.ring.kernels, self.switch
        paired, terms = operands[: len(operands) - len(factors)], operands[len(operands) - len(factors) :]
        tensor = kernels.tensor(list(zip(paired[0::2], paired[1::2])), self.ring.rows(level))
        low = kernels.polynomials(tensor, 0, 2)
        if terms:
            low = self._combined(terms, factors, level, low)
        digits = switch.decompose(kernels.polynomial(tensor, 2), level)
        product = switch.total(digits, level, [switch.view(level, RELINEARISE)], base=low)
        return [switch.mod_down(product, level, level - 1, after=after)]

    def _combined(self, terms: Sequence[Words], factors: Sequence[int], level: int, onto: Words | None = None) -> Words:
        rows = self.ring.rows(level)
        scaled = [(words, self.ring.constant(factor, rows)) for words, factor in zip(terms, factors)]
        return self.ring.kernels.combine(scaled, rows, onto)

    def combine(self, terms: Sequence[tuple[Ciphertext, int]], scale: float, after: After = PLAIN) -> Ciphertext:
        """Sum of ciphertexts of one level with integer factors, which make it a value at the given scale; rescaled."""
        level = terms[0][0].level
        if any(a.level != level for a, _ in terms):
            raise EngineError(f"combine: operands at levels {sorted({a.level for a, _ in terms})}; drop them to one")
        total = self._combined([a.data for a, _ in terms], [factor for _, factor in terms], level)
        return self.rescale(Ciphertext(level, scale, total), after=after)

    def multiply(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        return self.multiply_sum([(a, b)])

    def plain_scale(self, level: int) -> float:
        """The scale a factor needs for the product to land on the canonical scale one level down."""
        scales = self.ring.scales
        return scales[level - 1] * float(self.ring.ratio(level, level - 1)) / scales[level]

    def rescale(self, a: Ciphertext, *, factor: int = 1, after: After = PLAIN) -> Ciphertext:
        """One level down: round(factor x E / D); a.scale is that of factor * x."""
        self._need_level(a.level, "rescale")
        data = self._divide(a, a.level - 1, factor=factor, after=after)
        return Ciphertext(a.level - 1, self.ring.scale_below(a.scale, a.level), data)

    def _divide(self, a: Ciphertext, level: int, *, factor: int, after: After = PLAIN) -> Words:
        """round(factor x E / D), as words of a lower level."""
        kernels, plan = self.ring.kernels, self.ring.division(a.level, level, factor=factor)
        name, finish = ("divide", a.level, level, factor, after), self.ring.finish(level, after)
        (data,) = kernels.replay(name, lambda words: [kernels.divide(words, plan, **finish)], a.data, short=True)
        return data

    def drop(self, a: Ciphertext, level: int) -> Ciphertext:
        """The same value at a lower level and its canonical scale, by one exact division.

        Levels are not nested, so limbs cannot just be left out: multiply by round(scale' D / (E scale)), divide by D/E.
        """
        target = self.ring.scales[level]
        if level == a.level and same_scale(target, a.scale):
            return a
        if not 0 <= level < a.level:
            raise OutOfLevelsError(f"drop: cannot go from level {a.level} to level {level}")
        factor = self.ring.drop_factor(a.level, level, a.scale)
        return Ciphertext(level, target, self._divide(a, level, factor=factor))

    def restrict(self, a: Ciphertext, level: int) -> Ciphertext:
        """Leave limbs out, the scale unchanged: legal only where the lower level's primes are a subset."""
        now, below = self.ring.chain.rows(a.level), self.ring.chain.rows(level)
        if level == a.level:
            return a
        if not (now.start <= below.start and below.stop <= now.stop):
            raise EngineError(
                f"restrict: the primes of level {level} are not among those of level {a.level}; drop instead"
            )
        first = below.start - now.start
        return Ciphertext(level, a.scale, self.ring.kernels.limbs(a.data, first, len(below)))

    # -- automorphisms ------------------------------------------------------------------------------------------------

    def apply_galois(self, a: Ciphertext, elements: Sequence[int]) -> list[Ciphertext]:
        """Several automorphisms of one ciphertext, sharing its decomposition."""
        kernels = self.ring.kernels
        (out,) = kernels.replay(
            ("galois", a.level, *elements), partial(self._moved, a.level, elements), a.data, short=True
        )
        return [Ciphertext(a.level, a.scale, kernels.polynomial(out, i)) for i in range(len(elements))]

    def _moved(self, level: int, elements: Sequence[int], data: Words) -> list[Words]:
        """The words of automorphisms of one ciphertext, one after the other."""
        switch = self.switch
        digits = switch.decompose(self.ring.kernels.polynomial(data, 1), level)
        products = switch.products(digits, level, elements, data, moved=False)
        return [switch.mod_down(products, level, elements=elements)]

    def rotate_many(self, a: Ciphertext, by: Sequence[int]) -> list[Ciphertext]:
        """Hoisted rotations, in the order asked."""
        n = self.ring.chain.ring_dimension
        elements = [galois_element(k, n) for k in by]
        moved = sorted({g for g in elements if g != 1})
        results = dict(zip(moved, self.apply_galois(a, moved))) if moved else {}
        return [a if g == 1 else results[g] for g in elements]

    def rotate(self, a: Ciphertext, by: int) -> Ciphertext:
        return self.rotate_many(a, [by])[0]

    def add_rotations(self, a: Ciphertext, by: Sequence[int]) -> Ciphertext:
        """A value plus its rotations, none by 0: one decomposition and one division by P for all of them."""
        elements = [galois_element(k, self.ring.chain.ring_dimension) for k in by]
        if 1 in elements:
            raise EngineError("add_rotations: a rotation by 0 has no key; double the value instead")
        (data,) = self.ring.kernels.replay(
            ("turned sum", a.level, *elements), partial(self._turned_sum, a.level, elements), a.data, short=True
        )
        return Ciphertext(a.level, a.scale, data)

    def _turned_sum(self, level: int, elements: Sequence[int], data: Words) -> list[Words]:
        """The words of a ciphertext plus its images under automorphisms."""
        switch = self.switch
        keys = [switch.view(level, GALOIS, g) for g in elements]
        digits = switch.decompose(self.ring.kernels.polynomial(data, 1), level)
        total = switch.total(digits, level, keys, elements=elements, source=data, base=data)
        return [switch.mod_down(total, level)]

    def conjugate(self, a: Ciphertext) -> Ciphertext:
        return self.apply_galois(a, [conjugation_element(self.ring.chain.ring_dimension)])[0]
