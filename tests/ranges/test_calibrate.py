# SPDX-License-Identifier: Apache-2.0
"""calibrate: counts are the smallest that meet the tolerance, rules and solvers, softmax error, refusals by name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from heatfhe.approx import inverse_sqrt, reciprocal
from heatfhe.errors import ConfigError, SiteError
from heatfhe.ranges import FitOptions, Observation, Range, calibrate, fit_calibration, observe, refit
from heatfhe.records import Calibration
from heatfhe.sites import Prepared, prepare
from tests.approx.steps import softmax_at
from tests.gpt2_tiny import random_tokens, tiny_gpt2, worst

TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(tiny_gpt2(5, width=32))


@pytest.fixture(scope="module")
def seen(prepared: Prepared) -> Observation:
    return observe(prepared, [random_tokens(s) for s in range(4)])


def fit(prepared: Prepared, seen: Observation, **options: object) -> Calibration:
    return fit_calibration(prepared.architecture, seen, FitOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("solver", ["plain", "relaxed"])
@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_per_site_counts_are_the_smallest(prepared: Prepared, seen: Observation, solver: str, tolerance: float) -> None:
    c = fit(prepared, seen, tolerance=tolerance, solver=solver)
    for norm in c.norms.values():
        z = np.geomspace(norm.fit.lo, norm.fit.hi, 3001)
        y = inverse_sqrt(z, norm.fit, norm.goldschmidt_count, norm.newton_count)
        assert np.abs(1 - y * np.sqrt(z)).max() <= tolerance * 1.001
        q = norm.fit.denominator
        assert norm.goldschmidt_count == 1 or q.error(norm.goldschmidt_count - 1) > tolerance
        assert norm.newton_count == 0 or norm.fit.error(norm.goldschmidt_count, norm.newton_count - 1) > tolerance
    for row in c.softmaxes.values():
        assert row.fit.init.error(row.init_count) <= tolerance
        assert row.init_count == 1 or row.fit.init.error(row.init_count - 1) > tolerance
        assert row.fit.refine is not None
        assert row.fit.refine.error(row.refine_count) <= tolerance
        assert row.refine_count == 1 or row.fit.refine.error(row.refine_count - 1) > tolerance


def test_margins_go_where_leaving_is_fatal(prepared: Prepared, seen: Observation) -> None:
    c = fit(prepared, seen, margin=1.3)
    for name, norm in c.norms.items():
        assert norm.fit.lo == seen.norms[name].lo
        assert norm.fit.hi == pytest.approx(1.3 * seen.norms[name].hi)
    for name, row in c.softmaxes.items():
        assert row.fit.lo < seen.scores[name].lo < seen.scores[name].hi < row.fit.hi
        rise = math.exp((row.fit.hi - seen.scores[name].hi) / row.fit.delta_2)  # every score up by its margin
        ceiling = math.exp((row.fit.hi - row.fit.midpoint) / row.fit.delta_2)  # every score at the top of its domain
        reach = min(max(1.3, rise) * row.observed_init.hi, max(ceiling, 1.3 * row.observed_init.hi))
        assert row.fit.init.hi == pytest.approx(reach)
        assert row.fit.init.lo == pytest.approx(row.observed_init.lo)
        assert row.fit.refine is not None
        assert row.fit.refine.lo <= 1.0
    for name, place in c.activations.items():
        assert place.fit.bound >= 1.3 * max(-seen.activations[name].lo, seen.activations[name].hi)


@pytest.mark.parametrize("solver", ["plain", "relaxed"])
def test_joint_counts_never_cost_more(prepared: Prepared, seen: Observation, solver: str) -> None:
    for tolerance in TOLERANCES:
        alone = fit(prepared, seen, tolerance=tolerance, solver=solver, delta_2=2)
        joint = fit(prepared, seen, tolerance=tolerance, solver=solver, delta_2=2, rule="joint")
        for name in alone.norms:
            a, j = alone.norms[name], joint.norms[name]
            assert j.fit.levels(j.goldschmidt_count, j.newton_count) <= a.fit.levels(
                a.goldschmidt_count, a.newton_count
            )
            assert j.fit.error(j.goldschmidt_count, j.newton_count) <= tolerance
        for name in alone.softmaxes:
            b, k = alone.softmaxes[name], joint.softmaxes[name]
            assert k.init_count + k.refine_count <= b.init_count + b.refine_count
            assert k.fit.refine is not None
            assert k.fit.refine.error(k.refine_count) <= tolerance
            assert k.fit.refine.lo <= (1 - k.fit.init.error(k.init_count)) ** 2


def test_relaxed_never_needs_more_iterations(prepared: Prepared, seen: Observation) -> None:
    for tolerance in TOLERANCES:
        plain, relaxed = (
            fit(prepared, seen, tolerance=tolerance, solver=s, delta_2=2).iterations() for s in ("plain", "relaxed")
        )
        assert relaxed["norm_goldschmidt"] <= plain["norm_goldschmidt"]
        assert relaxed["softmax_init"] <= plain["softmax_init"]
        assert relaxed["softmax_refine"] <= plain["softmax_refine"]


@pytest.mark.parametrize("rule", ["per-site", "joint"])
@pytest.mark.parametrize("solver", ["plain", "relaxed"])
def test_calibrated_softmax_is_within_1e_4_of_the_exact_one(
    prepared: Prepared, seen: Observation, rule: str, solver: str
) -> None:
    c = fit(prepared, seen, rule=rule, solver=solver, tolerance=1e-4, exponential_budget=1e-5)
    rows: dict[str, list[np.ndarray]] = {}

    def keep(name: str, value: torch.Tensor) -> torch.Tensor:
        if name.endswith("/scores"):
            rows.setdefault(name.split("/")[0], []).append(value.double().numpy().reshape(-1, 16, 16))
        return value

    with prepared.tapped(keep):
        for seed in range(4):
            prepared.logits(random_tokens(seed), mode="exact")
    for name, row in c.softmaxes.items():
        scores = np.concatenate(rows[name])
        for length in (1, 2, 5, 16):
            s = scores[:, length - 1, :length]
            y = softmax_at(
                (s - row.fit.midpoint) / (row.fit.width / 2),
                row.fit,
                (row.init_count, row.refine_count),
                row_sum=lambda r: r.sum(-1, keepdims=True),
                row_length=float(length),
            )
            e = np.exp(s - s.max(-1, keepdims=True))
            assert np.abs(y / length - e / e.sum(-1, keepdims=True)).max() < 1e-4


@pytest.mark.parametrize("count", range(9))
def test_a_relaxed_first_reciprocal_of_any_count_never_brings_the_second_out_of_its_domain(
    prepared: Prepared, seen: Observation, count: int
) -> None:
    """Rows where one token takes all, at every mean the first one converges for: what r1 makes of their length."""
    options = FitOptions(solver="relaxed", delta_2=2, argmax=False)
    made = fit_calibration(prepared.architecture, seen, options)
    ends = {name: row.fit.refine.hi for name, row in made.softmaxes.items() if row.fit.refine is not None}
    lowered = {name: count if name.endswith("/init") else n for name, n in made.counts().items()}
    again = fit_calibration(prepared.architecture, seen, options, counts=lowered)
    for row in (*made.softmaxes.values(), *again.softmaxes.values()):
        init, refine = row.fit.init, row.fit.refine
        assert refine is not None
        assert (init.solver, refine.solver) == ("below", "relaxed")
        assert refine.hi == ends[row.name] <= seen.context  # the same at every count, never above the row length
        means = np.geomspace(1e-3 * init.lo, init.lo + init.hi, 2001)[:-1]
        assert (refine.hi * (reciprocal(means, init, count) * means) ** 2).max() <= refine.hi * (1 + 1e-12)
        over = replace(init, solver="relaxed")  # what it would be without the division by 1 + e
        assert (refine.hi * (reciprocal(means, over, count) * means) ** 2).max() > refine.hi


def test_one_wide_row_does_not_break_other_blocks(prepared: Prepared, seen: Observation) -> None:
    wide = replace(seen, scores={**seen.scores, "h.1.attn": Range(-60.0, 70.0)})
    wide.log_means = {**seen.log_means, "h.1.attn": {t: Range(-55.0 / t, 68.0 / t) for t in (1, 2, 4, 8, 16, 32)}}
    c = fit(prepared, wide)
    assert c.softmaxes["h.1.attn"].fit.delta_2 >= 4
    assert c.softmaxes["h.0.attn"] == fit(prepared, seen).softmaxes["h.0.attn"]


@pytest.mark.parametrize(
    ("top", "words"),
    [(600.0, None), (1500.0, "64 iterations"), (1e5, "beyond what a double holds"), (1e9, "too wide for 0.0001")],
)
def test_scores_wider_than_doubles_reach_are_fitted_or_refused_by_site(
    prepared: Prepared, seen: Observation, top: float, words: str | None
) -> None:
    """An exponential or a ratio that no double holds is no crash: larger factors are tried, and then it is said."""
    wide = replace(seen, scores={**seen.scores, "h.1.attn": Range(-top, top)})
    wide.log_means = {**seen.log_means, "h.1.attn": {t: Range(-2.0, 0.95 * top / t) for t in (1, 2, 4, 8, 16, 32)}}
    if words is None:
        assert fit(prepared, wide).softmaxes["h.1.attn"].fit.delta_2 == 32
    else:
        with pytest.raises(SiteError, match=rf"h\.1\.attn/init: scores in .* have no fit: .*{words}"):
            fit(prepared, wide)


def test_equal_bounds_share_a_fit(prepared: Prepared, seen: Observation) -> None:
    both = replace(seen, activations={name: Range(-2.9, 3.0) for name in seen.activations})
    fits = [a.fit for a in fit(prepared, both).activations.values()]
    assert fits[0] is fits[1]
    assert fits[0].bound == 2.0 ** (math.ceil(4 * math.log2(3.0 * 1.2)) / 4)
    assert fits[0].error <= 1e-3


def test_refit_keeps_counts_and_deltas_and_follows_the_weights() -> None:
    prepared, tokens = prepare(tiny_gpt2(6)), [random_tokens(6)]
    first = calibrate(prepared, tokens, delta_2=2)
    prepared.adopt(first)
    prepared.set_counts({"h.0.attn/init": 3, "h.0.ln_1/newton": 1})
    with torch.no_grad():
        prepared.model.transformer.wte.weight.mul_(1.5)
    again = refit(prepared, tokens)
    assert again.counts() == prepared.counts()
    assert again.norms["h.0.ln_1"].observed.hi > first.norms["h.0.ln_1"].observed.hi
    assert {r.fit.delta_2 for r in again.softmaxes.values()} == {2}
    assert again.fingerprint == prepared.fingerprint() != first.fingerprint
    assert prepared.mode == "exact"
    prepared.adopt(again, keep_logits=True)
    prepared.set_mode("training", halting="hard", guards=False)
    with torch.no_grad():
        hard = prepared(tokens[0])
    assert worst(prepared.logits(tokens[0]), hard) < 0.02


def test_round_trip_through_a_file(prepared: Prepared, seen: Observation, tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "calibration.json"
    c = fit(prepared, seen, solver="relaxed", rule="joint", form="partial")
    c.save(path)
    assert Calibration.load(path) == c


def test_bad_ranges_name_the_site_and_the_numbers(prepared: Prepared, seen: Observation) -> None:
    touching = replace(seen, norms={**seen.norms, "ln_f": Range(0.0, 3.0)})
    with pytest.raises(SiteError, match=r"ln_f/goldschmidt: its domain \[0, 3\] touches zero"):
        fit(prepared, touching)
    empty = replace(seen, norms={**seen.norms, "h.1.ln_2": Range()})
    with pytest.raises(SiteError, match=r"h\.1\.ln_2/goldschmidt: nothing was seen"):
        fit(prepared, empty)
    wide = replace(seen, norms={**seen.norms, "ln_f": Range(1e-6, 1e6)})
    with pytest.raises(SiteError, match=r"ln_f/goldschmidt: \[1e-06, 1\.2e\+06\] spans a ratio of"):
        fit(prepared, wide)
    huge = replace(seen, scores={**seen.scores, "h.0.attn": Range(-1e7, 1e7)})
    with pytest.raises(SiteError, match=r"h\.0\.attn/init: scores in \[-1e\+07, 1e\+07\] have no fit"):
        fit(prepared, huge)
    huge = replace(seen, activations={**seen.activations, "h.0.mlp": Range(-1e5, 1e5)})
    with pytest.raises(SiteError, match=r"h\.0\.mlp: gelu_new on"):
        fit(prepared, huge)


def test_options_are_checked() -> None:
    for options, message in (
        ({"tolerance": 0.0}, "strictly between 0 and 1"),
        ({"rule": "global"}, "unknown rule 'global'"),
        ({"margin": 1.0}, r"lies in \(1, 10\]"),
        ({"delta_2": 3}, "delta_2 must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            FitOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="adopted a calibration"):
        refit(prepare(tiny_gpt2()), [random_tokens()])
