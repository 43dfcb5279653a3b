# SPDX-License-Identifier: Apache-2.0
"""The whole refresh: SlotsToCoeffs on the lowest levels, then ModRaise, CoeffsToSlots, and EvalMod gives the value."""

from __future__ import annotations

from collections.abc import Sequence

from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots
from heatfhe.ckks.bootstrapping.eval_mod import eval_mod
from heatfhe.ckks.bootstrapping.matrices import encode_matrices
from heatfhe.ckks.bootstrapping.mod_raise import mod_raise, trace
from heatfhe.ckks.bootstrapping.spec import BootstrapSpec, check_period, growth
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.kernels import Words
from heatfhe.ckks.linear import EncodedMap, apply_map
from heatfhe.ckks.ring import Ciphertext, at_scale
from heatfhe.errors import OutOfLevelsError


class Bootstrapper:
    """Bootstraps ciphertexts of one evaluator; keeps the matrices of each period and magnitude it has met."""

    def __init__(self, evaluator: Evaluator, spec: BootstrapSpec) -> None:
        spec.check(evaluator.ring.chain)
        self._e, self._spec = evaluator, spec
        self._ratio = spec.ratio(evaluator.ring.chain)
        self._cts: dict[int, list[EncodedMap]] = {}
        self._stc: dict[tuple[int, int], list[EncodedMap]] = {}

    @property
    def memory(self) -> int:
        """Memory of the encoded matrices."""
        return sum(m.memory for maps in (*self._cts.values(), *self._stc.values()) for m in maps)

    def _coeffs_to_slots(self, period: int) -> list[EncodedMap]:
        if period not in self._cts:
            ring, chain = self._e.ring, self._e.ring.chain
            parts, gain = self._spec.coeffs_to_slots(chain, period), 2.0**chain.eval_bits / chain.base_modulus
            self._cts[period] = encode_matrices(ring, parts, self._spec.raised(chain, period), gain)
        return self._cts[period]

    def _slots_to_coeffs(self, period: int, grow: int) -> list[EncodedMap]:
        """From the canonical scale of the floor to scale q0 / R, the value divided by 2^grow on the way."""
        ring = self._e.ring
        start = self._spec.stc_start(period)
        if (period, grow) not in self._stc:
            parts = self._spec.slots_to_coeffs(ring.chain, period)
            gain = ring.chain.base_modulus / self._ratio / 2.0**grow / ring.scales[start]
            self._stc[period, grow] = encode_matrices(ring, parts, start, gain)
        return self._stc[period, grow]

    def _refresh(self, a: Ciphertext, period: int, bound: float, *, imaginary: bool) -> list[Ciphertext]:
        """Real and, where asked, imaginary part of the slots, refreshed.

        Domain  slots of period ``period`` (a power of two), of magnitude at most ``bound``; level at least the floor.
        Bound   relative to ``bound``, or to one below it: the sine, 6.6 z^3 / R^2 in a slot z; EvalMod, R delta with
                delta about 2^-42.8 N / 2^11 at 58 bits; the rounding of level 0, sqrt(N / 18) R / q0.
        Depth   ``stc_levels`` of the value's own, which the recipe keeps apart; EvalMod's and CoeffsToSlots' above.
        Source  Chen, Chillotti, Song, EUROCRYPT 2019 (the order); the figures, docs/security-native.md.
        """
        e, chain = self._e, self._e.ring.chain
        period = check_period(period, chain.ring_dimension // 2)
        grow = growth(bound)
        if a.level < self._spec.floor:
            raise OutOfLevelsError(f"bootstrap: needs {self._spec.floor} levels for SlotsToCoeffs, has {a.level}")
        scales, start, top = e.ring.scales, self._spec.stc_start(period), chain.normal_levels
        to_coeffs, to_slots = self._slots_to_coeffs(period, grow), self._coeffs_to_slots(period)
        traced = self._spec.trace(chain, period)

        def body(words: Words) -> Sequence[Words]:
            low = Ciphertext(start, scales[start], words)
            for m in to_coeffs:
                low = apply_map(e, low, m)
            raised = trace(e, mod_raise(e, low, period, self._spec.raised(chain, period)), traced)
            raised = at_scale(raised, float(chain.base_modulus), factor=self._ratio * 2.0**grow)
            out = []
            for part in coeffs_to_slots(e, raised, to_slots, imaginary=imaginary):
                reduced = eval_mod(e, part)  # z / R at EvalMod's scale is z at the canonical one
                value = at_scale(reduced, scales[top], factor=1 / self._ratio)
                out.append((e.times_integer(value, 1 << grow) if grow else value).data)
            return out

        low = at_scale(e.drop(a, start), scales[start])
        fresh = e.ring.kernels.replay(("bootstrap", period, grow, imaginary), body, low.data)
        return [Ciphertext(top, scales[top], words) for words in fresh]

    def bootstrap(self, a: Ciphertext, *, period: int, bound: float = 1.0) -> Ciphertext:
        """The same complex value with fresh levels."""
        real, imaginary = self._refresh(a, period, bound, imaginary=True)
        return self._e.add(real, self._e.times_i(imaginary))

    def bootstrap_real(self, a: Ciphertext, *, period: int, bound: float = 1.0) -> Ciphertext:
        """A real value: an imaginary part it brings is left behind; its own is rounding noise of EvalMod."""
        return self._refresh(a, period, bound, imaginary=False)[0]

    def bootstrap_pair(
        self, a: Ciphertext, b: Ciphertext, *, period: int, bound: float = 1.0
    ) -> tuple[Ciphertext, Ciphertext]:
        """Two real values as a + i b: everything but EvalMod is shared."""
        e, level = self._e, min(a.level, b.level)
        joined = e.add(e.drop(a, level), e.times_i(e.drop(b, level)))
        real, imaginary = self._refresh(joined, period, bound, imaginary=True)
        return real, imaginary
