# SPDX-License-Identifier: Apache-2.0
"""Domains move by whole iterations: errors stay, nothing seen comes near an end, counts add up."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from heatfhe.approx import ReciprocalFit, fit_inverse_sqrt, inverse_sqrt, reciprocal
from heatfhe.ranges import calibrate
from heatfhe.records import Calibration, Domain, NormCalibration
from heatfhe.sites import prepare
from heatfhe.training.constants import CLEAR, FEWEST, WIDE, merge, narrowed
from tests.gpt2_tiny import random_tokens, tiny_gpt2

WORTH = {"plain": 2.0, "relaxed": 4.0}


@pytest.fixture(scope="module", params=("plain", "relaxed"))
def seen(request: pytest.FixtureRequest) -> Calibration:
    tokens = [random_tokens(i) for i in range(4)]
    return calibrate(prepare(tiny_gpt2(5)), tokens, 1e-4, solver=request.param, delta_2=2, argmax=False)


def tops(calibration: Calibration, more: int = 40) -> dict[str, int]:
    return {name: count + more for name, count in calibration.counts().items()}


def widened(seen: Calibration, by: float, more: int) -> Calibration:
    """As if sums had come down since: first domains end ``by`` times as far, counts are ``more``."""
    rows = {
        name: replace(
            c, fit=replace(c.fit, init=replace(c.fit.init, hi=c.fit.init.hi * by)), init_count=c.init_count + more
        )
        for name, c in seen.softmaxes.items()
    }
    return replace(seen, softmaxes=rows)


@pytest.mark.parametrize("seed", range(10))
def test_a_narrowed_domain_errs_no_more_and_saves_its_halvings(seen: Calibration, seed: int) -> None:
    rng = np.random.default_rng(seed)
    by, more = float(2.0 ** rng.uniform(0, 14)), int(rng.integers(2, 10))
    wide = widened(seen, by, more)
    for name, made in narrowed(wide, seen, tops(wide)).softmaxes.items():
        was, now, asked = wide.softmaxes[name], made.fit.init, seen.softmaxes[name]
        worth, saved = WORTH[seen.solver], was.init_count - made.init_count
        end = max(asked.fit.init.hi, CLEAR * asked.observed_init.hi, WIDE * now.lo)
        assert now.hi * worth**saved == pytest.approx(was.fit.init.hi)
        assert now.hi >= max(min(end, was.fit.init.hi), CLEAR * asked.observed_init.hi) * (1 - 1e-12)
        assert made.init_count <= FEWEST or now.hi < worth * end
        assert (made.refine_count, made.fit.lo, made.fit.hi) == (was.refine_count, was.fit.lo, was.fit.hi)
        if seen.solver == "plain":
            d = np.geomspace(now.lo, now.hi / CLEAR, 2001)
            before, after = (
                np.abs(1 - d * reciprocal(d, fit, count))
                for fit, count in ((was.fit.init, was.init_count), (now, made.init_count))
            )
            assert (after <= np.maximum(before**0.98, 2.0 ** -(2.0**made.init_count)) + 1e-12).all()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6, 0.99])
def test_a_domain_that_sums_have_grown_into_ends_further_for_more_iterations(seen: Calibration, share: float) -> None:
    """Up to their guards sums grow while training; what no calibration has seen may lie CLEAR times higher."""
    worth, wide = WORTH[seen.solver], widened(seen, 1024.0, 6)
    grown = {
        name: replace(c, observed_init=Domain(lo=c.observed_init.lo, hi=share * c.fit.init.hi))
        for name, c in wide.softmaxes.items()
    }
    full = replace(wide, softmaxes=grown)
    for name, made in narrowed(full, full, tops(full)).softmaxes.items():
        was = full.softmaxes[name]
        more = made.init_count - was.init_count
        assert more == max(0, math.ceil(math.log(CLEAR * share, worth) - 1e-9))
        assert made.fit.init.hi == pytest.approx(was.fit.init.hi * worth**more)
        assert made.fit.refine == was.fit.refine
        if seen.solver == "plain" and more:
            d = np.geomspace(was.fit.init.lo, was.fit.init.hi / 64, 500)
            near, far = (
                np.abs(1 - d * reciprocal(d, c.fit.init, count))
                for c, count in ((was, was.init_count - 6), (made, made.init_count - 6))
            )
            assert np.abs(np.log(far / near)).max() < 0.3  # far below both ends, where neither has converged
    tight = narrowed(full, full, full.counts())
    assert tight.counts() == full.counts()
    ends = [c.fit.init.hi for c in narrowed(full, full, tops(full)).softmaxes.values()]
    assert [c.fit.init.hi for c in tight.softmaxes.values()] == ends


def test_what_fills_its_domain_as_asked_stays(seen: Calibration) -> None:
    wide = widened(seen, 3.9, 5)
    full = {
        name: replace(c, observed_init=Domain(lo=c.observed_init.lo, hi=c.fit.init.hi / CLEAR))
        for name, c in wide.softmaxes.items()
    }
    assert narrowed(wide, replace(wide, softmaxes=full), tops(wide)) == wide


def test_an_iteration_is_a_halving_far_below_the_end() -> None:
    wide, near = ReciprocalFit(lo=1e-2, hi=1e5), ReciprocalFit(lo=1e-2, hi=1e5 / 2**6)
    d = np.geomspace(1e-2, 1e-1, 100)
    far, close = reciprocal(d, wide, 16), reciprocal(d, near, 10)
    assert np.abs(far / close - 1).max() < 1e-3
    assert math.isclose(float(far[0]) * 1e-2, 1 - math.exp(-8 * 1e-2 / 1e5 * 2**16), rel_tol=1e-2)


def test_the_end_of_a_norms_domain_that_was_not_left_may_stay(seen: Calibration) -> None:
    name, norm = next(iter(seen.norms.items()))
    fit = norm.fit

    def merged(lo: float, hi: float, *, ends_apart: bool = True) -> NormCalibration:
        """What becomes of the domain when rows were seen in [lo, hi], and fitted anew with a margin of 1.2."""
        new = fit_inverse_sqrt(lo, 1.2 * hi, solver=fit.solver, form=fit.form)
        again = replace(norm, observed=replace(norm.observed, lo=lo, hi=hi), fit=new)
        found = replace(seen, norms={**seen.norms, name: again})
        return merge(seen, found, ends_apart=ends_apart).norms[name]

    below = merged(0.999 * fit.lo, 0.9 * fit.hi)
    assert (below.fit.lo, below.fit.hi) == (0.999 * fit.lo, fit.hi)
    above = merged(1.1 * fit.lo, 1.001 * fit.hi)
    assert (above.fit.lo, above.fit.hi) == pytest.approx((fit.lo, 1.2012 * fit.hi), rel=1e-12)
    assert merged(1.1 * fit.lo, 0.9 * fit.hi) == norm
    both = merged(0.999 * fit.lo, 0.9 * fit.hi, ends_apart=False)
    assert both.fit.hi == pytest.approx(1.08 * fit.hi, rel=1e-12)
    z = np.geomspace(fit.lo, fit.hi, 401)
    was = inverse_sqrt(z, fit, 1, 0)
    moved = [float(np.abs(inverse_sqrt(z, one.fit, 1, 0) / was - 1).max()) for one in (below, both)]
    assert moved[0] < 1e-3 < 1e-2 < moved[1]  # in what one iteration says of the same rows
