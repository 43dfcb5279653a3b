# SPDX-License-Identifier: Apache-2.0
"""Which constants and counts a run goes on with: those it was trained with, unless ranges have left their domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from heatfhe.approx import InverseSqrtFit, ReciprocalFit, SoftmaxFit, fit_inverse_sqrt
from heatfhe.records import Calibration, Domain, NormCalibration, SoftmaxCalibration

CLEAR = 4.0  # what is seen stays this far below the end of a domain: about its middle a seed overshoots
WIDE = 256.0  # from end to end, in which a narrowed domain's seed is that of the wider one to 2 %
FEWEST = 4  # iterations that narrowing leaves, after which half an error is 2^-16


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


def merge(trained: Calibration, observed: Calibration, *, ends_apart: bool = False) -> Calibration:
    """Constants the weights were trained with, except where the final ranges have left their domain; observed counts.

    A shallow solver's error is part of what the weights learned, and it depends on the domain it was fitted on: moving
    that domain without need would undo some of the training. With ``ends_apart`` the end of a norm's domain that was
    not left stays, too.
    """
    norms = {n: _merged_norm(c, observed.norms[n], ends_apart) for n, c in trained.norms.items()}
    rows = {n: _merged_rows(c, observed.softmaxes[n]) for n, c in trained.softmaxes.items()}
    return replace(observed, norms=norms, softmaxes=rows).with_counts(observed.counts())


def _merged_norm(trained: NormCalibration, seen: NormCalibration, ends_apart: bool) -> NormCalibration:
    fit, new = trained.fit, seen.fit
    if _covers(fit, seen.observed):
        return trained
    if not ends_apart:
        return seen
    lo, hi = min(fit.lo, new.lo), new.hi if seen.observed.hi > fit.hi else fit.hi
    return replace(seen, fit=fit_inverse_sqrt(lo, hi, solver=new.solver, form=new.form))


def _covers(fit: InverseSqrtFit | SoftmaxFit, seen: Domain) -> bool:
    return fit.lo <= seen.lo and seen.hi <= fit.hi


def _merged_rows(trained: SoftmaxCalibration, seen: SoftmaxCalibration) -> SoftmaxCalibration:
    """Scores must lie in their window, and both sums below the upper end of their domain. Below the lower one they
    converge, and what was seen there bounds their reciprocals. A window that scores have left is fitted again about a
    new midpoint, which changes all sums by one factor: the domain of the first reciprocal goes with it."""
    fit, new = trained.fit, seen.fit
    if not _covers(fit, seen.observed):
        # A row sums e^((s - midpoint) / delta_2).
        moved = math.exp((fit.midpoint - new.midpoint) / fit.delta_2)
        first = replace(fit.init, lo=fit.init.lo * moved, hi=fit.init.hi * moved)
        fit = replace(new, init=first, refine=fit.refine)
    moved = math.exp((new.midpoint - fit.midpoint) / fit.delta_2)
    first_seen = Domain(lo=seen.observed_init.lo * moved, hi=seen.observed_init.hi * moved)
    if first_seen.hi > fit.init.hi:
        return seen
    second = seen.observed_refine
    if fit.refine is not None and new.refine is not None and second is not None and second.hi > fit.refine.hi:
        fit = replace(fit, refine=new.refine)
    return replace(trained, fit=fit, observed=seen.observed, observed_init=first_seen, observed_refine=second)


def narrowed(trained: Calibration, seen: Calibration, tops: Mapping[str, int]) -> Calibration:
    """Softmax domains moved to where their sums have come, each by whole iterations, which go or come with them.

    Far below its domain's end a plain reciprocal's relative error is (1 - 8 d / hi)^(2^count): one iteration less on a
    domain that ends at half is the same, and so is one more on one that ends at twice as much. (Relaxed ones: at a
    quarter, at four times.) Nothing that was learned is undone. A nearer end is also a bit of precision under
    encryption; a further one lets through what no calibration has seen: sums grow up to their guards while training.

    Domain  ``trained`` as merged with ``seen``, whose fits hold all that was seen, with its margins; ``tops`` has the
            largest count of every site.
    Bound   no upper end falls below what ``seen`` asks for, or below CLEAR times what was seen: there no seed is off by
            more than a half, so that errors are those from before to the power 0.98 at worst, or below 2^(-2^FEWEST).
            No first domain ends below CLEAR times what was seen, even at a site that has its largest count already.
    Depth   an iteration less for every halving, one more for every doubling.
    Source  the iteration's exact error, and the seed's, ``approx.ReciprocalFit``.
    """
    rows = {n: _narrowed_rows(c, seen.softmaxes[n], tops) for n, c in trained.softmaxes.items()}
    return replace(trained, softmaxes=rows)


def _narrowed_rows(
    trained: SoftmaxCalibration, seen: SoftmaxCalibration, tops: Mapping[str, int]
) -> SoftmaxCalibration:
    fit, new, name = trained.fit, seen.fit, trained.name
    moved = math.exp((new.midpoint - fit.midpoint) / fit.delta_2)
    clear = CLEAR * seen.observed_init.hi * moved
    init, init_count = _brought_down(fit.init, max(new.init.hi * moved, clear), trained.init_count)
    while init.hi < clear:
        init, init_count = replace(init, hi=init.hi * _worth(init)), min(init_count + 1, tops[f"{name}/init"])
    fit, refine_count, second = replace(fit, init=init), trained.refine_count, seen.observed_refine
    if fit.refine is not None and new.refine is not None and second is not None:
        refine, refine_count = _brought_down(fit.refine, max(new.refine.hi, CLEAR * second.hi), refine_count)
        fit = replace(fit, refine=refine)
    return replace(trained, fit=fit, init_count=init_count, refine_count=refine_count)


def _brought_down(fit: ReciprocalFit, end: float, count: int) -> tuple[ReciprocalFit, int]:
    """The domain with its end less than one iteration's worth above ``end``, and the count that is left."""
    least = max(end, WIDE * fit.lo)
    while count > FEWEST and fit.hi / _worth(fit) >= least:
        fit, count = replace(fit, hi=fit.hi / _worth(fit)), count - 1
    return fit, count


def _worth(fit: ReciprocalFit) -> float:
    """By how much a domain's end moves for an iteration."""
    return 2.0 if fit.solver == "plain" else 4.0
