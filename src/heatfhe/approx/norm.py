# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm around an inverse square root; their gains and biases belong to the next matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import Plain, T
from heatfhe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConstants:
    """How a width and an epsilon enter a norm that never divides by the width.

    1 / sqrt(s / d + eps) = sqrt(d) / sqrt(s + d eps): `shift` is added to the sum of squares, `gain` is folded into the
    inverse root's seed.
    """

    width: int
    eps: float

    def __post_init__(self) -> None:
        _check.count("a norm's width", self.width, floor=1)
        if not 0.0 <= self.eps < 1.0:
            raise ConfigError(f"a norm's eps lies in [0, 1), got {self.eps:g}")

    @property
    def shift(self) -> float:
        """d eps."""
        return self.width * self.eps

    @property
    def gain(self) -> float:
        """sqrt(d)."""
        return sqrt(self.width)

    def domain(self, lo: float, hi: float) -> tuple[float, float]:
        """The inverse root's domain [d (lo + eps), d (hi + eps)] for a variance (or mean square) in [lo, hi]."""
        return self.width * (lo + self.eps), self.width * (hi + self.eps)


def rms_norm(x: T, *, sum_of_squares: Callable[[T], T], inverse_root: Callable[[T], T], shift: Plain = 0.0) -> T:
    """x times inverse_root(sum_of_squares(x) + shift).

    Domain  the sum plus shift inside the inverse root's domain.
    Bound   the relative error of inverse_root.
    Depth   2 + that of inverse_root: the squares, the root, the product. Shift and gain cost none.
    Source  the paper, LayerNorm; Zhang and Sennrich 2019.
    """
    y: T = x * inverse_root(sum_of_squares(x) + shift)
    return y


def layer_norm(
    x: T,
    *,
    mean: Callable[[T], T],
    sum_of_squares: Callable[[T], T],
    inverse_root: Callable[[T], T],
    shift: Plain = 0.0,
) -> T:
    """RMS norm of x less its mean. mean must leave padding at zero.

    Domain  as rms_norm, for the centred row.
    Bound   the relative error of inverse_root.
    Depth   1 + rms_norm's when mean multiplies by a mask over the width; rms_norm's on a mean-free stream.
    Source  the paper, LayerNorm; Ba, Kiros and Hinton 2016.
    """
    centred: T = x - mean(x)
    return rms_norm(centred, sum_of_squares=sum_of_squares, inverse_root=inverse_root, shift=shift)
