# SPDX-License-Identifier: Apache-2.0
"""OpenFHE's own word on a parameter set: the ring dimension it asks for at 128 bits, beside our table's."""

from __future__ import annotations

from heatfhe.ckks import Params
from heatfhe.engine.openfhe.context import load_openfhe, refusals
from heatfhe.errors import ConfigError


def ring_dimension_asked(params: Params) -> int:
    """The smallest ring OpenFHE takes for this chain and secret at its level HEStd_128_classic.

    It needs the openfhe extra, makes no keys, and takes about as long as opening the engine.
    """
    if params.engine != "openfhe":
        raise ConfigError(f"{params.name} is a set of the {params.engine} engine; OpenFHE judges its own sets only")
    o, literal = load_openfhe(), dict(params.literal)
    p = o.CCParamsCKKSRNS()
    p.SetSecretKeyDist(o.SPARSE_ENCAPSULATED if literal["encapsulated"] else o.SPARSE_TERNARY)
    p.SetSecurityLevel(o.HEStd_128_classic)
    p.SetScalingModSize(int(literal["scale_bits"]))
    p.SetFirstModSize(int(literal["first_bits"]))
    p.SetScalingTechnique(o.FLEXIBLEAUTO)
    p.SetMultiplicativeDepth(int(literal["depth"]))
    p.SetNumLargeDigits(int(literal["digits"]))
    with refusals(f"judge {params.name}"):
        return int(o.GenCryptoContext(p).GetRingDimension())
