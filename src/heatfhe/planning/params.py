# SPDX-License-Identifier: Apache-2.0
"""Every parameter set by its name, whichever engine it belongs to."""

from __future__ import annotations

from dataclasses import replace

from heatfhe.ckks import Params, native_presets
from heatfhe.errors import ConfigError
from heatfhe.planning.openfhe_sets import PRESETS as OPENFHE_PRESETS

PAPER_16 = Params(
    name="paper-16",
    engine="fideslib",
    ring_dimension=1 << 16,
    levels=8,
    scale_bits=53.0,
    log_qp=60 + 27 * 53 + 4 * 60,
    noise=1.7e-4,
    promised_bits=10.0,
    reach=246.0,
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

PAPER_12 = replace(PAPER_16, name="insecure-paper-12", ring_dimension=1 << 12)
"""The paper's reach, levels and noise at a ring that the default model fills: for noise on the clear engine alone."""


def presets() -> dict[str, Params]:
    """Every named parameter set."""
    return {PAPER_16.name: PAPER_16, PAPER_12.name: PAPER_12, **native_presets(), **OPENFHE_PRESETS}


def preset(name: str) -> Params:
    """A parameter set by its name."""
    known = presets()
    if name not in known:
        raise ConfigError(f"unknown parameter set {name!r}; choose one of: {', '.join(sorted(known))}")
    return known[name]
