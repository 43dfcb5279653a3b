# SPDX-License-Identifier: Apache-2.0
"""Modulus chains of 32-bit primes with rational rescaling: which primes each level owns, and its canonical scale.

Two ordered lists, main primes near 2^30 and terminal primes near 2^25. Level l owns the first mu_l mains and the first
tau_l terminals; going down one level multiplies by the primes that enter and divides by those that leave, so a level
costs exactly the bits precision needs while words stay full. Stored order: terminals reversed, mains, special primes;
a level is then one contiguous run. (BitPacker, ASPLOS 2024; Grafting, ePrint 2024/1014; Cheddar, ePrint 2024/1241.)

Above the normal levels lie those of EvalMod (two fresh mains each) and of CoeffsToSlots (two mains, or two spare
terminals, each). Canonical scales of normal levels are built from level 0 up, where deviations halve; those of EvalMod
from the top down, each pair of primes chosen to return to the wanted scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, islice, pairwise

import numpy as np

from heatfhe.ckks.primes import WORD_LIMIT, is_prime, log2_product, primes_below, primes_near
from heatfhe.errors import ConfigError

MAIN_BITS = 30
TERMINAL_BITS = 25
BASE = (0, 2)  # level 0: two terminals, 50 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpec:
    """The few integers a chain is made from."""

    ring_dimension: int
    scale_bits: int
    levels: int  # normal levels, those of SlotsToCoeffs included
    special: int  # number of special primes, the width of a key-switching digit
    eval_levels: int = 0
    eval_bits: int = 54
    eval_gain: int = 0  # bits by which EvalMod's first square is kept finer: its error is amplified most
    eval_end: int = 0  # log2 of the scale EvalMod's last square leaves; 0 for eval_bits
    raise_bits: tuple[int, ...] = ()  # CoeffsToSlots levels of two mains, lowest first
    spare_pairs: int = 0  # CoeffsToSlots levels of two spare terminals, above those
    special_bits: float = 31.0  # special primes lie just below 2^this; a few bits above the widest digit are enough

    def __post_init__(self) -> None:
        n = self.ring_dimension
        if n < 16 or n & (n - 1) or n > 1 << 17:
            raise ConfigError(f"ring dimension must be a power of two from 16 to 131072, got {n}")
        if not 25.0 <= self.special_bits <= 31.0:
            raise ConfigError(f"special primes have 25 to 31 bits, got {self.special_bits}")
        if not 20 <= self.scale_bits <= 50 or self.levels < 1 or self.special < 1:
            raise ConfigError(
                f"a chain needs a scale of 20 to 50 bits, one level and one special prime at least; got "
                f"{self.scale_bits} bits, {self.levels} levels, {self.special} special primes"
            )


def states(scale_bits: int, count: int) -> list[tuple[int, int]]:
    """(mains, terminals) of levels 0..count: each level multiplies the modulus by scale_bits bits."""
    out = [BASE]
    for _ in range(count):
        mu, tau = out[-1]
        for new_tau in range(64):
            rest = scale_bits - TERMINAL_BITS * (new_tau - tau)
            if rest % MAIN_BITS == 0 and mu + rest // MAIN_BITS >= 0:
                out.append((mu + rest // MAIN_BITS, new_tau))
                break
        else:
            raise ConfigError(
                f"no chain of {MAIN_BITS}- and {TERMINAL_BITS}-bit primes makes levels of {scale_bits} bits"
            )
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """All primes of a parameter set, the primes of every level, and the canonical scales."""

    ring_dimension: int
    terminals: tuple[int, ...]
    mains: tuple[int, ...]
    special: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]  # (mains, terminals) of every level
    normal_levels: int
    eval_levels: int
    scale_bits: int
    eval_bits: int

    def __post_init__(self) -> None:
        moduli = self.moduli
        stride = 2 * self.ring_dimension
        if len(set(moduli)) != len(moduli):
            raise ConfigError("a chain's primes must be distinct")
        for p in moduli:
            if not (p < WORD_LIMIT and p % stride == 1 and is_prime(p)):
                raise ConfigError(f"{p} is not a prime below 2^31 that is 1 mod {stride}")
        for mu, tau in self.spans:
            if not (0 <= mu <= len(self.mains) and 0 <= tau <= len(self.terminals)):
                raise ConfigError(f"level of {mu} mains and {tau} terminals exceeds the chain")
        for level, digits in enumerate(map(self.digits, range(self.top + 1))):
            widest = max(log2_product([moduli[i] for i in d]) for d in digits)
            if widest > self.log_p + 1e-9:
                raise ConfigError(
                    f"level {level}: a key-switching digit of {widest:.1f} bits exceeds the special modulus of "
                    f"{self.log_p:.1f} bits; use more special primes"
                )

    @property
    def moduli(self) -> tuple[int, ...]:
        """Every prime, in stored order."""
        return (*reversed(self.terminals), *self.mains, *self.special)

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self.spans) - 1

    @property
    def log_p(self) -> float:
        return log2_product(self.special)

    @property
    def log_q(self) -> float:
        return log2_product([*self.terminals, *self.mains])

    @property
    def log_qp(self) -> float:
        """Over the union of all primes under which any key is published."""
        return self.log_q + self.log_p

    @property
    def base_modulus(self) -> int:
        """q0, the modulus of level 0."""
        return math.prod(self.moduli[i] for i in self.rows(0))

    def rows(self, level: int) -> range:
        """Prime indices of a level."""
        mu, tau = self.spans[level]
        spare = len(self.terminals)
        return range(spare - tau, spare + mu)

    @property
    def special_rows(self) -> range:
        first = len(self.terminals) + len(self.mains)
        return range(first, first + len(self.special))

    def key_rows(self, cap: int) -> list[int]:
        """Prime indices of a key that serves every level up to cap: their union, then the special primes."""
        mu = max(self.spans[level][0] for level in range(cap + 1))
        return [*range(len(self.terminals) + mu), *self.special_rows]

    def digits(self, level: int) -> list[list[int]]:
        """Prime indices of each non-empty digit of a level; digits are counted on padded places."""
        return [list(rows) for _, rows in groupby(self.rows(level), lambda row: row // len(self.special))]

    def key_digits(self, cap: int) -> int:
        """Number of digits of a key that serves levels up to cap."""
        width = len(self.special)
        return -(-(len(self.key_rows(cap)) - width) // width)

    def ratio(self, source: int, target: int) -> Fraction:
        """D/E between two levels: what the scale is divided by, exactly."""
        now, below = set(self.rows(source)), set(self.rows(target))
        left = math.prod(self.moduli[i] for i in now - below)
        return Fraction(left, math.prod(self.moduli[i] for i in below - now))

    def divisor(self, level: int) -> float:
        """What the rescale from this level divides the scale by."""
        return float(self.ratio(level, level - 1))

    def scales(self) -> tuple[float, ...]:
        """Canonical scale of every normal level: Delta_l = sqrt(Delta_(l-1) * D_l / E_l), Delta_0 = 2^scale_bits."""
        out = [2.0**self.scale_bits]
        for level in range(1, self.normal_levels + 1):
            out.append(math.sqrt(out[-1] * self.divisor(level)))
        return tuple(out)

    def eval_scales(self) -> dict[int, float]:
        """Scale at each level of EvalMod, its last product's result included, from an exact power of two at its top."""
        level = self.normal_levels + self.eval_levels
        out = {level: 2.0**self.eval_bits}
        while level > self.normal_levels:
            out[level - 1] = out[level] ** 2 / self.divisor(level)
            level -= 1
        return out


