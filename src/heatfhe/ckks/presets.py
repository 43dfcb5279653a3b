# SPDX-License-Identifier: Apache-2.0
"""Parameter sets of the native engine, by name, and the way from Params to the chain they stand for.

| set | levels left | scale | log2 QP | bits: standard deviation, promised | security |
| native-16-r40 | 13 | 40 | 1745.6 | 22, 17 | 128 bits, classical |
| native-16-r40-lean | the same with fewer and smaller keys: 8 baby steps in CoeffsToSlots, keys by level |
| native-16-r35 | 16 | 35 | 1745.1 | 19, 15 | 128 bits, classical |
| insecure-native-11, -12, -13 | 9 | 35 | 1270 | 24, 18 | none: tests, demo |
| insecure-native-12-r40 | 10 | 40 | 1386 | 26, 20 | none: demo; a scale that carries an argmax over 1024 words |
| insecure-native-tiny | 3 | 35 | 998 | 24, 18 | none: unit tests |

Every set runs SlotsToCoeffs first: its noise does not depend on a message's shape, so the figures hold for constant
vectors, one-hot rows and single numbers as for random ones. Noise is relative to the bound a bootstrap is told,
or to one if that is larger (small values are refreshed as they are); what
is promised of the worst slot leaves two bits, and three for the imaginary part a refreshed value may carry: at N = 2^11
one refresh in 60 passes four and one in a million three, since noise in a slot goes with the secret's value there and
has Laplace's tail (docs/security-native.md).

Failure of a bootstrap (|I| > 15 for a secret of weight 32): 2^-105 at N = 2^16, less below.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from heatfhe.ckks.archive import Archive
from heatfhe.ckks.bootstrapping import BootstrapSpec
from heatfhe.ckks.bootstrapping.eval_mod import COSINE, DOUBLE_ANGLES, INTERVAL
from heatfhe.ckks.bootstrapping.spec import MOST_BABIES
from heatfhe.ckks.chain import Chain, ChainSpec, make_chain
from heatfhe.ckks.kernels import Kernels
from heatfhe.ckks.keys import sparse_modulus_bits
from heatfhe.ckks.params import Params
from heatfhe.errors import ConfigError
from heatfhe.files import canonical_json

ENGINE = "native"
MOST_LEVELS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NativeSet:
    """What the native engine and its keyring build from: a parameter set, its chain, its bootstrap."""

    params: Params
    chain: Chain
    bootstrap: BootstrapSpec

    @property
    def floor(self) -> int:
        """The chain's level that Params calls 0: SlotsToCoeffs keeps those below."""
        return self.bootstrap.floor

    @property
    def top(self) -> int:
        """The chain's level that a bootstrap returns."""
        return self.floor + self.params.levels

    @property
    def hash(self) -> bytes:
        """SHA-256 of what keys and ciphertexts are made of: ring, every prime, every level, the secret's weight.

        Nothing else is in it. Noise, promise and the bootstrap's constants may be corrected and saved keys still load.
        """
        return self._hashed(2, scale_bits=self.chain.scale_bits, secret_weight=self.params.secret_weight)

    @property
    def older(self) -> dict[int, bytes]:
        """The hash in blobs of each earlier format version. That of version 1 covered the whole of Params."""
        text = {  # stc_first and ratio_slope chose between two orders; every key made so far is of the first
            "params": self.params.digest,
            "stc_levels": self.bootstrap.stc_levels,
            "stc_first": True,
            "ratio_bits": float(self.bootstrap.ratio_bits).hex(),
            "ratio_slope": (0.28).hex(),
            "interval": INTERVAL,
            "double_angles": DOUBLE_ANGLES,
            "cosine": [float(x).hex() for x in COSINE],
        }
        return {1: self._hashed(1, **text)}

    def _hashed(self, version: int, **more: Any) -> bytes:
        c = self.chain
        text = {
            "format": f"heatfhe/ckks32/v{version}",
            "ring_dimension": c.ring_dimension,
            "moduli": list(c.moduli),
            "windows": [list(w) for w in c.spans],
            "special": len(c.special),
            "normal_levels": c.normal_levels,
            **more,
        }
        return hashlib.sha256(canonical_json(text)).digest()

    def archive(self, kernels: Kernels) -> Archive:
        """Reads and writes this set's keys and ciphertexts."""
        return Archive(self.chain, kernels, self.hash, self.floor, self.older)


