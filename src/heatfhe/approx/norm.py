# SPDX-License-Identifier: Apache-2.0
"""RMS norm around an inverse square root: a layer norm too, on a mean-free stream. The next matrix holds its gain."""

from __future__ import annotations

from collections.abc import Callable

from heatfhe.approx.arithmetic import Plain, T


def rms_norm(x: T, *, sum_of_squares: Callable[[T], T], inverse_root: Callable[[T], T], shift: Plain = 0.0) -> T:
    """x times inverse_root(sum_of_squares(x) + shift).

    Domain  the sum plus shift inside the inverse root's domain.
    Bound   the relative error of inverse_root.
    Depth   2 + that of inverse_root: the squares, the root, the product. Shift and gain cost none.
    Source  the paper, LayerNorm; Zhang and Sennrich 2019.
    """
    y: T = x * inverse_root(sum_of_squares(x) + shift)
    return y
