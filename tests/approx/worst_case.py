# SPDX-License-Identifier: Apache-2.0
"""Softmax fits on worst-case domains, without data: for every row with scores in an interval."""

from __future__ import annotations

import math

from heatfhe.approx import ReciprocalFit, SoftmaxFit, _check, fit_exponential, smallest_deltas


def init_domain(width: float, delta_2: int) -> tuple[float, float]:
    """Where the mean of a row of e^(x / delta_2) can lie when |x| <= width / 2.

    Domain  width > 0.
    Bound   attained by constant rows.
    Depth   none.
    Source  every entry lies between the two ends.
    """
    half = width / (2.0 * delta_2)
    return math.exp(-half), math.exp(half)


def refine_domain(
    width: float, delta_2: int, row_length: int, init: ReciprocalFit | None = None, init_count: int = 0
) -> tuple[float, float]:
    """Where the mean of Y^2 can lie in any pass; a loose first reciprocal widens it.

    Domain  width > 0, row_length >= 1.
    Bound   [1, min(row_length, cosh^2(width / 4))] when the first reciprocal is exact: by Schweitzer's inequality for
            the last, widest pass; times the square of what init_count iterations leave of the row's mean.
    Depth   none.
    Source  Schweitzer 1914 (Kantorovich's inequality).
    """
    hi = min(float(row_length), math.cosh(min(width / 4.0, 300.0)) ** 2) if delta_2 > 1 else 1.0
    if init is None:
        return 1.0, hi
    e = init.error(init_count)
    over = e if (init_count == 0 and init.solver == "plain") or init.solver == "relaxed" else 0.0
    return (1.0 - e) ** 2, hi * (1.0 + over) ** 2


def fit_softmax(
    lo: float,
    hi: float,
    *,
    row_length: int,
    deltas: tuple[int, int] | None = None,
    solver: str = "plain",
    budget: float = 1e-4,
    init_count: int | None = None,
) -> SoftmaxFit:
    """A fit on the worst-case domains of scores in [lo, hi], for every row of at most row_length entries.

    Domain  finite lo < hi; row_length >= 2 where delta_2 > 1.
    Bound   delta_1 delta_2 times the exponential's relative error stays within the budget when deltas are chosen
            here. init_count, when given, is the count the first reciprocal will run at: it widens fit.refine.
    Depth   none: a fit.
    Source  the paper, Softmax; the domains of init_domain and refine_domain.
    """
    _check.domain("a softmax", lo, hi)
    delta_1, delta_2 = deltas if deltas is not None else smallest_deltas(hi - lo, budget)
    squarings, passes = _check.power_of_two("delta_1", delta_1), _check.power_of_two("delta_2", delta_2)
    first, last = init_domain(hi - lo, delta_2)
    init = ReciprocalFit(lo=first, hi=last, solver=solver)
    refine = None
    if passes:
        ends = refine_domain(hi - lo, delta_2, row_length, None if init_count is None else init, init_count or 0)
        refine = ReciprocalFit(lo=ends[0], hi=ends[1], solver=solver)
    window = fit_exponential((hi - lo) / (2.0 * delta_1 * delta_2), 8, squarings)
    return SoftmaxFit(lo=lo, hi=hi, delta_1=delta_1, delta_2=delta_2, exponential=window, init=init, refine=refine)


def smallest_counts(fit: SoftmaxFit, tolerance: float, row_length: int, *, floor: int = 1) -> tuple[int, int]:
    """The (init, refine) counts with the fewest iterations that hold the last reciprocal to the tolerance.

    Domain  worst-case domains of the fit's width; run them with fit_softmax(..., init_count=the first).
    Bound   the last reciprocal's relative error is within the tolerance.
    Depth   none.
    Source  only the last error is seen: the first count may be cut until it widens the second one's domain too far.
    """
    if fit.refine is None:
        return fit.init.smallest_count(tolerance, floor), 0
    best: tuple[int, int, int] | None = None
    for init_count in range(floor, fit.init.smallest_count(tolerance, floor) + 1):
        lo, hi = refine_domain(fit.width, fit.delta_2, row_length, fit.init, init_count)
        count = ReciprocalFit(lo=lo, hi=hi, solver=fit.refine.solver).smallest_count(tolerance, floor)
        total = init_count + fit.passes * count
        if best is None or total < best[0]:
            best = total, init_count, count
    assert best is not None
    return best[1], best[2]
