# SPDX-License-Identifier: Apache-2.0
"""Parameter sets of the OpenFHE engine, as plain data: the planner uses them where openfhe itself cannot load.

How a set is counted. OpenFHE's chain has ``depth + 1`` primes and its bootstrap spends ``bootstrap_depth`` of them from
the top. One prime stays in reserve at the bottom, because ``EvalBootstrap`` takes its input with two primes left. So

    levels = depth - bootstrap_depth - 1          and          OpenFHE level = depth - 1 - our level.

``correction`` is the power of two by which a value is shrunk before the modular reduction and enlarged after it. The
sine that stands in for the reduction errs by at most (2 pi)^2/6 * 2^(-2 correction) * |v|^3 (v: the largest
*coefficient*, 1 for a constant vector of ones), and the rounding noise grows with 2^correction. We choose it where the
two meet for constant vectors, the worst case, which norms and softmax rows come close to; random vectors lose two bits.
The secure set, whose noise is a hundred times larger, takes the point where they meet at half the bound, one bit less:
a bound is the end of a fitted domain, and what is refreshed lies well inside (1/2.4 of it at most in the first norm and
softmax of the default model), where the cube has vanished and noise is all there is.

Main secrets here have weight 192 (OpenFHE's choice for its sparse modes), for which the table of uniform ternary
secrets is too generous: the bounds are ``MAX_LOG_QP_BY_WEIGHT``, by which ``openfhe-16`` has 122 bits, not 128; to
serve or to use it wants ``--insecure``. 128 bits would take a special prime instead of three (23 digits for 8, keys 2.7
times as large). Sparse-secret encapsulation in OpenFHE 1.6 publishes one key under q0 * P' = 60 + 66 bits, above the
120 bits we accept, so no encapsulated 59/60-bit set may claim anything; ``openfhe-16`` uses the weight-192 secret
throughout and pays with a wider modular reduction.
"""

from __future__ import annotations

import math

from heatfhe.ckks import MAX_LOG_QP_BY_WEIGHT, Params
from heatfhe.errors import ConfigError

# Any bound is brought to one and back at no cost of levels; the promise is relative to the bound. Beyond this, plans
# should rather scale their values.
REACH = 1024.0
SECRET_WEIGHT = 192
AUXILIARY_BITS = 60  # size of every special prime
ENCAPSULATION_BITS = 66  # P' of the dense-to-sparse key in OpenFHE 1.6: two primes of 33 bits


def special_primes(depth: int, digits: int, scale_bits: int, first_bits: int) -> int:
    """Number of special primes of hybrid key switching: enough to cover the largest digit."""
    per_digit = math.ceil((depth + 1) / digits)
    return math.ceil((first_bits + (per_digit - 1) * scale_bits) / AUXILIARY_BITS)


def make_params(
    name: str,
    *,
    log_n: int,
    levels: int,
    digits: int,
    noise: float,
    promised_bits: float,
    correction: int,
    scale_bits: int = 59,
    first_bits: int = 60,
    budget: int = 3,
    encapsulated: bool = True,
) -> Params:
    """A checked set from the few integers an OpenFHE context is built from.

    ``budget`` is the number of levels of each of the two linear transforms of a full bootstrap.
    """
    if first_bits < scale_bits or first_bits > 60:
        raise ConfigError(f"{name}: first modulus of {first_bits} bits must lie in [{scale_bits}, 60]")
    if not first_bits - scale_bits <= correction <= 20:
        raise ConfigError(
            f"{name}: correction factor {correction} must be at least first - scale = {first_bits - scale_bits} bits "
            "(OpenFHE refuses it only when all keys are made) and at most 20"
        )
    bootstrap_depth = 2 * budget + 10
    depth = bootstrap_depth + levels + 1
    log_p = AUXILIARY_BITS * special_primes(depth, digits, scale_bits, first_bits)
    log_qp = float(first_bits + depth * scale_bits + log_p)
    n = 1 << log_n
    budgeted = max(MAX_LOG_QP_BY_WEIGHT[SECRET_WEIGHT].get(n, {0: 0.0}).values())
    if not name.startswith("insecure-") and log_qp > budgeted:
        raise ConfigError(
            f"{name}: log2 QP {log_qp:g} exceeds {budgeted:g}, the largest modulus with a claim for secrets "
            f"of weight 192 at ring dimension {n}; use more digits or fewer levels, or call the set insecure-..."
        )
    literal = {
        "bootstrap_depth": bootstrap_depth,
        "budget": budget,
        "correction": correction,
        "depth": depth,
        "digits": digits,
        "encapsulated": encapsulated,
        "first_bits": first_bits,
        "scale_bits": scale_bits,
        "times_i_levels": 0,
    }
    main = f"ternary of weight {SECRET_WEIGHT}"
    return Params(
        name=name,
        engine="openfhe",
        ring_dimension=n,
        levels=levels,
        scale_bits=float(scale_bits),
        log_qp=log_qp,
        noise=noise,
        promised_bits=promised_bits,
        reach=REACH,
        secret=f"{main}, encapsulated sparse weight 32 in bootstrapping" if encapsulated else main,
        secret_weight=SECRET_WEIGHT,
        sparse_modulus_bits=float(first_bits + ENCAPSULATION_BITS) if encapsulated else 0.0,
        pair_levels=0,
        literal=tuple(sorted(literal.items())),
    )


# Noise and promised bits. insecure-openfhe-11 and -12 by heat measure-noise, one refresh per size and kind of input
# over all slots: sigma 2.5e-8 and 3.8e-8 on uniform values of size one, largest error of any 2^-21.8 of its bound.
# openfhe-16 from one refresh each of a constant and of uniform values, period 128, correction 10: sigma 4.5e-7 and
# 4.2e-7, a bias of 6.3e-6 on the constant, largest error 2^-17.0. At correction 9 that is half the noise and a bias of
# 2.5e-5 at the bound, 2^-15.3; all slots were not measured there, so noise and promise leave room.
PRESETS: dict[str, Params] = {
    p.name: p
    for p in (
        make_params("insecure-openfhe-11", log_n=11, levels=8, digits=3, noise=3e-8, promised_bits=20.0, correction=13),
        make_params("insecure-openfhe-12", log_n=12, levels=8, digits=3, noise=4e-8, promised_bits=20.0, correction=13),
        make_params(
            "openfhe-16",
            log_n=16,
            levels=5,
            digits=8,
            noise=1e-5,
            promised_bits=12.0,
            correction=9,
            encapsulated=False,
        ),
    )
}


def bootstrap_budget(params: Params, period: int) -> int:
    """Levels of each linear transform for a bootstrap of this many slots.

    A deeper transform leaves fewer limbs for the modular reduction, the dear part, so it pays as soon as the transform
    itself is not trivial. At ring 2^11 budgets of 1, 2 and 3 took 0.38, 0.45, 0.42 CPU seconds for 8 slots and
    (none), 0.52, 0.45 for 128.

    Bound   never more than the set's own budget, so the result is never lower than params.levels.
    """
    own = int(dict(params.literal)["budget"])
    return min(own, 1) if period <= 16 else own


def bootstrap_correction(params: Params, period: int) -> int:
    """Bits by which a bootstrap of this many slots shrinks its input, relative to its bound.

    One bit more quarters the sine's cubic error and doubles the rounding noise, which in turn goes with the root of the
    number of slots. The set's own correction is where the two meet for all slots; fewer slots leave room for a third of
    log2 sqrt(slots / period) more.
    """
    return int(dict(params.literal)["correction"]) + round(math.log2(params.slots / period) / 6)
