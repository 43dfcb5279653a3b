# SPDX-License-Identifier: Apache-2.0
"""Softmax without a maximum: a narrow exponential, a first normalisation, then passes of square and normalise.

Its bounds are proved in proofs/Softmax.v; docs/theory.md says which theorem stands behind which function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from heatfhe.approx import _check
from heatfhe.approx.arithmetic import Plain, T
from heatfhe.approx.exponential import ExponentialFit, exponential, fit_exponential
from heatfhe.approx.reciprocal import ReciprocalFit, reciprocal
from heatfhe.errors import ConfigError

# Legend: M = hi - lo, the width of the scores; delta_1 the power the fitted exponential is raised to; delta_2 the
# factor the passes restore, one factor of two each; Y a row of mean one, row_length times the probabilities.


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxFit:
    """The constants of one softmax: scores in [lo, hi], its two powers of two, exponential and reciprocals."""

    lo: float
    hi: float
    delta_1: int
    delta_2: int
    exponential: ExponentialFit
    init: ReciprocalFit
    refine: ReciprocalFit | None = None

    def __post_init__(self) -> None:
        _check.domain("a softmax", self.lo, self.hi)
        squarings = _check.power_of_two("delta_1", self.delta_1)
        passes = _check.power_of_two("delta_2", self.delta_2)
        if squarings != self.exponential.squarings:
            raise ConfigError(f"delta_1 = {self.delta_1} needs {squarings} squarings, not {self.exponential.squarings}")
        half_width = self.width / (2.0 * self.delta_1 * self.delta_2)
        if not math.isclose(half_width, self.exponential.half_width, rel_tol=1e-9):
            raise ConfigError(
                f"scores of width {self.width:g} over {self.delta_1} x {self.delta_2} need an exponential of half "
                f"width {half_width:g}, got {self.exponential.half_width:g}"
            )
        if (passes > 0) != (self.refine is not None):
            raise ConfigError(
                f"delta_2 = {self.delta_2} makes {passes} passes; give a refine fit exactly when that is not 0"
            )

    @property
    def midpoint(self) -> float:
        """What is subtracted from the scores."""
        return 0.5 * (self.lo + self.hi)

    @property
    def width(self) -> float:
        """M, the width of the scores' domain; t = (score - midpoint) / (width / 2)."""
        return self.hi - self.lo

    @property
    def passes(self) -> int:
        """Passes of square and normalise: log2(delta_2)."""
        return self.delta_2.bit_length() - 1

    def levels(self, init_count: int, refine_count: int = 0, *, wide: bool = False) -> int:
        """Levels from t to the row; the wide form spends one less per normalisation, on wider products."""
        apply = 0 if wide else 1
        init = _reciprocal_levels(init_count, wide) + apply
        return self.exponential.levels + init + self.passes * (1 + _reciprocal_levels(refine_count, wide) + apply)


def _reciprocal_levels(count: int, wide: bool) -> int:
    return 2 + count if count or wide else 1


def softmax(
    t: T,
    fit: SoftmaxFit,
    *,
    row_sum: Callable[[T], T],
    init: Callable[[T], T],
    refine: Callable[[T], T] | None = None,
    mask: Plain | None = None,
    exponentiate: Callable[[T], T] | None = None,
) -> T:
    """row_length times the softmax of the scores t stands for: rows of mean one over the entries the mask keeps.

    init(s) and refine(s) return row_length / s, as ``solvers`` makes them; a fit with passes needs both.
    exponentiate(t), when given, stands in for the fitted exponential, mask included (training uses the analytic one).

    Domain  -1 <= t <= 1 everywhere, masked entries included; row sums inside fit.init and fit.refine.
    Bound   relative error e_r + delta_2 * exponential.final_error to first order, e_r the last reciprocal's own:
            what earlier ones leave is common to the row and cancels.
    Depth   exponential + init + 1 + passes * (1 + refine + 1): fit.levels at the counts of ``solvers``.
    Source  the paper, Softmax; Moon et al. (THOR).
    """
    if fit.passes and refine is None:
        raise ConfigError(f"a softmax of {fit.passes} passes needs refine, too")
    y = exponential(t, fit.exponential, mask=mask) if exponentiate is None else exponentiate(t)
    y = y * init(row_sum(y))
    for _ in range(fit.passes):
        assert refine is not None
        y = y * y
        y = y * refine(row_sum(y))
    return y


def solvers(
    fit: SoftmaxFit, init_count: int, refine_count: int, row_length: Plain
) -> tuple[Callable[[Any], Any], Callable[[Any], Any] | None]:
    """The plain init and refine: each row_length / s at its count, row_length folded into the seed."""
    init = partial(reciprocal, fit=fit.init, count=init_count, scale=1.0 / row_length)
    if fit.refine is None:
        return init, None
    return init, partial(reciprocal, fit=fit.refine, count=refine_count, scale=1.0 / row_length)


def smallest_deltas(width: float, budget: float = 1e-4, delta_2: int = 2, degree: int = 8) -> tuple[int, int]:
    """The least delta_1 for this delta_2, and delta_2 itself.

    Domain  width > 0; refused where sixteen squarings do not suffice.
    Bound   delta_1 delta_2 E(width / (2 delta_1 delta_2)) <= budget, E the exponential's relative error.
    Depth   none.
    Source  squarings and passes each double a differential error.
    """
    _check.positive("the width of a softmax's scores", width)
    _check.power_of_two("delta_2", delta_2)
    for squarings in range(16):
        delta_1 = 1 << squarings
        half_width = width / (2.0 * delta_1 * delta_2)
        if half_width <= degree and delta_1 * delta_2 * fit_exponential(half_width, degree).error <= budget:
            return delta_1, delta_2
    raise ConfigError(
        f"scores of width {width:g} are too wide for {budget:g}: squeeze them or raise delta_2 = {delta_2}"
    )
