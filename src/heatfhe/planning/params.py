# SPDX-License-Identifier: Apache-2.0
"""Chooses parameters: the presets by name, and drafts of our own chain checked against the security table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from heatfhe.ckks import MAX_LOG_SPARSE_MODULUS, SECURITY_SOURCE, Params, draft_native, native_presets
from heatfhe.errors import ConfigError
from heatfhe.planning.openfhe_sets import PRESETS as OPENFHE_PRESETS


def draft(name: str, *, ring_dimension: int, scale_bits: int, levels: int, precision: float = 18.0) -> Params:
    """A checked set for our own engine: so many levels of this scale, refreshed to so many bits.

    The chain is really built, down to its primes. A request that no chain meets, or that the security table does not
    allow, is refused with the numbers and the smallest change that would be accepted. A ``precision`` of p bits for
    random messages promises p - 3 for any.
    """

    def attempt(ring: int, scale: int, count: int) -> Params:
        return draft_native(name, ring_dimension=ring, scale_bits=scale, levels=count, precision=precision)

    try:
        return attempt(ring_dimension, scale_bits, levels)
    except ConfigError as err:
        ways = []
        fewer = _first(range(levels - 1, 0, -1), lambda count: attempt(ring_dimension, scale_bits, count))
        if fewer is not None:
            ways.append(f"{fewer} levels instead of {levels}")
        smaller = _first(range(scale_bits - 1, 24, -1), lambda scale: attempt(ring_dimension, scale, levels))
        if smaller is not None:
            ways.append(f"a scale of {smaller} bits instead of {scale_bits}")
        larger = _first(
            (n for n in sorted(MAX_LOG_SPARSE_MODULUS) if n > ring_dimension),
            lambda ring: attempt(ring, scale_bits, levels),
        )
        if larger is not None:
            ways.append(f"ring dimension {larger} instead of {ring_dimension}")
        advice = " or ".join(ways) or "no single change; ask for fewer levels and a smaller scale"
        raise ConfigError(f"{name}: {err}. What would be accepted: {advice} ({SECURITY_SOURCE})") from err


def _first(candidates: Iterable[int], attempt: Callable[[int], Params]) -> int | None:
    """The first candidate that is accepted."""
    for candidate in candidates:
        try:
            attempt(candidate)
        except ConfigError:
            continue
        return candidate
    return None


PAPER_16 = Params(
    name="paper-16",
    engine="fideslib",
    ring_dimension=1 << 16,
    levels=8,
    scale_bits=53.0,
    log_qp=60 + 27 * 53 + 4 * 60,
    noise=1.7e-4,
    promised_bits=10.0,
    window=246.0,
    sparse_modulus_bits=120.0,
    literal=(
        ("depth", 27),
        ("digits", 7),
        ("first_bits", 60),
        ("lands_at", 11),
        ("scale_bits", 53),
        ("special_primes", 4),
    ),
)
"""The HEAT paper's set: 60 + 27 x 53 bits, 4 special primes, 11 levels after a bootstrap of which 8 are used.

A relative error below 2^-10 is promised for magnitudes from 1.38 to 246 (the paper, cryptographic settings).
"""


def presets() -> dict[str, Params]:
    """Every named parameter set."""
    return {PAPER_16.name: PAPER_16, **native_presets(), **OPENFHE_PRESETS}


def preset(name: str) -> Params:
    """A parameter set by its name."""
    known = presets()
    if name not in known:
        raise ConfigError(f"unknown parameter set {name!r}; choose one of: {', '.join(sorted(known))}")
    return known[name]
