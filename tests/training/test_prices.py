# SPDX-License-Identifier: Apache-2.0
"""Plan-aware HEAT: the pull on a site's count goes by its price, prices are taken again as counts fall, runs resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from heatfhe.errors import ConfigError, TrainingError
from heatfhe.halting import BackOff
from heatfhe.records import Calibration
from heatfhe.training import ablation, read_log, recipe
from heatfhe.training.diagnose import MOST_WEIGHT, priced_weights
from heatfhe.training.losses import iteration_loss, site_weights
from tests.training.short import KillAt, Killed, fresh, go, short


class Made:
    """Prices that are given; it remembers the counts it was asked about."""

    def __init__(self, dear: str) -> None:
        self.dear, self.asked = dear, []  # type: ignore[var-annotated]

    @property
    def name(self) -> str:
        return f"dear {self.dear}"

    def __call__(self, calibration: Calibration) -> Mapping[str, float]:
        counts = calibration.counts()
        self.asked.append(counts)
        return {name: 1.0 if self.dear in name else 0.0 for name in counts}


    def on_stairs(
        self, calibration: Calibration, reach: int, bounds: Mapping[str, tuple[int, int]]
    ) -> Mapping[str, int]:
        """Iterations from the first softmax to the last."""
        counts, names = calibration.counts(), list(calibration.softmaxes)
        assert all(bounds[site][0] <= counts[site] <= bounds[site][1] for site in counts)
        given, taken = f"{names[0]}/init", f"{names[-1]}/init"
        return {**counts, given: counts[given] - reach, taken: min(counts[taken] + reach, bounds[taken][1])}


def test_weights_keep_a_share_for_every_site_and_are_bounded() -> None:
    found = priced_weights({"a": 0.0, "b": 1.0, "c": 2.0}, 0.8)
    assert found == pytest.approx({"a": 0.2, "b": 1.0, "c": 1.8})
    lone = priced_weights({"dear": 1.0, **{f"free{k}": 0.0 for k in range(9)}}, 1.0)
    assert lone["dear"] == MOST_WEIGHT  # ten times the mean
    assert lone["free0"] == 0.0
    assert priced_weights({"a": 0.0, "b": 0.0}, 0.8) == {"a": 1.0, "b": 1.0}


def test_the_pull_on_a_site_goes_by_its_weight() -> None:
    prepared = fresh()
    targets = BackOff.start(prepared.sites)
    first, second = prepared.sites[0].name, prepared.sites[1].name
    plain = _gradient(prepared, targets, None)
    weighed = _gradient(prepared, targets, {s.name: 3.0 if s.name == first else 0.0 for s in prepared.sites})
    rows = prepared.halting.rows
    assert torch.allclose(weighed[rows[first]], 3.0 * plain[rows[first]], rtol=1e-5)
    assert not weighed[rows[second]].any()
    assert torch.equal(site_weights(prepared, {}), torch.ones(len(prepared.sites)))


def _gradient(prepared, targets, weights):  # type: ignore[no-untyped-def]
    logits = prepared.halting.logits.requires_grad_(True)
    logits.grad = None
    iteration_loss(prepared, short(), targets, 3, weights).backward()
    return logits.grad.clone()


def test_dear_sites_come_down_further_than_free_ones() -> None:
    """The same run twice, with opposite prices: whichever family is dear ends lower."""
    base = recipe("tiny")
    counts = {}
    for dear in ("attn", "ln"):
        prices = Made(dear)
        found = go(fresh(), replace(base, price_share=1.0, price_every=6), prices=prices)
        counts[dear] = found.iterations
        assert len(prices.asked) == 4  # 24 updates, every six
        assert prices.asked[-1] != prices.asked[0]  # at the counts of that moment

    def norms(found: Mapping[str, int]) -> int:
        return found["norm_goldschmidt"] + found["norm_newton"]

    assert norms(counts["ln"]) < norms(counts["attn"])
    assert sum(counts["attn"].values()) - norms(counts["attn"]) < sum(counts["ln"].values()) - norms(counts["ln"])


def test_a_killed_run_goes_on_with_the_same_weights(tmp_path: Path) -> None:
    chosen = short(price_share=0.8, price_every=3, checkpoint_every=1)
    whole = fresh()
    go(whole, chosen, tmp_path / "whole", prices=Made("attn"))
    killed = fresh()
    with pytest.raises(Killed):
        go(killed, chosen, tmp_path / "killed", prices=Made("attn"), reporter=KillAt(12))
    again = fresh()
    go(again, chosen, tmp_path / "killed", prices=Made("attn"))
    for a, b in zip(whole.weights(), again.weights(), strict=True):
        assert torch.equal(a, b)
    taken, wanted = (
        [e["weights"] for e in read_log(tmp_path / name) if "weights" in e] for name in ("killed", "whole")
    )
    assert taken == wanted
    assert len(taken) == 2
    with pytest.raises(TrainingError, match="another plan"):
        go(fresh(), chosen, tmp_path / "killed", prices=Made("ln"))


def test_prices_are_asked_for_and_shares_are_shares() -> None:
    with pytest.raises(ConfigError, match=r"train\(prices=.*--plan-set"):
        go(fresh(), short(price_share=0.5))
    with pytest.raises(ConfigError, match="price_share"):
        short(price_share=1.5)
    base = recipe("default-model")
    aware = ablation("plan-aware", base)
    assert (aware.price_share, aware.price_every) == (0.8, 40)
    assert replace(base, price_every=7).digest == base.digest  # not used, not part of it
    assert replace(aware, price_every=7).digest != aware.digest
    assert aware.scaled(0.5).price_every == 20


def test_frozen_counts_move_to_the_stairs_and_the_cooldown_trains_them(tmp_path: Path) -> None:
    chosen = short(stairs=5, checkpoint_every=1)
    whole, plain = fresh(), fresh()
    found = go(whole, chosen, tmp_path / "whole", prices=Made("attn"))
    before = go(plain, replace(chosen, stairs=0), tmp_path / "plain")
    names = list(found.calibration.softmaxes)
    (entry,) = [e for e in read_log(tmp_path / "whole") if "changes" in e]
    moved, learned = entry["changes"], before.calibration.counts()
    assert list(moved) == [f"{names[0]}/init", f"{names[-1]}/init"]
    assert moved[f"{names[0]}/init"] == -5 < 0 < moved[f"{names[-1]}/init"]
    assert found.calibration.counts() == {site: n + moved.get(site, 0) for site, n in learned.items()}
    assert not all(torch.equal(a, b) for a, b in zip(whole.weights(), plain.weights(), strict=True))
    killed = fresh()
    with pytest.raises(Killed):
        go(killed, chosen, tmp_path / "killed", prices=Made("attn"), reporter=KillAt(chosen.updates - 1))
    again = fresh()
    go(again, chosen, tmp_path / "killed", prices=Made("attn"))
    assert all(torch.equal(a, b) for a, b in zip(whole.weights(), again.weights(), strict=True))


def test_stairs_are_learned_counts_and_need_prices() -> None:
    with pytest.raises(ConfigError, match=r"train\(prices=.*--plan-set"):
        go(fresh(), short(stairs=1))
    with pytest.raises(ConfigError, match="stairs are iterations from 0 to 16, got 17"):
        short(stairs=17)
    base = recipe("default-model")
    with pytest.raises(ConfigError, match="phase two must be soft"):
        replace(ablation("control", base), stairs=1)
    made = ablation("stairs", base)
    assert (made.stairs, made.priced, base.priced) == (3, True, False)
    assert made.digest != base.digest