# The words of a literal, each with its type and range.
_CHAIN_WORDS: dict[str, tuple[type, float, float]] = {
    "special": (int, 1, 64),
    "special_bits": (float, 25, 31),
    "eval_levels": (int, 0, 16),
    "eval_bits": (int, 40, 60),
    "eval_gain": (int, 0, 16),
    "eval_end": (int, 0, 90),
    "raise_levels": (int, 0, 8),
    "raise_bits": (int, 0, 60),
    "spare_pairs": (int, 0, 8),
}
_BOOTSTRAP_WORDS: dict[str, tuple[type, float, float]] = {
    "stc_levels": (int, 1, 8),
    "ratio_bits": (float, 1, 40),
}
_OPTIONAL_WORDS: dict[str, tuple[type, float, float]] = {  # a set without one is as it was before there was the word
    "cts_babies": (int, 2, MOST_BABIES),
    "key_levels": (bool, True, True),  # rotation keys reach the levels at which a plan uses them, and no others
}


def make_params(
    name: str, spec: ChainSpec, bootstrap: BootstrapSpec, *, noise: float, promised_bits: float, reach: float,
    key_levels: bool = False,
) -> Params:  # fmt: skip
    """A parameter set from the few integers of its chain; refuses what the security table does not allow."""
    chain = make_chain(spec)
    bootstrap.check(chain)
    if len(set(spec.raise_bits)) > 1:
        raise ConfigError("levels of CoeffsToSlots made of two mains have one size")
    words: dict[str, Any] = {w: getattr(spec, w) for w in _CHAIN_WORDS if not w.startswith("raise_")}
    words["raise_levels"] = len(spec.raise_bits)
    words["raise_bits"] = spec.raise_bits[0] if spec.raise_bits else 0
    words.update({w: getattr(bootstrap, w) for w in _BOOTSTRAP_WORDS}, stc_first=True)
    given = {"cts_babies": bootstrap.cts_babies, "key_levels": key_levels}
    words.update({w: value for w, value in given.items() if value})
    return Params(
        name=name, engine=ENGINE, ring_dimension=spec.ring_dimension, levels=bootstrap.levels(chain),
        scale_bits=float(spec.scale_bits), log_qp=round(chain.log_qp, 6), noise=noise,
        promised_bits=promised_bits, reach=reach,
        sparse_modulus_bits=round(sparse_modulus_bits(chain), 6), literal=tuple(sorted(words.items())),
    )  # fmt: skip


@lru_cache(maxsize=8)
def native_set(params: Params) -> NativeSet:
    """The chain and bootstrap a parameter set stands for; everything it claims is recomputed and checked."""
    if params.engine != ENGINE:
        raise ConfigError(f"{params.name} is a set of the {params.engine} engine, not of {ENGINE}")
    words = dict(params.literal)
    missing = [w for w in (*_CHAIN_WORDS, *_BOOTSTRAP_WORDS) if w not in words]
    if missing:
        raise ConfigError(f"{params.name}: its literal lacks {', '.join(missing)}; use a set of heatfhe.ckks.presets")
    optional = {w: rule for w, rule in _OPTIONAL_WORDS.items() if w in words}
    for word, (kind, lo, hi) in {**_CHAIN_WORDS, **_BOOTSTRAP_WORDS, **optional}.items():
        if type(words[word]) is not kind or not lo <= words[word] <= hi:
            raise ConfigError(
                f"{params.name}: {word} must be {kind.__name__} from {lo:g} to {hi:g}, got {words[word]!r:.40}; "
                "use a set of heatfhe.ckks.presets"
            )
    if params.levels > MOST_LEVELS:
        raise ConfigError(f"{params.name}: {params.levels} levels; a native set has at most {MOST_LEVELS}")
    spec = ChainSpec(
        ring_dimension=params.ring_dimension, scale_bits=int(params.scale_bits),
        levels=params.levels + words["stc_levels"], raise_bits=(words["raise_bits"],) * words["raise_levels"],
        **{w: words[w] for w in _CHAIN_WORDS if not w.startswith("raise_")},
    )  # fmt: skip
    bootstrap = BootstrapSpec(**{w: words[w] for w in _BOOTSTRAP_WORDS}, cts_babies=words.get("cts_babies", 0))
    again = make_params(
        params.name, spec, bootstrap, noise=params.noise, promised_bits=params.promised_bits, reach=params.reach,
        key_levels=words.get("key_levels", False),
    )  # fmt: skip
    if again != params:
        raise ConfigError(
            f"{params.name}: its claims (log2 QP, levels, sparse modulus) are not those of its chain; make it again"
        )
    best = -math.log2(eval_mod_noise(params.ring_dimension, words["eval_bits"], words["ratio_bits"]))
    if params.promised_bits > best:
        raise ConfigError(
            f"{params.name}: it promises {params.promised_bits:g} bits, its modular reduction keeps {best:.1f} "
            "at most; do not use a server that claims this"
        )
    return NativeSet(params=params, chain=make_chain(spec), bootstrap=bootstrap)


