# SPDX-License-Identifier: Apache-2.0
"""The usual order: scale down, ModRaise, CoeffsToSlots, EvalMod, SlotsToCoeffs."""

from __future__ import annotations

from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots
from heatfhe.ckks.bootstrapping.eval_mod import eval_mod
from heatfhe.ckks.bootstrapping.matrices_kept import KeptMatrices
from heatfhe.ckks.bootstrapping.mod_raise import mod_raise, trace
from heatfhe.ckks.bootstrapping.scale_down import scale_down
from heatfhe.ckks.bootstrapping.slots_to_coeffs import encode_slots_to_coeffs, slots_to_coeffs
from heatfhe.ckks.bootstrapping.spec import check_period, growth
from heatfhe.ckks.linear import EncodedMap
from heatfhe.ckks.ring import Ciphertext


class StcLast(KeptMatrices):
    """Bootstraps ciphertexts of one evaluator; keeps the matrices of each period it has met."""

    def _slots_to_coeffs(self, period: int, shift: int) -> list[EncodedMap]:
        ring = self._e.ring
        if (period, shift) not in self._stc:
            ratio = ring.chain.base_modulus / (ring.scales[0] * 2.0**shift)
            parts = self._spec.slots_to_coeffs(ring.chain, period, ratio)
            start = ring.chain.normal_levels
            gain = ring.scales[start - len(parts)] / ring.chain.eval_scales()[start]
            self._stc[period, shift] = encode_slots_to_coeffs(ring, parts, start, gain)
        return self._stc[period, shift]

    def bootstrap(self, a: Ciphertext, *, period: int, bound: float = 1.0, halve: bool = False) -> Ciphertext:
        """The same value (or half of it) with fresh levels.

        Domain  slots of period ``period`` (a power of two), of magnitude at most ``bound``.
        Bound   relative to ``bound``: the sine, 6.6 / R^2 for any message, 25.5 s^3 / (2 period R^2) for random ones of
                rms s; EvalMod, R sqrt(period) delta with delta about 2^-42.8 N / 2^11 at 58 bits.
        Depth   what the chain holds above ``levels``; none of the value's own.
        Source  Cheon et al., EUROCRYPT 2018; ePrint 2020/1203 and 2022/024; the figures, docs/security-native.md.
        """
        chain = self._e.ring.chain
        slots = chain.ring_dimension // 2
        period = check_period(period, slots)
        shift = self._spec.shift(chain, period)
        if a.level == 0:
            shift = max(shift, 0)
        low, reached = scale_down(self._e, a, shift - growth(bound))
        raised = trace(self._e, mod_raise(self._e, low, period, self._spec.raised(chain, period)), period)
        halves = coeffs_to_slots(self._e, raised, self._coeffs_to_slots(period), imaginary=period == slots)
        parts = [eval_mod(self._e, half) for half in halves]
        out = slots_to_coeffs(self._e, parts, self._slots_to_coeffs(period, shift + halve), period)
        back = shift - reached  # the matrices undo shift, the value was shifted by reached
        return self._e.times_integer(out, 1 << back) if back else out

    def bootstrap_real(self, a: Ciphertext, *, period: int, bound: float = 1.0) -> Ciphertext:
        """A real value: half of it, plus the conjugate, so that the noise of the imaginary part is left behind."""
        half = self.bootstrap(a, period=period, bound=bound, halve=True)
        return self._e.add(half, self._e.conjugate(half))

    def bootstrap_pair(
        self, a: Ciphertext, b: Ciphertext, *, period: int, bound: float = 1.0
    ) -> tuple[Ciphertext, Ciphertext]:
        """Two real values in one complex bootstrap: a + i b, halved, then split by one conjugation."""
        e = self._e
        half = self.bootstrap(self._joined(a, b), period=period, bound=bound, halve=True)
        conjugate = e.conjugate(half)
        return e.add(half, conjugate), e.times_i(e.sub(conjugate, half))
