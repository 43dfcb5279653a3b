# SPDX-License-Identifier: Apache-2.0
"""Checks shared by the fits: each says which numbers were refused and what would be accepted."""

from __future__ import annotations

import math
from collections.abc import Iterable

from heatfhe.errors import ConfigError

MOST = 1000  # iterations, powers, degrees: the largest in use is below a hundred


def positive_domain(what: str, lo: float, hi: float) -> None:
    """Refuse an interval that is empty, not finite, or touches zero."""
    domain(what, lo, hi)
    if lo <= 0.0:
        raise ConfigError(f"{what} needs a domain above zero, got [{lo:g}, {hi:g}]; raise lo above 0")


def domain(what: str, lo: float, hi: float) -> None:
    """Refuse an interval that is empty or not finite."""
    if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
        raise ConfigError(f"{what} needs a finite domain lo < hi, got [{lo:g}, {hi:g}]; recalibrate on more data")


def positive(what: str, value: float) -> None:
    """Refuse a number that is not finite and above zero."""
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{what} must be finite and above 0, got {value:g}")


def count(what: str, value: int, floor: int = 0) -> None:
    """Refuse an iteration count that is not a whole number of at least floor, or that nobody could wait for."""
    if isinstance(value, bool) or int(value) != value or value < floor:
        raise ConfigError(f"{what} must be a whole number of at least {floor}, got {value!r}")
    if value > MOST:
        raise ConfigError(f"{what} must be at most {MOST}, got {value!r}")


def tolerance(value: float) -> None:
    """Refuse a tolerance outside (0, 1)."""
    if not 0.0 < value < 1.0:
        raise ConfigError(f"a tolerance lies strictly between 0 and 1, got {value:g}")


def one_of(what: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value outside a short list."""
    allowed = tuple(choices)
    if value not in allowed:
        raise ConfigError(f"{what} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def finite(what: str, values: Iterable[float]) -> None:
    """Refuse coefficients that hold an infinity or a NaN."""
    bad = [v for v in values if not math.isfinite(v)]
    if bad:
        raise ConfigError(f"{what} holds {bad[0]:g}; every coefficient must be finite")


def power_of_two(what: str, value: int) -> int:
    """The logarithm of a power of two; anything else is refused."""
    if isinstance(value, bool) or int(value) != value or value < 1 or value & (value - 1):
        raise ConfigError(f"{what} must be a power of two of at least 1, got {value!r}")
    return int(value).bit_length() - 1
