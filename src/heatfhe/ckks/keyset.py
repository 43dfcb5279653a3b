# SPDX-License-Identifier: Apache-2.0
"""Which evaluation keys a plan needs, each no higher than the levels it is used at: the list both sides agree on."""

from __future__ import annotations

from collections.abc import Iterable

from heatfhe.ckks.bootstrapping import check_period
from heatfhe.ckks.keys import GALOIS, RELINEARISE, TO_DENSE, TO_SPARSE, KeyId, conjugation_element, galois_element
from heatfhe.ckks.presets import NativeSet


def key_ids(
    native: NativeSet, rotations: Iterable[int], conjugation: bool, periods: Iterable[int]
) -> tuple[KeyId, ...]:
    """Every key, in a fixed order: relinearisation, the two of encapsulation, then automorphisms by element."""
    chain, n = native.chain, native.chain.ring_dimension
    slots, usable = n // 2, native.top
    wanted = sorted({check_period(p, slots) for p in periods})
    caps: dict[int, int] = {galois_element(r, n): usable for r in rotations if r % slots}
    if conjugation:
        caps[conjugation_element(n)] = usable
    for period in wanted:
        for rotation, level in native.bootstrap.rotations(chain, period).items():
            element = galois_element(rotation, n)
            caps[element] = max(level, caps.get(element, 0))
        caps[conjugation_element(n)] = chain.normal_levels + chain.eval_levels
    ids = [KeyId(kind=RELINEARISE, cap=chain.normal_levels + chain.eval_levels if wanted else usable)]
    if wanted:
        ids += [KeyId(kind=TO_SPARSE), KeyId(kind=TO_DENSE, cap=chain.top)]
    return (*ids, *(KeyId(kind=GALOIS, element=e, cap=caps[e]) for e in sorted(caps)))
