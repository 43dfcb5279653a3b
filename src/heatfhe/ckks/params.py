# SPDX-License-Identifier: Apache-2.0
"""CKKS parameter sets: the Params type, and the one security table every engine and planner checks against."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from heatfhe.errors import ConfigError
from heatfhe.files import json_digest

# Largest log2(QP) for a uniform ternary secret and sigma = 3.19 against classical attacks, by ring dimension and
# security bits. Source: Bossuat et al., "Security Guidelines for Implementing Homomorphic Encryption", ePrint 2024/463,
# Table 5.2 (primal uSVP, BDD and dual hybrid attacks, MATZOV reduction cost). P counts: evaluation keys are samples
# modulo QP.
MAX_LOG_QP: dict[int, dict[int, float]] = {
    1 << 10: {128: 26},
    1 << 11: {128: 53, 192: 36, 256: 27},
    1 << 12: {128: 106, 192: 73, 256: 56},
    1 << 13: {128: 214, 192: 147, 256: 114},
    1 << 14: {128: 430, 192: 297, 256: 230},
    1 << 15: {128: 868, 192: 597, 256: 462},
    1 << 16: {128: 1747, 192: 1199, 256: 929},
    1 << 17: {128: 3523, 192: 2411, 256: 1866},
}
SECURITY_SOURCE = "ePrint 2024/463 Table 5.2: uniform ternary secret, sigma 3.19, classical"

# The same for main secrets of a fixed small weight, for which Table 5.2 does not hold: by weight, ring dimension and
# security bits. Source: runs/security_estimate.py, which prices hybrid attacks that use a ring's rotations (Ogilvie,
# ePrint 2026/279; its own figure for 1553 bits is 122.6) with MATZOV's reduction cost. Older budgets for weight 192,
# 1546 to 1553 bits at 128 (ePrint 2020/1203, Lattigo), leave these attacks out.
MAX_LOG_QP_BY_WEIGHT: dict[int, dict[int, dict[int, float]]] = {192: {1 << 16: {128: 1457.0, 122: 1540.0}}}
WEIGHT_SOURCE = (
    "runs/security_estimate.py: ternary secret of weight {weight}, sigma 3.19, classical, hybrid attacks that use the "
    "ring's rotations, ePrint 2026/279"
)

# The transient sparse secret of bootstrapping (weight 32) is published under its own small modulus only; bound by ring
# dimension. Source: Bossuat, Troncoso-Pastoriza, Hubaux, ePrint 2022/024, and Lattigo's stated 121 bits for weight 32;
# priced in runs/security_estimate.py: 160 bits for the best known attack, 144 for floors.
MAX_LOG_SPARSE_MODULUS: dict[int, float] = {1 << 16: 120.0}

# What a client rounds decrypted numbers to is a set's promise, and the set comes from a server. No bootstrap of any
# engine here is better than 2^-27; a promise beyond this ceiling would only switch the rounding off.
MAX_PROMISED_BITS = 32.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_INTEGERS = {"ring_dimension": (8, 1 << 20), "levels": (1, 999), "secret_weight": (0, 1 << 20), "pair_levels": (0, 999)}
_NUMBERS = {
    "scale_bits": (1.0, 120.0),
    "log_qp": (1.0, 1e6),
    "noise": (0.0, 1.0),
    "promised_bits": (1.0, MAX_PROMISED_BITS),
    "reach": (1e-9, 1e9),
    "sparse_modulus_bits": (0.0, 1e6),
}


def claimed_security(ring_dimension: int, log_qp: float, secret_weight: int = 0) -> int:
    """The largest tabulated security in bits that log2(QP) allows at this ring dimension; 0 if none.

    ``secret_weight`` is that of a fixed-weight main secret, 0 for a uniform ternary one.
    """
    row = _bounds(ring_dimension, secret_weight)
    return max((bits for bits, bound in row.items() if log_qp <= bound), default=0)


def _bounds(ring_dimension: int, secret_weight: int) -> dict[int, float]:
    """Largest log2(QP) by security bits; empty where no table has this ring and secret."""
    table = MAX_LOG_QP_BY_WEIGHT.get(secret_weight, {}) if secret_weight else MAX_LOG_QP
    return table.get(ring_dimension, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """One parameter set, as planner, engines, client and server agree on it.

    ``levels`` is what a bootstrap leaves for arithmetic; ``noise`` the standard deviation it adds per real slot on
    inputs of size about one; ``reach`` the magnitudes it refreshes within that promise. A set without any claim of
    security must be named ``insecure-...``; servers and clients want 128 bits unless they are told otherwise.
    ``literal`` holds the few integers an engine builds its context from.
    """

    name: str
    engine: str
    ring_dimension: int
    levels: int
    scale_bits: float
    log_qp: float
    noise: float
    promised_bits: float
    reach: float
    secret: str = "uniform ternary, encapsulated sparse weight 32 in bootstrapping"
    secret_weight: int = 0
    sparse_modulus_bits: float = 0.0
    pair_levels: int = 0
    literal: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        self._check_fields()
        n = self.ring_dimension
        if n & (n - 1):
            raise ConfigError(f"{self.name}: ring dimension must be a power of two of at least 8, got {n}")
        if self.promised_bits > self.scale_bits:
            raise ConfigError(
                f"{self.name}: {self.promised_bits:g} bits cannot be promised at a scale of {self.scale_bits:g} bits"
            )
        insecure = self.security_bits == 0
        if insecure and not self.name.startswith("insecure-"):
            bound = _bounds(n, self.secret_weight).get(128, 0)
            raise ConfigError(
                f"{self.name}: log2 QP {self.log_qp:.1f} exceeds {bound:g}, the 128-bit bound at ring dimension {n} "
                f"({self._source}), or its sparse modulus is unbounded there; use a larger ring or fewer levels, "
                "or call the set insecure-..."
            )
        if not insecure and not 0 < self.noise <= 2.0**-self.promised_bits:
            raise ConfigError(
                f"{self.name}: a promise of {self.promised_bits:g} bits needs a noise above 0 and at most "
                f"{2.0**-self.promised_bits:.1e}, got {self.noise:g}; promise fewer bits"
            )

    def _check_fields(self) -> None:
        """Every field has its type and lies in its range: a set may come from a file or from a server."""
        for word in ("name", "engine"):
            if not isinstance(getattr(self, word), str) or not _NAME.fullmatch(getattr(self, word)):
                raise ConfigError(
                    f"a parameter set's {word} has 1 to 100 of A-Z a-z 0-9 . _ + -, got {getattr(self, word)!r:.60}"
                )
        if not isinstance(self.secret, str) or len(self.secret) > 200 or not self.secret.isprintable():
            raise ConfigError(f"{self.name}: secret is one line of at most 200 characters, got {self.secret!r:.60}")
        for word, (least, most) in _INTEGERS.items():
            value = getattr(self, word)
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(f"{self.name}: {word} must be an integer from {least} to {most}, got {value!r:.60}")
        for word, (lo, hi) in _NUMBERS.items():
            value = getattr(self, word)
            if isinstance(value, bool) or not isinstance(value, int | float) or not lo <= value <= hi:
                raise ConfigError(f"{self.name}: {word} must be a number from {lo:g} to {hi:g}, got {value!r:.60}")
        for item in self.literal:
            if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and _plain(item[1])):
                raise ConfigError(f"{self.name}: its literal holds words with finite numbers, got {item!r:.60}")

    @property
    def slots(self) -> int:
        """Complex slots of a full ciphertext."""
        return self.ring_dimension // 2

    @property
    def security_bits(self) -> int:
        """Claimed bits of security by the table, 0 if the table or the sparse secret's bound does not allow a claim."""
        if self.sparse_modulus_bits > MAX_LOG_SPARSE_MODULUS.get(self.ring_dimension, -1.0):
            return 0
        return claimed_security(self.ring_dimension, self.log_qp, self.secret_weight)

    @property
    def security_claim(self) -> str:
        """One sentence: what is claimed and how it was computed."""
        if self.security_bits == 0:
            return f"NO SECURITY: a toy set (log2 QP {self.log_qp:.1f} at ring dimension {self.ring_dimension})"
        bound = _bounds(self.ring_dimension, self.secret_weight)[self.security_bits]
        return f"{self.security_bits} bits: log2 QP {self.log_qp:.1f} <= {bound:g} ({self._source})"

    @property
    def _source(self) -> str:
        return WEIGHT_SOURCE.format(weight=self.secret_weight) if self.secret_weight else SECURITY_SOURCE

    def as_json(self) -> dict[str, Any]:
        """Plain JSON form."""
        body = {key: getattr(self, name) for key, name in _FIELDS.items()}
        body["literal"] = dict(self.literal)
        return body

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Params:
        """Inverse of as_json; checks everything again."""
        try:
            if len(body["literal"]) > 64:
                raise ConfigError(f"not a parameter set: {len(body['literal'])} words in its literal, at most 64 fit")
            fields = {_FIELDS[key]: value for key, value in body.items()}
            return cls(**{**fields, "literal": tuple(sorted(body["literal"].items()))})
        except (TypeError, KeyError, AttributeError) as err:
            raise ConfigError(f"not a parameter set: {err}") from err

    @property
    def digest(self) -> str:
        """Identifies the set."""
        return json_digest(self.as_json())


_FIELDS = {"window" if name == "reach" else name: name for name in Params.__slots__}
"""Fields by their keys in files and messages, where the reach of a bootstrap is called its window."""


def _plain(value: Any) -> bool:
    """What a literal may hold: integers, finite numbers, flags."""
    return type(value) is bool or (type(value) in (int, float) and math.isfinite(value) and abs(value) < 2**53)
