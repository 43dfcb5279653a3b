# SPDX-License-Identifier: Apache-2.0
"""Keys shifted and domains narrowed within a run: what is written down, who is left out, and that a run goes on."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from heatfhe.errors import ConfigError
from heatfhe.records import Calibration
from heatfhe.training import Recipe, Stopped, ablation, loop, read_log, recipe
from tests.training.short import fresh, go, same_weights, short


def both() -> Recipe:
    return short(centre=True, narrow=True, checkpoint_every=1)


def shifts(folder: Path) -> list[tuple[int, dict[str, dict[str, list[float]]]]]:
    return [(line["step"], line["log_means"]) for line in read_log(folder) if line["kind"] == "centred"]


def test_keys_are_shifted_before_the_squeeze_and_before_phase_two(tmp_path: Path) -> None:
    trained = go(fresh(), both(), tmp_path / "on")
    found = shifts(tmp_path / "on")
    assert [step for step, _ in found] == [1, 3]
    for _, spans in found:
        assert set(spans) == {"h.0.attn", "h.1.attn"}
        assert all(s["after"][1] - s["after"][0] < s["before"][1] - s["before"][0] for s in spans.values())
    assert trained.diverged == 0
    go(fresh(), short(), tmp_path / "off")
    assert shifts(tmp_path / "off") == []


@pytest.mark.parametrize("name", ["control", "control-distilled", "depth-only"])
def test_what_learns_no_counts_or_no_weights_keeps_its_keys(name: str, tmp_path: Path) -> None:
    go(fresh(), ablation(name, both()), tmp_path)
    assert shifts(tmp_path) == []


@pytest.mark.parametrize("after", [1, 2, 3, 6])
def test_a_run_that_is_stopped_goes_on_to_the_same_end(after: int, tmp_path: Path) -> None:
    whole = go(fresh(), both(), tmp_path / "whole")
    asked = iter(range(1, 100))
    with pytest.raises(Stopped):
        go(fresh(), both(), tmp_path / "twice", stop=lambda: next(asked) >= after)
    again = go(fresh(), both(), tmp_path / "twice")
    assert again.calibration == whole.calibration
    assert shifts(tmp_path / "twice") == shifts(tmp_path / "whole")


def refitting() -> Recipe:
    base = short(checkpoint_every=1)
    return replace(base, cooldown=replace(base.cooldown, updates=4), refit_at=0.5)


def test_constants_are_fitted_again_within_a_cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    module = importlib.import_module("heatfhe.training.train")
    original = module.refitted

    def watched(run: loop.Run, argmax: bool) -> Calibration:
        seen.append((run.position.phase, run.position.update))
        return original(run, argmax)

    monkeypatch.setattr(module, "refitted", watched)
    go(fresh(), refitting())
    assert seen == [("cooldown", 0), ("cooldown", 2), ("done", 0)]
    seen.clear()
    go(fresh(), replace(refitting(), refit_at=0.0))
    assert seen == [("cooldown", 0), ("done", 0)]


@pytest.mark.parametrize("after", [7, 8, 9])  # before the refit, right before it, after it
def test_a_run_stopped_about_its_refit_goes_on_to_the_same_end(after: int, tmp_path: Path) -> None:
    whole, twice, asked = fresh(), fresh(), iter(range(1, 100))
    trained = go(whole, refitting(), tmp_path / "whole")
    with pytest.raises(Stopped):
        go(fresh(), refitting(), tmp_path / "twice", stop=lambda: next(asked) >= after)
    again = go(twice, refitting(), tmp_path / "twice")
    assert again.calibration == trained.calibration
    assert same_weights(whole, twice)


@pytest.mark.parametrize(("field", "value"), [("refit_at", 1.0), ("refit_at", -0.1), ("enough", 1.0), ("enough", -0.1)])
def test_a_share_outside_its_range_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{field} is a share of .* in \[0, 1\), got {value}"):
        replace(recipe("tiny"), **{field: value})


def test_counts_stop_at_the_share_that_is_enough() -> None:
    base = short(heat=replace(recipe("tiny").heat, updates=24), iter_ramp=1, support="site")
    free, held = (go(fresh(), replace(base, enough=share)) for share in (0.0, 0.8))
    assert free.seed_iterations == held.seed_iterations
    seed, few, enough = (sum(n.values()) for n in (free.seed_iterations, free.iterations, held.iterations))
    assert few < 0.5 * seed < enough <= 0.8 * seed