def eval_mod_noise(ring_dimension: int, eval_bits: int, ratio_bits: float) -> float:
    """What the modular reduction adds to a refreshed slot, relative to its bound (docs/security-native.md)."""
    n = ring_dimension
    return float(2.0**ratio_bits * INTERVAL * 4 * (n / 18) ** 0.5 * n**0.5 / 2.0**eval_bits)


def _toy(
    name: str, ring_dimension: int, levels: int, special: int, noise: float, *, scale: int = 35, bits: float = 18.0
) -> Params:
    """The model set: two levels each for CoeffsToSlots and SlotsToCoeffs.

    The message ratio is where the sine's error at the bound falls below EvalMod's noise; EvalMod's last rescale, of
    2 eval_bits - scale - ratio bits, must fit two words.
    """
    eval_bits, ratio = {35: (55, 14), 40: (58, 15)}[scale]
    spec = ChainSpec(
        ring_dimension=ring_dimension, scale_bits=scale, levels=levels + 2, special=special, eval_levels=8,
        eval_bits=eval_bits, eval_gain=2, eval_end=scale + ratio, raise_bits=(58,), spare_pairs=1,
    )  # fmt: skip
    bootstrap = BootstrapSpec(stc_levels=2, ratio_bits=float(ratio))
    return make_params(name, spec, bootstrap, noise=noise, promised_bits=bits, reach=16.0)


def _r40(name: str = "native-16-r40", *, cts_babies: int = 0, key_levels: bool = False) -> Params:
    spec = ChainSpec(
        ring_dimension=1 << 16, scale_bits=40, levels=16, special=12, eval_levels=8, eval_bits=58, eval_gain=1,
        eval_end=54, raise_bits=(58, 58), spare_pairs=2, special_bits=30.9,
    )  # fmt: skip
    bootstrap = BootstrapSpec(stc_levels=3, ratio_bits=14.0, cts_babies=cts_babies)
    return make_params(name, spec, bootstrap, key_levels=key_levels, noise=2e-7, promised_bits=17.0, reach=16.0)


def _r35() -> Params:
    spec = ChainSpec(
        ring_dimension=1 << 16, scale_bits=35, levels=19, special=12, eval_levels=8, eval_bits=54, eval_gain=3,
        eval_end=47, raise_bits=(58, 58), spare_pairs=2,
    )  # fmt: skip
    bootstrap = BootstrapSpec(stc_levels=3, ratio_bits=12.0)
    return make_params("native-16-r35", spec, bootstrap, noise=1.5e-6, promised_bits=15.0, reach=16.0)


@lru_cache(maxsize=1)
def native_presets() -> dict[str, Params]:
    """Every named set of the native engine."""
    toys = [_toy(f"insecure-native-{k}", 1 << k, 9, 9, noise) for k, noise in ((11, 4e-8), (12, 6e-8), (13, 1.2e-7))]
    toys.append(_toy("insecure-native-12-r40", 1 << 12, 10, 9, 1.2e-8, scale=40, bits=20.0))
    every = [
        _r40(),
        _r40("native-16-r40-lean", cts_babies=8, key_levels=True),
        _r35(),
        *toys,
        _toy("insecure-native-tiny", 1 << 11, 3, 7, 4e-8),
    ]
    return {p.name: p for p in every}
