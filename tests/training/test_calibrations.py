# SPDX-License-Identifier: Apache-2.0
"""Keys shifted and domains narrowed within a run: what is written down, who is left out, and that a run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatfhe.training import Recipe, Stopped, ablation, read_log
from tests.training.short import fresh, go, short


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
