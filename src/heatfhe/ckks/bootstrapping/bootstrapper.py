# SPDX-License-Identifier: Apache-2.0
"""The bootstrap as a whole: which rotations it needs, how its message ratio is chosen, and the five stages in order."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heatfhe.ckks.bootstrapping.coeffs_to_slots import coeffs_to_slots, coeffs_to_slots_steps, encode_coeffs_to_slots
from heatfhe.ckks.bootstrapping.eval_mod import EVAL_MOD_LEVELS, INTERVAL, eval_mod
from heatfhe.ckks.bootstrapping.matrices import Steps
from heatfhe.ckks.bootstrapping.mod_raise import mod_raise, trace, trace_rotations
from heatfhe.ckks.bootstrapping.scale_down import scale_down
from heatfhe.ckks.bootstrapping.slots_to_coeffs import encode_slots_to_coeffs, slots_to_coeffs, slots_to_coeffs_steps
from heatfhe.ckks.chain import Chain
from heatfhe.ckks.evaluator import Evaluator
from heatfhe.ckks.linear import EncodedMap
from heatfhe.ckks.ring import Ciphertext
from heatfhe.errors import ConfigError

RATIO_SLOPE = 0.28  # log2 of the message ratio per halving of the period


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSpec:
    """How a chain is bootstrapped: levels of SlotsToCoeffs, and log2 of the message ratio at full slots."""

    stc_levels: int
    ratio_bits: float

    def check(self, chain: Chain) -> None:
        """Refuse what the chain cannot carry."""
        if chain.eval_levels != EVAL_MOD_LEVELS or self.cts_levels(chain) < 1:
            raise ConfigError(f"bootstrapping needs {EVAL_MOD_LEVELS} levels of EvalMod and one of CoeffsToSlots")
        if not 1 <= self.stc_levels < chain.normal_levels:
            raise ConfigError(f"{self.stc_levels} levels of SlotsToCoeffs leave none of {chain.normal_levels} to use")

    def cts_levels(self, chain: Chain) -> int:
        """Levels of CoeffsToSlots: what stands above EvalMod."""
        return chain.top - chain.normal_levels - chain.eval_levels

    def levels(self, chain: Chain) -> int:
        """Levels a bootstrap leaves."""
        return chain.normal_levels - self.stc_levels

    def shift(self, chain: Chain, period: int) -> int:
        """u: a value enters ModRaise at scale 2^u Delta_0, its message ratio is q0 / (2^u Delta_0).

        EvalMod's noise is R sqrt(2 period) delta in the slots, the sine's error at worst 6.6 / R^2 whatever the period,
        at best 6.6 / (2 period R^2) for random messages. Shorter periods therefore want a larger ratio: between
        period^(-1/6), the best for constant messages, and period^(-1/2), the best for random ones.
        """
        slots = chain.ring_dimension // 2
        wanted = self.ratio_bits + RATIO_SLOPE * math.log2(slots / period)
        return math.floor(math.log2(chain.base_modulus) - chain.scale_bits - wanted + 0.1)

    def rotations(self, chain: Chain, period: int) -> dict[int, int]:
        """Every rotation a bootstrap of this period needs, with the highest level it is used at."""
        slots = chain.ring_dimension // 2
        out: dict[int, int] = {}

        def need(rotation: int, level: int) -> None:
            if rotation % slots:
                out[rotation % slots] = max(level, out.get(rotation % slots, 0))

        for rotation in trace_rotations(slots, period):
            need(rotation, chain.top)
        for i, part in enumerate(coeffs_to_slots_steps(slots, period, self.cts_levels(chain), INTERVAL)):
            for rotation in part.rotations:
                need(rotation, chain.top - i)
        for i, part in enumerate(slots_to_coeffs_steps(slots, period, self.stc_levels, 1.0)):
            for rotation in part.rotations:
                need(rotation, chain.normal_levels - i)
        if period < slots:
            need(period, chain.normal_levels - 1)
        return out


def check_period(period: int, slots: int) -> int:
    """A period must be a power of two that divides the slots; a longer one is the full slots."""
    if period < 1 or period & (period - 1):
        raise ConfigError(f"bootstrap period must be a power of two, got {period}")
    return min(period, slots)


class Bootstrapper:
    """Bootstraps ciphertexts of one evaluator; keeps the matrices of each period it has met."""

    def __init__(self, evaluator: Evaluator, spec: BootstrapSpec) -> None:
        spec.check(evaluator.ring.chain)
        self._e, self._spec = evaluator, spec
        self._cts: dict[int, list[EncodedMap]] = {}
        self._stc: dict[tuple[int, int], list[EncodedMap]] = {}

    @property
    def memory(self) -> int:
        """Memory of the encoded matrices."""
        return sum(m.memory for maps in (*self._cts.values(), *self._stc.values()) for m in maps)

    def _slots_to_coeffs(self, period: int, shift: int) -> list[EncodedMap]:
        chain = self._e.ring.chain
        if (period, shift) not in self._stc:
            ratio = chain.base_modulus / (self._e.ring.scales[0] * 2.0**shift)
            parts = slots_to_coeffs_steps(chain.ring_dimension // 2, period, self._spec.stc_levels, ratio)
            self._stc[period, shift] = encode_slots_to_coeffs(self._e.ring, parts)
        return self._stc[period, shift]

    def _coeffs_to_slots(self, period: int) -> list[EncodedMap]:
        chain = self._e.ring.chain
        if period not in self._cts:
            count = self._spec.cts_levels(chain)
            parts: list[Steps] = coeffs_to_slots_steps(chain.ring_dimension // 2, period, count, INTERVAL)
            self._cts[period] = encode_coeffs_to_slots(self._e.ring, parts)
        return self._cts[period]

    def bootstrap(self, a: Ciphertext, *, period: int, bound: float = 1.0, halve: bool = False) -> Ciphertext:
        """The same value (or half of it) with fresh levels.

        Domain  slots of period ``period`` (a power of two), of magnitude at most ``bound``.
        Bound   relative to ``bound``: the sine, 6.6 / R^2 for any message, 25.5 s^3 / (2 period R^2) for random ones of
                rms s; EvalMod, R sqrt(period) delta with delta about 2^-42.8 N / 2^11 at 58 bits.
        Depth   what the chain holds above ``levels``; none of the value's own.
        Source  Cheon et al., EUROCRYPT 2018; ePrint 2020/1203 and 2022/024; the figures, docs/security-native.md.
        """
        chain = self._e.ring.chain
        slots = chain.ring_dimension // 2
        period = check_period(period, slots)
        if not (math.isfinite(bound) and bound > 0):
            raise ConfigError(f"bootstrap bound must be a positive number, got {bound}")
        shift = self._spec.shift(chain, period)
        if a.level == 0:
            shift = max(shift, 0)
        grow = max(math.ceil(math.log2(bound) - 1e-9), 0)
        low, reached = scale_down(self._e, a, shift - grow)
        raised = trace(self._e, mod_raise(self._e, low), period)
        halves = coeffs_to_slots(self._e, raised, self._coeffs_to_slots(period), full=period == slots)
        parts = [eval_mod(self._e, half) for half in halves]
        out = slots_to_coeffs(self._e, parts, self._slots_to_coeffs(period, shift + halve), period)
        back = shift - reached  # the matrices undo shift, the value was shifted by reached
        return self._e.times_integer(out, 1 << back) if back else out

    def bootstrap_real(self, a: Ciphertext, *, period: int, bound: float = 1.0) -> Ciphertext:
        """A real value: half of it, plus the conjugate, so that the noise of the imaginary part is left behind."""
        half = self.bootstrap(a, period=period, bound=bound, halve=True)
        return self._e.add(half, self._e.conjugate(half))

    def bootstrap_pair(
        self, a: Ciphertext, b: Ciphertext, *, period: int, bound: float = 1.0
    ) -> tuple[Ciphertext, Ciphertext]:
        """Two real values in one complex bootstrap: a + i b, halved, then split by one conjugation."""
        e = self._e
        level = min(a.level, b.level)
        joined = e.add(e.drop(a, level), e.times_i(e.drop(b, level)))
        half = self.bootstrap(joined, period=period, bound=bound, halve=True)
        conjugate = e.conjugate(half)
        return e.add(half, conjugate), e.times_i(e.sub(conjugate, half))
