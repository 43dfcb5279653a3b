# SPDX-License-Identifier: Apache-2.0
"""What known attacks on ring learning with errors cost, for ternary secrets: used by security_estimate.py.

Everything is a logarithm to base 2. Secrets are ternary, of weight h or uniform (h = 2n/3), errors have deviation 3.19;
one ring sample gives n samples and its secret's n rotations. An attack drops or guesses zeta of the n coordinates and
reduces the lattice of the rest. Sources, and what each function takes from them:

- Chen, thesis (2013): the root Hermite factor of BKZ with block size beta; small sizes as in the lattice-estimator.
- Alkim et al. (ePrint 2015/1092), Albrecht et al. (2017/815): the uSVP condition, beta against 2^(0.292 beta).
- MATZOV (2022), as the lattice-estimator prices it: the cost model of the security guidelines, ePrint 2024/463.
- Bai, Galbraith (2013/839): secret and error scaled to one size. Liu, Nguyen (2013): BDD after a cheaper reduction.
- Howgrave-Graham (2007): hybrid of lattice and meet-in-the-middle. Albrecht (2017/047), Cheon et al. (2019/1114),
  Espitau et al. (2020/515): the dual attack with part of a sparse secret guessed.
- Ogilvie (2026/279): one reduced basis serves all n rotations of a sparse secret. Counted here in every hybrid attack.
- May (2021/216): meet-in-the-middle with representations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SIGMA = 3.19
SMALL = ((2, 1.02190), (5, 1.01862), (10, 1.01616), (15, 1.01485), (20, 1.01420), (28, 1.01331), (40, 1.01295))
Real = NDArray[np.float64]
Model = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Instance:
    """Ring-LWE: dimension, log2 of the modulus, weight of the ternary secret (0: uniform ternary)."""

    n: int
    log_q: float
    weight: int = 0
    sigma: float = SIGMA

    @property
    def h(self) -> float:
        return self.weight or 2 * self.n / 3


# -- lattice reduction ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def log_delta(beta: int) -> float:
    """log2 of the root Hermite factor of BKZ-beta."""
    if beta <= 40:
        return float(np.interp(beta, [b for b, _ in SMALL], [math.log2(d) for _, d in SMALL]))
    return math.log2((math.pi * beta) ** (1 / beta) * beta / (2 * math.pi * math.e)) / (2 * (beta - 1))


def core(beta: float, d: float) -> float:
    """One call of the best sieve, polynomial factors left out: a floor, not a price."""
    return 0.292 * beta


def sieve(beta: float, d: float) -> float:
    """The model of the 2018 homomorphic encryption standard: 8 d calls of 2^(0.292 beta + 16.4) each."""
    return 0.292 * beta + 16.4 + math.log2(8 * d)


def matzov(beta: float, d: float) -> float:
    """MATZOV's list decoding, dimensions for free, progressive BKZ: the model of ePrint 2024/463."""
    free = max(0.0, beta * math.log(4 / 3) / math.log(beta / (2 * math.pi * math.e))) if beta > 40 else 0.0
    return 0.296135 * (beta - free) + 20.387886 + 2 * math.log2(5.46) + math.log2(max(d - beta, 1))


MODELS: dict[str, Model] = {"matzov": matzov, "sieve": sieve, "core": core}


def add(*logs: float) -> float:
    """log2 of a sum."""
    top = max(logs)
    return top + math.log2(sum(2.0 ** max(x - top, -1000.0) for x in logs))


def dimension(kept: int, log_room: float, beta: int, most: float) -> float:
    """The dimension in which the reduced lattice serves an attack best: sqrt(kept log room / log delta)."""
    return min(max(math.sqrt(kept * log_room / log_delta(beta)), kept + 1.0), kept + most)


def last_vectors(x: Instance, kept: int, weight: float, beta: int) -> tuple[float, Real]:
    """Dimension, and log2 of the last Gram-Schmidt norms over the error's deviation, last first (geometric series)."""
    spread = math.log2(x.sigma / math.sqrt(weight / kept))
    d = dimension(kept, x.log_q - spread, beta, x.n)
    mean = x.log_q - kept * (x.log_q - spread) / d - math.log2(x.sigma)
    i = np.arange(min(int(d), 6000))
    return d, mean - (d - 1 - 2 * i) * log_delta(beta)


# -- attacks without guessing -----------------------------------------------------------------------------------------


