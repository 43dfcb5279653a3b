# SPDX-License-Identifier: Apache-2.0
"""How a chain is bootstrapped: levels of the stages, the message ratio, and the rotations needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots_matrices, shared_rotations, turn
from heatfhe.ckks.bootstrapping.eval_mod import EVAL_MOD_LEVELS, INTERVAL, REACH
from heatfhe.ckks.bootstrapping.matrices import SplitMatrix, slots_to_coeffs_matrices
from heatfhe.ckks.bootstrapping.mod_raise import trace_groups
from heatfhe.ckks.chain import Chain
from heatfhe.errors import ConfigError

LAYERS = 4  # butterfly layers per matrix, where the levels allow so few
MOST_BABIES = 64
RATIO_TOLERANCE = 0.5  # the chain's primes meet the wanted ratio this near, in bits


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSpec:
    """The recipe: levels of SlotsToCoeffs, which comes first, and log2 of the message ratio.

    SlotsToCoeffs runs on the lowest ``stc_levels`` levels, so a value must be refreshed before it enters them
    (``floor``), and comes back at the top. EvalMod reduces the slots themselves: the error is 6.6 z^3 / R^2 in every
    slot z, whatever the message's shape, and its noise is not multiplied by sqrt(N). A real value needs one modular
    reduction, a pair two. EvalMod's last rescale (``eval_end`` of the chain) absorbs the factor R at no level.
    The usual order, SlotsToCoeffs last, reduces coefficients, which are as large as the slots for a constant vector;
    docs/security-native.md compares them.

    ``cts_babies`` is how many baby steps a matrix of CoeffsToSlots takes, the giant steps following from its
    diagonals: fewer are slower and ask a client for fewer keys, each of full height. Its steps then all go to the
    right, so that matrices, periods and the trace share their keys. 0 is the split of sets without the word: up to 16
    baby steps, to both sides.
    """

    stc_levels: int
    ratio_bits: float
    cts_babies: int = 0

    def check(self, chain: Chain) -> None:
        """Refuse what the chain cannot carry."""
        if chain.eval_levels != EVAL_MOD_LEVELS or self.cts_levels(chain) < 1:
            raise ConfigError(f"bootstrapping needs {EVAL_MOD_LEVELS} levels of EvalMod and one of CoeffsToSlots")
        if not 1 <= self.stc_levels < chain.normal_levels:
            raise ConfigError(f"{self.stc_levels} levels of SlotsToCoeffs leave none of {chain.normal_levels} to use")
        b = self.cts_babies
        if type(b) is not int or (b and (not 2 <= b <= MOST_BABIES or b & (b - 1))):
            raise ConfigError(f"baby steps of CoeffsToSlots are a power of two from 2 to {MOST_BABIES}, got {b!r:.40}")
        found = math.log2(self.ratio(chain))
        if abs(found - self.ratio_bits) > RATIO_TOLERANCE or found < -math.log2(REACH):
            raise ConfigError(
                f"EvalMod ends at a message ratio of 2^{found:.1f}, the recipe says 2^{self.ratio_bits:g}; "
                "choose the chain's eval_end as scale bits + ratio bits"
            )

    def cts_levels(self, chain: Chain) -> int:
        """Levels of CoeffsToSlots: what stands above EvalMod."""
        return chain.top - chain.normal_levels - chain.eval_levels

    def raised(self, chain: Chain, period: int) -> int:
        """The level ModRaise reaches: short periods need fewer matrices of CoeffsToSlots, so fewer primes."""
        return chain.normal_levels + chain.eval_levels + matrices_of(period, self.cts_levels(chain))

    def stc_start(self, period: int) -> int:
        """The level SlotsToCoeffs starts at."""
        return matrices_of(period, self.stc_levels)

    def levels(self, chain: Chain) -> int:
        """Levels a bootstrap leaves for arithmetic."""
        return chain.normal_levels - self.stc_levels

    @property
    def floor(self) -> int:
        """The chain's level at which arithmetic ends: what lies below belongs to SlotsToCoeffs."""
        return self.stc_levels

    def ratio(self, chain: Chain) -> float:
        """The message ratio that makes EvalMod's result a value at the canonical scale."""
        return chain.eval_scales()[chain.normal_levels] / chain.scales()[chain.normal_levels]

    def coeffs_to_slots(self, chain: Chain, period: int) -> list[SplitMatrix]:
        """Matrices of CoeffsToSlots."""
        count = matrices_of(period, self.cts_levels(chain))
        return coeffs_to_slots_matrices(chain.ring_dimension // 2, period, count, INTERVAL, self.cts_babies)

    def slots_to_coeffs(self, chain: Chain, period: int) -> list[SplitMatrix]:
        """Matrices of SlotsToCoeffs, which leave the value as CoeffsToSlots takes it."""
        by = turn(period, matrices_of(period, self.cts_levels(chain))) if self.cts_babies else 0
        return slots_to_coeffs_matrices(chain.ring_dimension // 2, period, self.stc_start(period), by)

    def trace(self, chain: Chain, period: int) -> list[tuple[int, ...]]:
        """Rotations that a raised value is added to, step by step, for it to have the period."""
        slots = chain.ring_dimension // 2
        if not self.cts_babies:
            return trace_groups(slots, period)
        count = matrices_of(slots, self.cts_levels(chain))
        return trace_groups(slots, period, shared_rotations(slots, count, self.cts_babies))

    def rotations(self, chain: Chain, period: int) -> dict[int, int]:
        """Every rotation a bootstrap of this period needs, with the highest level it is used at."""
        slots = chain.ring_dimension // 2
        out: dict[int, int] = {}

        def need(rotation: int, level: int) -> None:
            if rotation % slots:
                out[rotation % slots] = max(level, out.get(rotation % slots, 0))

        top, start = self.raised(chain, period), self.stc_start(period)
        for group in self.trace(chain, period):
            for rotation in group:
                need(rotation, top)
        for i, part in enumerate(self.coeffs_to_slots(chain, period)):
            for rotation in part.rotations:
                need(rotation, top - i)
        for i, part in enumerate(self.slots_to_coeffs(chain, period)):
            for rotation in part.rotations:
                need(rotation, start - i)
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
    """log2 of the power of two a value is divided by before it is refreshed, and multiplied by after; 0 below one."""
    if not (math.isfinite(bound) and bound > 0):
        raise ConfigError(f"bootstrap bound must be a positive number, got {bound}")
    return max(math.ceil(math.log2(bound) - 1e-9), 0)
