# SPDX-License-Identifier: Apache-2.0
"""One Newton step, and a layer norm from its parts: what laws and twins state, written with the package's solvers."""

from __future__ import annotations

from collections.abc import Callable

from heatfhe.approx import Plain, SoftmaxFit, T, divide, exponential, newton, rms_norm, softmax, softmax_solvers


def softmax_at(
    t: T,
    fit: SoftmaxFit,
    counts: tuple[int, int],
    *,
    row_sum: Callable[[T], T],
    row_length: Plain,
    mask: Plain | None = None,
    wide: bool = False,
) -> T:
    """A softmax by the plain solvers at these counts; ``wide`` lets each row ride as its division's numerator."""
    if not wide:
        init, refine = softmax_solvers(fit, *counts, row_length)
        return softmax(t, fit, row_sum=row_sum, mask=mask, init=init, refine=refine)
    y = exponential(t, fit.exponential, mask=mask)
    y = divide(y, row_sum(y), fit.init, counts[0], scale=1.0 / row_length)
    for _ in range(fit.passes):
        assert fit.refine is not None
        y = y * y
        y = divide(y, row_sum(y), fit.refine, counts[1], scale=1.0 / row_length)
    return y


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
