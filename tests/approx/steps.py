# SPDX-License-Identifier: Apache-2.0
"""One Newton step, and a layer norm from its parts: what laws and twins state, written with the package's solvers."""

from __future__ import annotations

from collections.abc import Callable

from heatfhe.approx import Plain, T, newton, rms_norm


def newton_step(z: T, y: T, gain: float = 1.0, levels: int = 2) -> T:
    """One of Newton's iterations of y towards gain / sqrt(z)."""
    return newton(z, y, 1, gain=gain, levels=levels)


def layer_norm(
    x: T,
    *,
    mean: Callable[[T], T],
    sum_of_squares: Callable[[T], T],
    inverse_root: Callable[[T], T],
    shift: Plain = 0.0,
) -> T:
    """RMS norm of x less its mean, which must leave padding at zero."""
    centred: T = x - mean(x)
    return rms_norm(centred, sum_of_squares=sum_of_squares, inverse_root=inverse_root, shift=shift)