def _terminals(n: int, count: int) -> list[int]:
    """The primes nearest 2^25, ordered so that every prefix product stays near 2^(25 k)."""
    pool = list(islice(primes_near(2.0**TERMINAL_BITS, n), count))
    out: list[int] = []
    drift = 0.0
    while pool:
        best = min(pool, key=lambda p: abs(drift + math.log2(p) - TERMINAL_BITS))
        if not out:
            best = min(pool)
        pool.remove(best)
        out.append(best)
        drift += math.log2(best) - TERMINAL_BITS
    return out


def _ideal_mains(levels: Sequence[tuple[int, int]], terminals: Sequence[int], scale_bits: int) -> np.ndarray:
    """log2 of each main prime that makes every level exact, by least squares with a ridge towards 2^30."""
    count = max(mu for mu, _ in levels)
    logs = [math.log2(t) for t in terminals]
    matrix, target = [], []
    for (m0, t0), (m1, t1) in pairwise(levels):
        row = np.zeros(count)
        row[:m1] += 1
        row[:m0] -= 1
        matrix.append(row)
        target.append(scale_bits - math.fsum(logs[:t1]) + math.fsum(logs[:t0]) - MAIN_BITS * row.sum())
    ridge = 1e-3
    a = np.vstack([np.array(matrix), ridge * np.eye(count)])
    solution: np.ndarray = np.linalg.lstsq(a, np.concatenate([target, np.zeros(count)]), rcond=None)[0]
    return solution + MAIN_BITS


