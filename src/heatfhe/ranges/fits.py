# SPDX-License-Identifier: Apache-2.0
"""From ranges to constants and counts: one function per kind of site, each naming its site when it cannot be fitted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from heatfhe.approx import (
    MOST_SETTLE,
    InverseSqrtFit,
    ReciprocalFit,
    SoftmaxFit,
    fit_activation,
    fit_exponential,
    fit_inverse_sqrt,
    smallest_deltas,
)
from heatfhe.errors import ConfigError, SiteError
from heatfhe.ranges.observe import Observation, Range
from heatfhe.records import FAMILIES, ActivationCalibration, Domain, NormCalibration, SoftmaxCalibration
from heatfhe.stages import Activation, Norm

RULES = ("per-site", "joint")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """How ranges become constants.

    ``margin``                widens a domain where leaving it is fatal: above for a reciprocal and a root (below they
                              converge), about the middle for scores, on both sides for an activation. A softmax's sums
                              widen as the exponential of what their scores may gain.
    ``form``                  how a norm's rational seed is evaluated: ``quotient`` (the paper's), or ``partial``, which
                              saves a level.
    ``delta_2``               fixes the refinement factor of every softmax; None picks the cheapest per block.
    ``exponential_budget``    bound on the fitted exponential's relative error on a row, after all squarings and passes.
    ``activation_tolerance``  largest absolute error of an activation's polynomial.
    ``argmax``                whether to fit the argmax schedule too; training needs it only at its end.
    ``settle``                rounds after the argmax's division, each of which doubles its sharpening.
    """

    tolerance: float = 1e-4
    rule: str = "per-site"
    solver: str = "plain"
    margin: float = 1.2
    form: str = "quotient"
    delta_2: int | None = None
    exponential_budget: float = 1e-4
    activation_tolerance: float = 1e-3
    argmax: bool = True
    settle: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.tolerance < 1.0:
            raise ConfigError(f"a tolerance lies strictly between 0 and 1, got {self.tolerance:g}")
        if self.rule not in RULES:
            raise ConfigError(f"unknown rule {self.rule!r}; have: {', '.join(RULES)}")
        if not 1.0 < self.margin <= 10.0:
            raise ConfigError(f"a margin lies in (1, 10], got {self.margin:g}")
        if self.delta_2 is not None and self.delta_2 not in (2, 4, 8, 16, 32):
            raise ConfigError(f"delta_2 must be 2, 4, 8, 16 or 32, got {self.delta_2}")
        if not 0 <= self.settle <= MOST_SETTLE:
            raise ConfigError(f"settle is a number of rounds from 0 to {MOST_SETTLE}, got {self.settle}")


def fit_norm(
    stage: Norm, width: int, seen: Range, options: FitOptions, counts: Mapping[str, int] | None
) -> NormCalibration:
    """Domain of z above zero, the rational seed on it, and the two counts."""
    name, site = stage.name, f"{stage.name}/goldschmidt"
    seen = seen.checked(site)
    if seen.lo <= 0.0:
        raise SiteError(
            site, f"its domain [{seen.lo:g}, {seen.hi:g}] touches zero; use eps above 0, or other sequences"
        )
    fit = _named(
        site, lambda: fit_inverse_sqrt(seen.lo, seen.hi * options.margin, solver=options.solver, form=options.form)
    )
    if counts is not None:
        goldschmidt, newton = counts[f"{name}/goldschmidt"], counts[f"{name}/newton"]
    else:
        goldschmidt, newton = _named(site, lambda: _norm_counts(fit, options))
    return NormCalibration(
        name=name,
        width=width,
        eps=stage.eps,
        fit=fit,
        goldschmidt_count=goldschmidt,
        newton_count=newton,
        observed=_domain(seen),
    )


def _norm_counts(fit: InverseSqrtFit, options: FitOptions) -> tuple[int, int]:
    floor = FAMILIES["norm_goldschmidt"].floor
    if options.rule == "joint":
        return fit.smallest_counts(options.tolerance, floor=floor)
    goldschmidt = fit.denominator.smallest_count(options.tolerance, floor)
    return goldschmidt, fit.smallest_newton_count(options.tolerance, goldschmidt, FAMILIES["norm_newton"].floor)


def fit_softmax_site(
    name: str,
    seen: Observation,
    options: FitOptions,
    counts: Mapping[str, int] | None,
    delta_2: int | None,
) -> SoftmaxCalibration:
    """Scores' domain, (delta_1, delta_2), exponential, reciprocals and counts: the choice with the fewest levels."""
    scores = seen.scores.get(name, Range()).checked(f"{name}/init")
    middle = 0.5 * (scores.lo + scores.hi)
    half = max(0.5 * (scores.hi - scores.lo) * options.margin, 0.5)  # rows of equal scores still need a width
    lo, hi = middle - half, middle + half
    best: tuple[int, int, SoftmaxCalibration] | None = None
    failure: ConfigError | None = None
    for candidate in (2, 4, 8, 16, 32) if delta_2 is None else (delta_2,):
        try:
            made = _softmax_at(name, seen, options, counts, lo, hi, candidate)
        except ConfigError as err:
            failure = err
            continue
        levels = made.fit.levels(made.init_count, made.refine_count, wide=True)
        if best is None or levels < best[0]:
            best = levels, candidate, made
    if best is None:
        raise SiteError(f"{name}/init", f"scores in [{scores.lo:g}, {scores.hi:g}] have no fit: {failure}")
    return best[2]


