# SPDX-License-Identifier: Apache-2.0
"""How a chain is bootstrapped: the order of the stages, their levels, the message ratio, and the rotations needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots_steps
from heatfhe.ckks.bootstrapping.eval_mod import EVAL_MOD_LEVELS, INTERVAL, WINDOW
from heatfhe.ckks.bootstrapping.matrices import Steps
from heatfhe.ckks.bootstrapping.mod_raise import trace_groups
from heatfhe.ckks.bootstrapping.slots_to_coeffs import slots_to_coeffs_steps
from heatfhe.ckks.chain import Chain
from heatfhe.errors import ConfigError

RATIO_SLOPE = 0.28  # SlotsToCoeffs last: log2 of the message ratio per halving of the period
LAYERS = 4  # butterfly layers per matrix, where the levels allow so few
RATIO_SLACK = 0.5  # SlotsToCoeffs first: the chain's primes meet the wanted ratio this near, in bits


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSpec:
    """The recipe: levels of SlotsToCoeffs, log2 of the message ratio (at full slots), and where SlotsToCoeffs stands.

    **Last** (the usual order): slots are refreshed as they are, from level 0 up. What EvalMod reduces are coefficients
    of the message's polynomial: small for random slots, as large as the slots for a constant vector, whose sine error
    is then 6.6 / R^2 relative to its bound. A real value needs two modular reductions at full slots, one below.

    **First**: SlotsToCoeffs runs on the lowest ``stc_levels`` levels, so a value must be refreshed before it enters
    them (``floor``), and comes back at the top. EvalMod reduces the slots themselves: the error is 6.6 z^3 / R^2 in
    every slot z, whatever the message's shape, and its noise is not multiplied by sqrt(N). A real value needs one
    modular reduction, a pair two. EvalMod's last rescale (``eval_end`` of the chain) absorbs the factor R at no level.

    First pays where most refreshes are of single real values, above all at full slots, or of constant ones. Arithmetic
    between refreshes then runs ``stc_levels`` levels higher up, and a pair below full slots needs a second modular
    reduction, so circuits of few refreshes, or of short paired ones, are better off with it last.
    """

    stc_levels: int
    ratio_bits: float
    stc_first: bool = False

    def check(self, chain: Chain) -> None:
        """Refuse what the chain cannot carry."""
        if chain.eval_levels != EVAL_MOD_LEVELS or self.cts_levels(chain) < 1:
            raise ConfigError(f"bootstrapping needs {EVAL_MOD_LEVELS} levels of EvalMod and one of CoeffsToSlots")
        if not 1 <= self.stc_levels < chain.normal_levels:
            raise ConfigError(f"{self.stc_levels} levels of SlotsToCoeffs leave none of {chain.normal_levels} to use")
        if self.stc_first:
            found = math.log2(self.ratio(chain))
            if abs(found - self.ratio_bits) > RATIO_SLACK or found < -math.log2(WINDOW):
                raise ConfigError(
                    f"SlotsToCoeffs first: EvalMod ends at a message ratio of 2^{found:.1f}, the recipe says "
                    f"2^{self.ratio_bits:g}; choose the chain's eval_end as scale bits + ratio bits"
                )

    def cts_levels(self, chain: Chain) -> int:
        """Levels of CoeffsToSlots: what stands above EvalMod."""
        return chain.top - chain.normal_levels - chain.eval_levels

    def raised(self, chain: Chain, period: int) -> int:
        """The level ModRaise reaches: short periods need fewer matrices of CoeffsToSlots, so fewer primes."""
        return chain.normal_levels + chain.eval_levels + matrices_of(period, self.cts_levels(chain))

    def stc_start(self, chain: Chain, period: int) -> int:
        """The level SlotsToCoeffs starts at."""
        return matrices_of(period, self.stc_levels) if self.stc_first else chain.normal_levels

    def levels(self, chain: Chain) -> int:
        """Levels a bootstrap leaves for arithmetic, in either order."""
        return chain.normal_levels - self.stc_levels

    @property
    def floor(self) -> int:
        """The chain's level at which arithmetic ends: what lies below belongs to SlotsToCoeffs."""
        return self.stc_levels if self.stc_first else 0

    def ratio(self, chain: Chain) -> float:
        """SlotsToCoeffs first: the message ratio that makes EvalMod's result a value at the canonical scale."""
        return chain.eval_scales()[chain.normal_levels] / chain.scales()[chain.normal_levels]

    def shift(self, chain: Chain, period: int) -> int:
        """SlotsToCoeffs last: a value enters ModRaise at scale 2^shift Delta_0, its message ratio q0 over that.

        EvalMod's noise is R sqrt(2 period) delta in the slots, the sine's error at worst 6.6 / R^2 whatever the period,
        at best 6.6 / (2 period R^2) for random messages. Shorter periods therefore want a larger ratio: between
        period^(-1/6), the best for constant messages, and period^(-1/2), the best for random ones.
        """
        slots = chain.ring_dimension // 2
        wanted = self.ratio_bits + RATIO_SLOPE * math.log2(slots / period)
        return math.floor(math.log2(chain.base_modulus) - chain.scale_bits - wanted + 0.1)

    def coeffs_to_slots(self, chain: Chain, period: int) -> list[Steps]:
        """Matrices of CoeffsToSlots; below full slots, halves side by side where SlotsToCoeffs comes to join them."""
        slots = chain.ring_dimension // 2
        beside = period < slots and not self.stc_first
        count = matrices_of(period, self.cts_levels(chain))
        return coeffs_to_slots_steps(slots, period, count, INTERVAL, beside=beside)

    def slots_to_coeffs(self, chain: Chain, period: int, ratio: float) -> list[Steps]:
        """Matrices of SlotsToCoeffs, times a ratio."""
        slots = chain.ring_dimension // 2
        beside = period < slots and not self.stc_first
        count = matrices_of(period, self.stc_levels) if self.stc_first else self.stc_levels
        return slots_to_coeffs_steps(slots, period, count, ratio, beside=beside)

    def rotations(self, chain: Chain, period: int) -> dict[int, int]:
        """Every rotation a bootstrap of this period needs, with the highest level it is used at."""
        slots = chain.ring_dimension // 2
        out: dict[int, int] = {}

        def need(rotation: int, level: int) -> None:
            if rotation % slots:
                out[rotation % slots] = max(level, out.get(rotation % slots, 0))

        top, start = self.raised(chain, period), self.stc_start(chain, period)
        for group in trace_groups(slots, period):
            for rotation in group:
                need(rotation, top)
        for i, part in enumerate(self.coeffs_to_slots(chain, period)):
            for rotation in part.rotations:
                need(rotation, top - i)
        for i, part in enumerate(self.slots_to_coeffs(chain, period, 1.0)):
            for rotation in part.rotations:
                need(rotation, start - i)
        if period < slots and not self.stc_first:
            need(period, chain.normal_levels - 1)
        return out


def check_period(period: int, slots: int) -> int:
    """A period must be a power of two that divides the slots; a longer one is the full slots."""
    if period < 1 or period & (period - 1):
        raise ConfigError(f"bootstrap period must be a power of two, got {period}")
    return min(period, slots)


def matrices_of(period: int, most: int) -> int:
    """How many matrices a transform of this period is split into: as many as there are levels, or as need be."""
    return max(1, min(most, -(-(period.bit_length() - 1) // LAYERS)))


def growth(bound: float) -> int:
    """log2 of the power of two a value is divided by before it is refreshed, and multiplied by after."""
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError(f"bootstrap bound must be a positive number, got {bound}")
    return max(math.ceil(math.log2(bound) - 1e-9), 0)