def least_beta(enough: Callable[[int], bool]) -> int:
    """The smallest block size that is enough."""
    lo, hi = 2, 4000
    while lo < hi:
        mid = (lo + hi) // 2
        lo, hi = (lo, mid) if enough(mid) else (mid + 1, hi)
    return lo


def usvp(x: Instance, model: Model, kept: int = 0, weight: float = 0.0) -> float:
    """The secret is the unexpectedly short vector: sqrt(beta) sigma below the projected length of BKZ's block."""
    kept, weight = kept or x.n, weight or x.h

    def enough(beta: int) -> bool:
        norms = last_vectors(x, kept, weight, beta)[1]
        return beta > len(norms) or 0.5 * math.log2(beta) <= norms[beta - 1]

    beta = least_beta(enough)
    return model(beta, last_vectors(x, kept, weight, beta)[0])


def bdd(x: Instance, model: Model) -> float:
    """A cheaper reduction, then one search in a larger block at the end."""
    best = math.inf
    for beta in range(40, 1500, 4):
        d, norms = last_vectors(x, x.n, x.h, beta)
        good = np.flatnonzero(0.5 * np.log2(np.arange(1, len(norms) + 1)) <= norms)
        if good.size:
            eta = max(int(good[0]) + 1, 2)
            best = min(best, add(model(beta, d), model(eta, eta)))
    return best


# -- guessing a part of a sparse secret -------------------------------------------------------------------------------


def log_choose(n: int, k: int) -> float:
    """log2 of a binomial coefficient."""
    if not 0 <= k <= n:
        return -math.inf
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def log_guesses(zeta: int, w: int) -> float:
    """Ternary vectors of length zeta and weight at most w."""
    return add(*(log_choose(zeta, i) + i for i in range(min(w, zeta) + 1)))


def log_chance(x: Instance, zeta: int, w: int) -> float:
    """That at most w of the h non-zero places fall among zeta."""
    terms = [log_choose(zeta, i) + log_choose(x.n - zeta, x.weight - i) for i in range(min(w, x.weight) + 1)]
    return min(0.0, add(*terms) - log_choose(x.n, x.weight)) if max(terms) > -math.inf else -math.inf


def any_rotation(log_p: float, n: int) -> float:
    """That one of n rotations does, taken as independent: 1 - (1 - p)^n."""
    if log_p > -1e-9:
        return 0.0
    return math.log2(-math.expm1(n * math.log1p(-(2.0**log_p)))) if log_p > -900 else log_p + math.log2(n)


def erf(x: Real) -> Real:
    """Abramowitz and Stegun 7.1.26, error below 1.5e-7."""
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(1 - series * np.exp(-x * x))


def log_babai(norms: Real, *, meet: bool) -> float:
    """That the nearest plane finds an error of deviation 1, and with ``meet`` that two halves agree on every plane.

    A plane of width b: erf(b / sqrt 8) for the first; the second needs a uniform offset plus the error to stay inside,
    erf(b / sqrt 2) - sqrt(2 / pi) (1 - exp(-b^2 / 2)) / b.
    """
    b = np.exp2(np.clip(norms, -20.0, 40.0))
    chance = erf(b / math.sqrt(8))
    if meet:
        chance = erf(b / math.sqrt(2)) - math.sqrt(2 / math.pi) * -np.expm1(-b * b / 2) / b
    return float(np.log2(np.maximum(chance, 1e-12)).sum())


def hybrid(x: Instance, model: Model, *, meet: bool, ring: bool) -> float:
    """Guess weight w on zeta places, nearest plane on the rest; d^2 for each guess, a square root of them with meet."""
    extra = math.log2(x.n) if ring else 0.0

    def cost(kept: int, beta: int, w: int) -> float:
        zeta = x.n - kept
        d, norms = last_vectors(x, kept, max(x.weight - w, 1), beta)
        chance = log_chance(x, zeta, w)
        chance = (any_rotation(chance, x.n) if ring else chance) + log_babai(norms, meet=meet)
        guesses = (log_guesses(zeta, w) + extra) * (0.5 if meet else 1.0)
        return add(model(beta, d), guesses + 2 * math.log2(d)) - chance

    return search(x, cost)


