# SPDX-License-Identifier: Apache-2.0
"""Which constants and counts a run goes on with: those it was trained with, unless ranges have left their domain."""

from __future__ import annotations

import math
from dataclasses import replace

from heatfhe.approx import InverseSqrtFit, SoftmaxFit
from heatfhe.records import Calibration, Domain, SoftmaxCalibration


def fixed_counts(calibration: Calibration, total: int) -> dict[str, int]:
    """The calibrated counts cut by hand, evenly, until at most ``total`` iterations per forward are left.

    The next one to go is taken where the largest share of the calibrated count is left, never below a floor. A total
    below the floors' own leaves every count at its floor.
    """
    full = calibration.counts()
    counts, floors = dict(full), calibration.floors()
    while sum(calibration.with_counts(counts).iterations().values()) > total:
        free = [name for name in full if counts[name] > floors[name]]
        if not free:
            break
        counts[max(free, key=lambda name: counts[name] / full[name])] -= 1
    return counts


def merge(trained: Calibration, observed: Calibration) -> Calibration:
    """Constants the weights were trained with, except where the final ranges have left their domain; observed counts.

    A shallow solver's error is part of what the weights learned, and it depends on the domain it was fitted on: moving
    that domain without need would undo some of the training.
    """
    norms = {
        n: c if _covers(c.fit, observed.norms[n].observed) else observed.norms[n] for n, c in trained.norms.items()
    }
    rows = {n: _merged_rows(c, observed.softmaxes[n]) for n, c in trained.softmaxes.items()}
    return replace(observed, norms=norms, softmaxes=rows).with_counts(observed.counts())


def _covers(fit: InverseSqrtFit | SoftmaxFit, seen: Domain) -> bool:
    return fit.lo <= seen.lo and seen.hi <= fit.hi


def _merged_rows(trained: SoftmaxCalibration, seen: SoftmaxCalibration) -> SoftmaxCalibration:
    """Scores must lie in their window, and both sums below the upper end of their domain. Below the lower one they
    converge, and what was seen there bounds their reciprocals."""
    fit, new = trained.fit, seen.fit
    # A row sums e^((s - midpoint) / delta_2): seen about the new midpoint, compared about the trained one.
    moved = math.exp((new.midpoint - fit.midpoint) / fit.delta_2)
    first = Domain(lo=seen.observed_init.lo * moved, hi=seen.observed_init.hi * moved)
    if not (_covers(fit, seen.observed) and first.hi <= fit.init.hi):
        return seen
    second = seen.observed_refine
    if fit.refine is not None and new.refine is not None and second is not None and second.hi > fit.refine.hi:
        fit = replace(fit, refine=new.refine)
    return replace(trained, fit=fit, observed=seen.observed, observed_init=first, observed_refine=second)
