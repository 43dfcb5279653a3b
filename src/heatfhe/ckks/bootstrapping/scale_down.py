# SPDX-License-Identifier: Apache-2.0
"""Scale down, where SlotsToCoeffs comes last: to level 0, at the scale that gives the wanted message ratio."""

from __future__ import annotations

from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.ring import Ciphertext


def scale_down(evaluator: Evaluator, a: Ciphertext, shift: int) -> tuple[Ciphertext, int]:
    """The value at level 0 and scale 2^shift * Delta_0, and the shift in truth reached.

    From a higher level any shift is met by the constant of the drop. At level 0 the value can only be multiplied by an
    integer, so a negative shift becomes 0.
    """
    base = evaluator.ring.scales[0]
    if a.level > 0:
        return evaluator.drop(a, 0, scale=base * 2.0**shift), shift
    reached = max(shift, 0)
    grown = evaluator.times_integer(a, 1 << reached)
    return Ciphertext(0, base * 2.0**reached, grown.data), reached