def dual_vectors(x: Instance, kept: int, weight: float, beta: int, log_candidates: float) -> tuple[float, float]:
    """Dimension, and log2 of the short dual vectors that tell one of so many candidates.

    A sieve in the first block gives vectors longer than BKZ's by sqrt(4/3). Each keeps an advantage of
    exp(-2 pi^2 tau^2 / q^2); ln(candidates) / advantage^2 of them are enough.
    """
    spread = math.log2(x.sigma / math.sqrt(weight / kept))
    d = dimension(kept, x.log_q - spread, beta, x.n)
    length = d * log_delta(beta) + kept * (x.log_q - spread) / d + 0.5 * math.log2(4 / 3)
    tau = min(length + math.log2(x.sigma) - x.log_q, 20.0)
    return d, math.log2(log_candidates * math.log(2) + 1) + 4 * math.pi**2 * 4.0**tau / math.log(2)


def dual(x: Instance, model: Model) -> float:
    """Tell samples from uniform ones by short dual vectors; a run gives 2^(0.2075 beta) of them."""
    best = math.inf
    for beta in range(40, 1500, 2):
        d, vectors = dual_vectors(x, x.n, x.h, beta, 1.0)
        best = min(best, add(model(beta, d) + max(0.0, vectors - 0.2075 * beta), vectors))
    return best


def dual_hybrid(x: Instance, model: Model, *, meet: bool, ring: bool) -> float:
    """Guess weight w on zeta places, test each guess with short dual vectors of the rest.

    ``meet`` takes the square root of the guesses for granted, which no published attack reaches: a floor.
    """
    extra = math.log2(x.n) if ring else 0.0

    def cost(kept: int, beta: int, w: int) -> float:
        zeta = x.n - kept
        guesses = log_guesses(zeta, w) + extra
        d, vectors = dual_vectors(x, kept, max(x.weight - w, 1), beta, guesses)
        runs = max(0.0, vectors - 0.2075 * beta)
        chance = log_chance(x, zeta, w)
        chance = any_rotation(chance, x.n) if ring else chance
        return add(model(beta, d) + runs, vectors + guesses * (0.5 if meet else 1.0)) - chance

    return search(x, cost)


def search(x: Instance, cost: Callable[[int, int, int], float]) -> float:
    """The least cost over kept places, block size and guessed weight: a coarse grid, then steps that shrink."""
    weights = sorted({*range(0, min(x.weight, 12)), *range(12, x.weight + 1, max(1, x.weight // 16))})
    fractions = [2.0**-k for k in (0, 0.05, 0.1, 0.2, 0.35, 0.6, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6)]
    kept = sorted({max(64, int(x.n * f)) for f in fractions})
    grid = [(cost(k, b, w), k, b, w) for k in kept for b in range(40, 700, 60) for w in weights]
    best = math.inf
    for start, k, b, w in sorted(grid)[:6]:
        now, step = start, (k // 4, 32, max(2, x.weight // 12))
        while step[0] > max(8, x.n // 4000) or step[1] > 1:
            moves = [
                (max(64, min(x.n, k + i * step[0])), max(30, b + j * step[1]), max(0, min(x.weight, w + o * step[2])))
                for i in (-1, 0, 1) for j in (-1, 0, 1) for o in (-1, 0, 1)
            ]  # fmt: skip
            found, move = min((cost(*m), m) for m in moves)
            if found < now - 1e-9:
                now, (k, b, w) = found, move
            else:
                step = (max(step[0] // 2, 1), max(step[1] // 2, 1), max(step[2] // 2, 1))
                if step == (1, 1, 1):
                    break
        best = min(best, now)
    return best


def drop_and_solve(x: Instance, model: Model) -> float:
    """Hope that all non-zero places are among those kept, then uSVP."""
    kept = {max(64, int(x.n * 2.0 ** (-k / 8))) for k in range(48)}
    return min(usvp(x, model, kept=k, weight=x.weight) - log_chance(x, x.n - k, 0) for k in kept)


def meet_in_the_middle(x: Instance) -> float:
    """No lattice: Odlyzko's square root of the keys, or May's representations in trees of two to four levels.

    A level splits weight a into two of a / 2 + e; a list holds all vectors of that weight over the number of
    representations. Only the lists are counted, not the work of merging them: a floor.
    """
    n = x.n

    def lists(weight: int, depth: int) -> float:
        best = math.inf
        for e in range(0, 17, 2):
            half = -(-weight // 2) + e
            ways = log_choose(weight, weight // 2) + log_choose(n - weight, e) + e
            vectors = log_choose(n, half) + half
            below = vectors / 2 if depth == 1 else lists(half, depth - 1)
            best = min(best, max(vectors - ways, below))
        return best

    keys = log_choose(n, x.weight) + x.weight
    return min(keys / 2, *(lists(x.weight, depth) for depth in (1, 2, 3)))
