# SPDX-License-Identifier: Apache-2.0
"""Iterations as bits: the exchange rate between a solver's count and a uniform quantiser's width, and its bounds.

Its bounds are proved in proofs/Bits.v and proofs/Network.v; docs/theory.md ties each function to its theorem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heatfhe.approx import _check
from heatfhe.errors import ConfigError

# Legend: an n-step solver errs by at most eps_n = scale * rate^(2^n) (the paper's M r^(2^n)); a b-bit quantiser over a
# range of width R has steps R / (2^b - 1); a layer f(W h) is rho-Lipschitz with rho = slope * row_norm (lambda kappa).


def solver_error(count: int, *, scale: float, rate: float) -> float:
    """eps_n, the error budget of a quadratically convergent solver after count iterations.

    Domain  scale > 0, 0 < rate < 1.
    Bound   exact; underflows to 0 for large counts.
    Depth   none.
    Source  the paper, appendix on quantisation, definition of eps_n.
    """
    _check_solver(count, scale, rate)
    return scale * 2.0 ** math.ldexp(math.log2(rate), count) if count < 64 else 0.0


def quantiser_step(bits: int, width: float) -> float:
    """s(b) = R / (2^b - 1), the distance between neighbouring values of a uniform quantiser.

    Domain  bits >= 1, width > 0.
    Bound   a value inside the range is rounded by at most half of it; outside, the quantiser saturates.
    Depth   none.
    Source  the paper, appendix on quantisation.
    """
    _check.count("bits", bits, floor=1)
    _check.positive("a quantiser's range", width)
    return width / (2.0**bits - 1.0)


def effective_bits(count: int, *, scale: float, rate: float, width: float) -> float:
    """b_n = log2(1 + R / (2 eps_n)): the width of the quantiser over R with the same worst-case error.

    Domain  scale > 0, 0 < rate < 1, width > 0.
    Bound   exact; computed from log2 eps_n, so it does not overflow where eps_n underflows.
    Depth   none.
    Source  the paper, Proposition 1 (iterations are bits).
    """
    _check_solver(count, scale, rate)
    _check.positive("a quantiser's range", width)
    ratio = math.log2(width) - 1.0 - math.log2(scale) - math.ldexp(math.log2(rate), count)  # log2(R / (2 eps_n))
    return ratio + math.log2(1.0 + 2.0**-ratio) if ratio > 0.0 else math.log2(1.0 + 2.0**ratio)


def matched_bits(
    count: int, *, scale: float, rate: float, width: float, slope: float, dimension: int, activation_bound: float
) -> int:
    """b*(n): the least whole width at which rounding the weights errs no more per layer than the solver does.

    Domain  as effective_bits; slope (lambda), dimension (d) and activation_bound (B) above zero.
    Bound   slope * s(b) / 2 * d * B <= eps_n at b = b*, and not at b* - 1 (for b* > 1).
    Depth   none.
    Source  the paper, proof of Theorem 2: b* = ceil(b_n(lambda d B R)).
    """
    _check.positive("slope", slope)
    _check.positive("dimension", dimension)
    _check.positive("activation_bound", activation_bound)
    return max(
        1, math.ceil(effective_bits(count, scale=scale, rate=rate, width=slope * dimension * activation_bound * width))
    )


def trajectory_bound(errors: Sequence[float], rho: float) -> float:
    """sum_l rho^(L - l) eps_l: how far L perturbed rho-Lipschitz layers can drift from the exact ones.

    Domain  errors >= 0 in layer order, rho >= 0.
    Bound   the drift of the last activation in the maximum norm.
    Depth   none.
    Source  the paper, trajectory lemma and its per-site form.
    """
    if not (math.isfinite(rho) and rho >= 0.0):
        raise ConfigError(f"a Lipschitz constant is finite and at least 0, got {rho:g}")
    total = 0.0
    for error in errors:
        if not error >= 0.0:
            raise ConfigError(f"a layer's error is at least 0, got {error:g}")
        total = rho * total + error
    return total


def fidelity_bound(counts: Sequence[int], *, scale: float, rate: float, rho: float, loss_slope: float) -> float:
    """How far the loss with these counts, one per layer, can lie from the exact network's.

    Domain  as solver_error and trajectory_bound; loss_slope the loss's Lipschitz constant in the last activation.
    Bound   loss_slope * sum_l rho^(L - l) eps_{n_l}.
    Depth   none.
    Source  the paper, fidelity to the exact network.
    """
    _check.positive("loss_slope", loss_slope)
    return loss_slope * trajectory_bound([solver_error(n, scale=scale, rate=rate) for n in counts], rho)


def loss_gap_bound(counts: Sequence[int], *, scale: float, rate: float, rho: float, loss_slope: float) -> float:
    """How far apart the losses of the solver network and of the matched mixed-precision network can lie.

    Domain  as fidelity_bound; the quantised network runs layer l at matched_bits(n_l).
    Bound   twice fidelity_bound: each network spends one budget against the exact one.
    Depth   none.
    Source  the paper, Theorem 2 in its per-site form.
    """
    return 2.0 * fidelity_bound(counts, scale=scale, rate=rate, rho=rho, loss_slope=loss_slope)


def uniform_loss_gap_bound(
    count: int, layers: int, *, scale: float, rate: float, rho: float, loss_slope: float
) -> float:
    """loss_gap_bound with one count in every layer: 2 xi eps_n sum_{j < L} rho^j.

    Domain  as loss_gap_bound, layers >= 1.
    Bound   the theorem's.
    Depth   none.
    Source  the paper, Theorem 2 (matched-precision objective bound).
    """
    _check.count("layers", layers, floor=1)
    return loss_gap_bound([count] * layers, scale=scale, rate=rate, rho=rho, loss_slope=loss_slope)


def _check_solver(count: int, scale: float, rate: float) -> None:
    _check.count("count", count)
    _check.positive("a solver's scale", scale)
    if not 0.0 < rate < 1.0:
        raise ConfigError(f"a solver's rate lies strictly between 0 and 1, got {rate:g}")
