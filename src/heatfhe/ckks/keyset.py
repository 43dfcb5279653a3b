# SPDX-License-Identifier: Apache-2.0
"""Which evaluation keys a plan needs, each no higher than the levels it is used at: the list both sides agree on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heatfhe.ckks.archive import key_blob_bytes
from heatfhe.ckks.bootstrapping import check_period
from heatfhe.ckks.keys import GALOIS, RELINEARISE, TO_DENSE, TO_SPARSE, KeyId, conjugation_element, galois_element
from heatfhe.ckks.presets import NativeSet
from heatfhe.errors import ConfigError


def key_ids(
    native: NativeSet, rotations: Sequence[int], conjugation: bool, periods: Iterable[int], levels: Sequence[int] = ()
) -> tuple[KeyId, ...]:
    """Every key, in a fixed order: relinearisation, the two of encapsulation, then automorphisms by element.

    ``levels`` are the highest at which a plan uses each rotation, as Params counts them; with none, all levels.
    """
    chain, n = native.chain, native.chain.ring_dimension
    slots, usable = n // 2, native.top
    wanted = sorted({check_period(p, slots) for p in periods})
    if levels and (len(levels) != len(rotations) or not 0 <= min(levels) <= max(levels) <= native.params.levels):
        raise ConfigError(f"one level from 0 to {native.params.levels} for each of {len(rotations)} rotations, please")
    caps: dict[int, int] = {}
    for r, level in zip(rotations, levels or (native.params.levels,) * len(rotations)):
        if r % slots:
            caps[galois_element(r, n)] = max(native.floor + level, caps.get(galois_element(r, n), 0))
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


def upload_bytes(native: NativeSet, ids: Iterable[KeyId]) -> int:
    """Bytes of these keys as a client uploads them."""
    return sum(key_blob_bytes(native.chain, key) for key in ids)