def _nearest(log: float, n: int, used: set[int]) -> int:
    for p in primes_near(2.0**log, n):
        if p not in used:
            return p
    raise ConfigError(f"no unused prime near 2^{log:.2f} at ring dimension {n}")


def _normal_mains(levels: Sequence[tuple[int, int]], terminals: Sequence[int], scale_bits: int, n: int) -> list[int]:
    """Mains walked level by level: nearest to the ideal, the last new one of a level closes that level's equation."""
    ideal = _ideal_mains(levels, terminals, scale_bits)
    logs = [math.log2(t) for t in terminals]
    mains: list[int] = []
    used = set(terminals)
    for (m0, t0), (m1, t1) in pairwise(levels):
        while len(mains) < m1:
            log = float(ideal[len(mains)])
            if len(mains) == m1 - 1:
                have = math.fsum(math.log2(p) for p in mains[:m1]) - math.fsum(math.log2(p) for p in mains[:m0])
                log = scale_bits - have - math.fsum(logs[:t1]) + math.fsum(logs[:t0])
                if m1 <= m0 or not MAIN_BITS - 0.9 <= log <= 30.99:
                    log = float(ideal[len(mains)])
            mains.append(_nearest(log, n, used))
            used.add(mains[-1])
    return mains


def _eval_pairs(spec: ChainSpec, used: set[int]) -> list[tuple[int, int]]:
    """Pairs of primes for EvalMod, highest level first: 2 * scale - log2(pair) returns to the wanted scale."""
    scale, pairs = float(spec.eval_bits), []
    for i in range(spec.eval_levels):
        end = spec.eval_end if spec.eval_end and i == spec.eval_levels - 1 else spec.eval_bits
        want = 2 * scale - end - (spec.eval_gain if i == 0 else 0)
        near = primes_near(2.0 ** (want / 2), spec.ring_dimension)
        pool = list(islice((p for p in near if p not in used), 24))
        options = [(abs(math.log2(p) + math.log2(q) - want), p, q) for i, p in enumerate(pool) for q in pool[i + 1 :]]
        _, p, q = min(options)
        used.update((p, q))
        scale = 2 * scale - math.log2(p) - math.log2(q)
        pairs.append((p, q))
    return pairs


def make_chain(spec: ChainSpec) -> Chain:
    """Choose every prime of a chain. Deterministic: the same spec gives the same chain on every machine."""
    n = spec.ring_dimension
    levels = states(spec.scale_bits, spec.levels)
    if spec.eval_levels and levels[-1][0] != max(mu for mu, _ in levels):
        good = [
            i for i in range(1, spec.levels + 8) if (s := states(spec.scale_bits, i))[-1][0] == max(m for m, _ in s)
        ]
        raise ConfigError(
            f"{spec.levels} normal levels of {spec.scale_bits} bits end below the largest number of mains, so the "
            f"levels of EvalMod cannot stand on them; use one of {good}"
        )
    top_mu, top_tau = levels[-1]
    count = max(tau for _, tau in levels)
    if spec.spare_pairs * 2 > count - top_tau:
        count = top_tau + 2 * spec.spare_pairs
    terminals = _terminals(n, count)
    mains = _normal_mains(levels, terminals, spec.scale_bits, n)
    used = {*terminals, *mains}
    special = _take(primes_below(int(2.0**spec.special_bits), n), spec.special, used)
    for pair in reversed(_eval_pairs(spec, used)):
        mains += pair
    spans = [*levels, *((top_mu + 2 * i, top_tau) for i in range(1, spec.eval_levels + 1))]
    for bits in spec.raise_bits:
        mains += _take(primes_near(2.0 ** (bits / 2), n), 2, used)
        spans.append((len(mains), top_tau))
    spans += [(len(mains), top_tau + 2 * i) for i in range(1, spec.spare_pairs + 1)]
    return Chain(
        ring_dimension=n, terminals=tuple(terminals), mains=tuple(mains), special=tuple(special),
        spans=tuple(spans), normal_levels=spec.levels, eval_levels=spec.eval_levels, scale_bits=spec.scale_bits,
        eval_bits=spec.eval_bits,
    )  # fmt: skip


def _take(primes: Iterable[int], count: int, used: set[int]) -> list[int]:
    """The next unused primes; marks them used."""
    out = list(islice((p for p in primes if p not in used), count))
    if len(out) < count:
        raise ConfigError("too few primes of this size; use a smaller ring or fewer levels")
    used.update(out)
    return out