def _softmax_at(
    name: str,
    seen: Observation,
    options: FitOptions,
    counts: Mapping[str, int] | None,
    lo: float,
    hi: float,
    delta_2: int,
) -> SoftmaxCalibration:
    middle, floor = 0.5 * (lo + hi), FAMILIES["softmax_init"].floor
    delta_1, _ = smallest_deltas(hi - lo, options.exponential_budget, delta_2)
    exponential = fit_exponential((hi - lo) / (2.0 * delta_1 * delta_2), 8, delta_1.bit_length() - 1)
    log_mean = seen.log_means[name][delta_2]
    first = Range(*(_exponential(end - middle / delta_2) for end in (log_mean.lo, log_mean.hi, log_mean.asked)))
    # A sum of exponentials moves with its scores: where those may widen by a margin, its logarithm may rise as much.
    widening = _exponential((hi - lo) * (1.0 - 1.0 / options.margin) / (2.0 * delta_2))
    reach = min(
        first.hi * max(options.margin, widening), max(_exponential((hi - middle) / delta_2), first.hi * options.margin)
    )
    below = options.solver == "relaxed"
    init = ReciprocalFit(lo=first.asked, hi=reach, solver="below" if below else options.solver)
    # z over every pass: at least 1 (rows of one entry attain it), at most the row length: no first reciprocal
    # exceeds the true one (but a plain seed), whatever its count becomes.
    passes = [tau for tau in seen.log_squares[name] if 2 <= tau <= delta_2]
    second = Range(1.0, max(1.0, *(_exponential(seen.log_squares[name][tau].hi) for tau in passes)))
    longest = max(float(seen.context), 1.0 + options.margin)
    top = min(second.hi * max(options.margin, widening), longest)
    if counts is not None:
        init_count, refine_count = counts[f"{name}/init"], counts[f"{name}/refine"]
        refine = _refine_fit(init, init_count, top, options.solver)
        if name in seen.squares:  # seen at these very counts: the true range, loose first reciprocal and all
            measured = seen.squares[name]
            second = Range(min(1.0, max(measured.lo / options.margin, 1e-6)), max(second.hi, measured.hi))
            end = max(top, measured.hi * options.margin)
            refine = ReciprocalFit(
                lo=min(1.0, max(measured.asked, 1e-6)), hi=min(end, longest) if below else end, solver=options.solver
            )
    else:
        full = init.smallest_count(options.tolerance, floor)
        options_of = range(floor, full + 1) if options.rule == "joint" else (full,)
        tried = []
        for count in options_of:
            domain = _refine_fit(init, count, top, options.solver)
            again = domain.smallest_count(options.tolerance, FAMILIES["softmax_refine"].floor)
            tried.append((count + len(passes) * again, again, count, domain))
        _, refine_count, init_count, refine = min(tried, key=lambda row: row[:3])
    fit = SoftmaxFit(lo=lo, hi=hi, delta_1=delta_1, delta_2=delta_2, exponential=exponential, init=init, refine=refine)
    return SoftmaxCalibration(
        name=name,
        fit=fit,
        init_count=init_count,
        refine_count=refine_count,
        observed=_domain(seen.scores[name]),
        observed_init=_domain(first),
        observed_refine=_domain(second),
    )


def _exponential(x: float) -> float:
    """e^x of a row's scores; refused where it is too large for a double."""
    try:
        return math.exp(x)
    except OverflowError:
        raise ConfigError(f"exponentials reach e^{x:.0f}, beyond what a double holds: squeeze the scores") from None


def _refine_fit(init: ReciprocalFit, count: int, top: float, solver: str) -> ReciprocalFit:
    """The domain of the passes' sums after a first reciprocal of ``count`` iterations: its error widens it, squared.

    Below alone: no first reciprocal exceeds the true one but the plain solver's seed.
    """
    error = init.error(count)
    over = error if count == 0 and init.solver == "plain" else 0.0
    return ReciprocalFit(lo=(1.0 - error) ** 2, hi=top * (1.0 + over) ** 2, solver=solver)


def fit_activation_site(stage: Activation, seen: Range, options: FitOptions) -> ActivationCalibration:
    """The polynomial on the observed bound, rounded up to a grid of four per octave so that blocks share fits."""
    seen = seen.checked(stage.name)
    reach = max(abs(seen.lo), abs(seen.hi), 0.25) * options.margin
    bound = 2.0 ** (math.ceil(4.0 * math.log2(reach)) / 4.0)
    try:
        fit = fit_activation(stage.function, bound, tolerance=options.activation_tolerance)
    except ConfigError as err:
        raise SiteError(stage.name, f"{err} (activation_tolerance, --activation-tolerance)") from err
    return ActivationCalibration(name=stage.name, fit=fit, observed=_domain(seen))


def _domain(seen: Range) -> Domain:
    """What was seen as a record; a single value becomes a sliver around it."""
    if seen.hi > seen.lo:
        return Domain(lo=seen.lo, hi=seen.hi)
    pad = max(abs(seen.lo), 1.0) * 1e-9
    return Domain(lo=seen.lo - pad, hi=seen.hi + pad)


def _named(site: str, make: Callable[[], _R]) -> _R:
    """Run a fit; a refusal comes back under the site's name."""
    try:
        return make()
    except ConfigError as err:
        raise SiteError(site, str(err)) from err
