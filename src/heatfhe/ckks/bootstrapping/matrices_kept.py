# SPDX-License-Identifier: Apache-2.0
"""What both orders of a bootstrap share: the evaluator, the recipe, and the encoded matrices they keep."""

from __future__ import annotations

from heatfhe.ckks.bootstrapping.coeffs_to_slots import encode_coeffs_to_slots
from heatfhe.ckks.bootstrapping.spec import BootstrapSpec
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.linear import EncodedMap
from heatfhe.ckks.ring import Ciphertext


class KeptMatrices:
    """One evaluator's matrices: CoeffsToSlots by period, SlotsToCoeffs by period and power of two."""

    def __init__(self, evaluator: Evaluator, spec: BootstrapSpec) -> None:
        spec.check(evaluator.ring.chain)
        self._e, self._spec = evaluator, spec
        self._cts: dict[int, list[EncodedMap]] = {}
        self._stc: dict[tuple[int, int], list[EncodedMap]] = {}

    @property
    def memory(self) -> int:
        """Memory of the encoded matrices."""
        return sum(m.memory for maps in (*self._cts.values(), *self._stc.values()) for m in maps)

    def _coeffs_to_slots(self, period: int) -> list[EncodedMap]:
        if period not in self._cts:
            parts = self._spec.coeffs_to_slots(self._e.ring.chain, period)
            self._cts[period] = encode_coeffs_to_slots(self._e.ring, parts)
        return self._cts[period]

    def _joined(self, a: Ciphertext, b: Ciphertext) -> Ciphertext:
        """a + i b, at the lower of their levels."""
        level = min(a.level, b.level)
        return self._e.add(self._e.drop(a, level), self._e.times_i(self._e.drop(b, level)))
