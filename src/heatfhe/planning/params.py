# SPDX-License-Identifier: Apache-2.0
"""Chooses parameters: the presets by name, and drafts of our own chain checked against the security table."""

from __future__ import annotations

from dataclasses import dataclass

from heatfhe.ckks.params import MAX_LOG_QP, SECURITY_SOURCE, Params
from heatfhe.ckks.presets import native_presets
from heatfhe.errors import ConfigError
from heatfhe.planning.openfhe_sets import PRESETS as OPENFHE_PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The few integers of a chain for our own engine, before anything is checked.

    From the bottom: a base modulus; ``levels`` for arithmetic and ``stc_levels`` for SlotsToCoeffs, all of
    ``scale_bits``; ``evalmod_levels`` of ``evalmod_bits`` each for the modular reduction; ``cts_bits`` in all for
    CoeffsToSlots; and the special primes of key switching, which must cover the largest digit.
    """

    name: str
    ring_dimension: int
    scale_bits: int
    levels: int
    base_bits: int = 50
    stc_levels: int = 3
    evalmod_levels: int = 8
    evalmod_bits: int = 58
    cts_bits: int = 220
    special_bits: float = 371.927
    noise: float = 1e-7
    promised_bits: float = 20.0
    window: float = 1.0

    def __post_init__(self) -> None:
        small = [
            w for w in ("scale_bits", "levels", "base_bits", "stc_levels", "evalmod_levels") if getattr(self, w) < 1
        ]
        if small:
            raise ConfigError(f"{self.name}: {', '.join(small)} must be at least 1")
        if self.base_bits <= self.scale_bits:
            raise ConfigError(
                f"{self.name}: a base modulus of {self.base_bits} bits leaves no room above the scale of "
                f"{self.scale_bits}; use a base of at least {self.scale_bits + 10} bits"
            )

    @property
    def log_q(self) -> float:
        """Bits of the whole chain."""
        normal = (self.levels + self.stc_levels) * self.scale_bits
        return float(self.base_bits + normal + self.evalmod_levels * self.evalmod_bits + self.cts_bits)

    @property
    def log_qp(self) -> float:
        """Bits of chain and special primes: what evaluation keys are samples of."""
        return self.log_q + self.special_bits


def draft(request: Draft) -> Params:
    """A checked parameter set, or a refusal that says by how much it fails and the smallest change that mends it."""
    bound = MAX_LOG_QP.get(request.ring_dimension, {}).get(128)
    toy = request.name.startswith("insecure-")
    if bound is None and not toy:
        rings = ", ".join(str(n) for n in MAX_LOG_QP)
        raise ConfigError(
            f"{request.name}: no security bound for ring dimension {request.ring_dimension}; have: {rings}"
        )
    if bound is not None and request.log_qp > bound and not toy:
        raise ConfigError(
            f"{request.name}: log2 QP {request.log_qp:.1f} exceeds {bound:g}, the 128-bit bound at ring dimension "
            f"{request.ring_dimension} ({SECURITY_SOURCE}), by {request.log_qp - bound:.1f} bits; "
            + _smallest_change(request)
        )
    return Params(
        name=request.name,
        engine="native",
        ring_dimension=request.ring_dimension,
        levels=request.levels,
        scale_bits=float(request.scale_bits),
        log_qp=request.log_qp,
        noise=request.noise,
        promised_bits=request.promised_bits,
        window=request.window,
        sparse_modulus_bits=0.0 if toy else request.base_bits + 62.0,
        literal=tuple(
            sorted(
                (word, getattr(request, word))
                for word in ("base_bits", "stc_levels", "evalmod_levels", "evalmod_bits", "cts_bits", "special_bits")
            )
        ),
    )


def _smallest_change(request: Draft) -> str:
    """What would bring a draft under the bound: fewer levels, a smaller scale, or the next ring."""
    bound = MAX_LOG_QP[request.ring_dimension][128]
    ways = []
    over = request.log_qp - bound
    fewer = request.levels - -int(-over // request.scale_bits)
    if fewer >= 1:
        ways.append(f"ask for {fewer} levels instead of {request.levels}")
    scale = request.scale_bits - -int(-over // (request.levels + request.stc_levels))
    if scale >= 20:
        ways.append(f"for a scale of {scale} bits instead of {request.scale_bits}")
    for ring in sorted(MAX_LOG_QP):
        if ring > request.ring_dimension and MAX_LOG_QP[ring][128] >= request.log_qp:
            ways.append(f"for ring dimension {ring}")
            break
    return " or ".join(ways) if ways else "no single change helps: ask for fewer levels and a smaller scale"


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
        raise ConfigError(f"unknown parameter set {name!r}; have: {', '.join(sorted(known))}")
    return known[name]
