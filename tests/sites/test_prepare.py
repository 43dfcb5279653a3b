# SPDX-License-Identifier: Apache-2.0
"""prepare and restore on real GPT-2 modules: names, modes, gradients, taps, files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heatfhe.errors import ConfigError, DataError, FileFormatError, SiteError
from heatfhe.ranges import calibrate
from heatfhe.records import Calibration
from heatfhe.sites import (
    PrepareConfig,
    Prepared,
    RangeBounds,
    load_prepared,
    prepare,
    restore,
    save_prepared,
)
from tests.gpt2_tiny import random_tokens, tiny_gpt2, worst


@lru_cache(maxsize=4)
def calibration_of(seed: int) -> Calibration:
    return calibrate(prepare(tiny_gpt2(seed)), [random_tokens(seed)], delta_2=2)


def calibrated(seed: int = 0) -> Prepared:
    prepared = prepare(tiny_gpt2(seed))
    prepared.adopt(calibration_of(seed))
    return prepared


def test_names_of_the_checkpoint_stay() -> None:
    model = tiny_gpt2()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prepared = prepare(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert sum(p.numel() for p in prepared.weights()) == sum(p.numel() for p in tiny_gpt2().parameters())
    assert len(list(prepared.halting_logits())) == 1


def test_prepared_gpt2_small_has_74_sites() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        prepared = prepare(GPT2LMHeadModel(GPT2Config()))
    assert len(prepared.sites) == 74


def test_exact_mode_is_the_parent() -> None:
    model, tokens = tiny_gpt2(), random_tokens()
    with torch.no_grad():
        wanted = model(tokens).logits
        prepared = prepare(model)
        assert worst(prepared(tokens), wanted) < 1e-5
        prepared.set_mode("exact", bounds=RangeBounds())  # through the watched path as well
        assert worst(prepared(tokens), wanted) < 1e-5


def test_calibrated_logits_match_the_parent_at_large_counts() -> None:
    prepared, tokens = calibrated(), random_tokens()
    prepared.set_counts({s.name: s.max_count for s in prepared.sites})
    prepared.set_mode("training", halting="hard")
    with torch.no_grad():
        hard = prepared(tokens)
    assert worst(hard, prepared.logits(tokens, mode="exact")) < 1e-4
    assert (
        worst(prepared.logits(tokens, "float64"), prepared.logits(tokens, "float64", mode="exact")) < 5e-3
    )  # the fits


def test_soft_counts_have_gradients_for_weights_and_logits() -> None:
    prepared = calibrated()
    prepared.set_mode(
        "training", halting="soft", bounds=RangeBounds(activation=0.1, score=0.1, denominator=0.1, variance=0.1)
    )
    prepared(random_tokens()).square().mean().backward()
    for name, parameter in prepared.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name
    assert set(prepared.range_terms()) == {"activation", "score", "denominator", "variance"}
    assert all(float(v.detach()) > 0 for v in prepared.range_terms().values())
    row = prepared.halting.rows["h.0.attn/init"]
    assert float(prepared.halting.logits.grad[row].abs().sum()) > 0


def test_rows_are_held_by_their_sums_in_every_mode_whatever_the_midpoint() -> None:
    """The squeeze holds the same logarithm as phase two, which sees sums about a midpoint of its own."""
    prepared, tokens, bound = calibrated(), random_tokens(), 0.2
    prepared.set_counts({s.name: s.max_count for s in prepared.sites})
    wanted = []

    def tap(name: str, value: torch.Tensor) -> torch.Tensor:
        if name.endswith("/scores"):
            length = value.shape[-1]
            row = value.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
            heights = torch.logsumexp(row / 2, dim=-1) - torch.arange(1, length + 1).log()
            wanted.append(torch.relu(heights - bound).square().sum() / (len(tokens) * length))
        return value

    with prepared.tapped(tap):
        prepared.logits(tokens, mode="exact")
    bounds, total = RangeBounds(denominator=bound), float(sum(wanted))
    assert total > 0.01
    assert max(abs(c.fit.midpoint) for c in prepared.calibration.softmaxes.values()) > 0.05
    for mode in ("exact", "training"):
        prepared.set_mode(mode, halting="hard", bounds=bounds)
        with torch.no_grad():
            prepared(tokens)
        assert float(prepared.range_terms()["denominator"]) == pytest.approx(total, rel=1e-4), mode


def test_soft_with_one_hot_distributions_is_hard() -> None:
    prepared, tokens = calibrated(), random_tokens()
    wanted = {s.name: max(s.floor, prepared.counts()[s.name]) for s in prepared.sites}
    prepared.set_counts(wanted)
    with torch.no_grad():
        for row, site in enumerate(prepared.sites):
            prepared.halting.logits[row] = -60.0
            prepared.halting.logits[row, wanted[site.name] :] = 60.0
        assert prepared.modes() == wanted
        prepared.set_mode("training", halting="soft")
        soft = prepared(tokens)
        prepared.set_mode("training", halting="hard")
        assert worst(soft, prepared(tokens)) < 1e-5


def test_guards_hold_a_row_that_leaves_its_domain_and_deployment_has_none() -> None:
    prepared, tokens = calibrated(), random_tokens()
    with torch.no_grad():
        prepared.model.transformer.wte.weight.mul_(3.0)
    prepared.set_mode("training", halting="hard")
    logits = prepared(tokens)
    logits.square().mean().backward()
    assert bool(torch.isfinite(logits).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in prepared.weights() if p.grad is not None)
    assert not worst(prepared.logits(tokens), prepared.logits(tokens, mode="exact")) < 1.0
    with pytest.raises(ConfigError, match="no guards"):
        prepared.set_mode("deployed", guards=True)


def test_counts_modes_and_totals() -> None:
    prepared = calibrated()
    assert prepared.counts() == calibration_of(0).counts()
    assert prepared.total_count() == sum(calibration_of(0).iterations().values())
    assert prepared.iterations() == calibration_of(0).iterations()
    assert prepared.modes() == {s.name: s.max_count for s in prepared.sites}
    assert prepared.freeze() == prepared.modes()
    with pytest.raises(SiteError, match=r"h\.0\.attn/init: count 0 lies outside \[1, "):
        prepared.set_counts({"h.0.attn/init": 0})
    with pytest.raises(SiteError, match="raise max_count"):
        prepared.set_counts({"ln_f/newton": 99})
    with pytest.raises(ConfigError, match="no such site"):
        prepared.set_counts({"h.7.attn/init": 3})


def test_adopting_raises_the_largest_count_where_needed() -> None:
    prepared = prepare(tiny_gpt2())
    high = calibration_of(0).with_counts({"h.1.attn/init": 15})
    prepared.adopt(high)
    tops = {s.name: s.max_count for s in prepared.sites}
    assert tops["h.1.attn/init"] == tops["h.0.attn/init"] == 16
    assert tops["h.1.attn/refine"] == 12


def test_modes_before_calibration_are_refused() -> None:
    prepared = prepare(tiny_gpt2())
    with pytest.raises(ConfigError, match="needs fitted constants"):
        prepared.set_mode("training")
    with pytest.raises(ConfigError, match="needs fitted constants"):
        prepared.logits([1, 2, 3])
    with pytest.raises(ConfigError, match="already prepared"):
        prepare(prepared.model)
    with pytest.raises(ConfigError, match="not prepared"):
        restore(tiny_gpt2())


def test_a_calibration_of_another_model_is_refused() -> None:
    with pytest.raises(SiteError, match=r"h\.2\..* belongs to another model"):
        prepare(tiny_gpt2(layers=3)).adopt(calibration_of(0))


def test_padding_is_refused_and_a_full_mask_is_not() -> None:
    prepared, tokens = calibrated(), random_tokens()
    mask = torch.ones_like(tokens)
    prepared.model(tokens, attention_mask=mask)
    mask[0, 0] = 0
    with pytest.raises(DataError, match="do not pad"):
        prepared.model(tokens, attention_mask=mask)


def test_taps_see_and_replace_values() -> None:
    prepared, tokens = calibrated(), random_tokens(rows=1)
    prepared.set_mode("training", halting="hard")
    seen: dict[str, tuple[int, ...]] = {}

    def look(name: str, value: Tensor) -> Tensor:
        seen[name] = tuple(value.shape)
        return value

    with prepared.tapped(look), torch.no_grad():
        plain = prepared(tokens)
    assert seen["h.0.ln_1/z"] == (1, 16, 1)
    assert seen["h.1.attn/scores"] == (1, 2, 16, 16)
    assert {"h.0.attn/sum", "h.0.attn/sum2", "h.0.attn/inverse", "h.0.mlp/in", "h.1.mid", "ln_f"} <= set(seen)
    with prepared.tapped(lambda n, v: v * 1.01 if n == "h.0.attn/inverse" else v), torch.no_grad():
        moved = prepared(tokens)
    assert 1e-6 < worst(moved, plain) < 0.2


def test_key_cache_continues_a_sequence() -> None:
    prepared, tokens = calibrated(), random_tokens(rows=2)
    prepared.set_mode("deployed")
    with torch.no_grad():
        whole = prepared.model(tokens, use_cache=False).logits
        first = prepared.model(tokens[:, :10], use_cache=True)
        rest = prepared.model(tokens[:, 10:], past_key_values=first.past_key_values, use_cache=True)
    assert worst(rest.logits, whole[:, 10:]) < 1e-5


def test_dtype_of_logits_leaves_the_model_alone() -> None:
    prepared, tokens = calibrated(), random_tokens()
    assert prepared.logits(tokens, "float64").dtype == torch.float64
    assert prepared.logits(tokens[0], "float32").shape == (16, 48)
    assert next(prepared.weights()).dtype == torch.float32
    with pytest.raises(ConfigError, match="unknown dtype 'int8'"):
        prepared.logits(tokens, "int8")


def test_side_file_round_trip(tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    prepared, tokens = calibrated(), random_tokens()
    prepared.set_counts({"h.0.attn/init": 2})
    with torch.no_grad():
        prepared.halting.logits[0, 3] += 0.5
    save_prepared(prepared, tmp_path / "model")
    loaded: Any = GPT2LMHeadModel.from_pretrained(tmp_path / "model", local_files_only=True).eval()
    again = load_prepared(tmp_path / "model", loaded)
    assert again.counts() == prepared.counts()
    assert again.halting.dump() == prepared.halting.dump()
    assert torch.equal(again.logits(tokens), prepared.logits(tokens))
    with torch.no_grad():
        loaded.transformer.wpe.weight[0, 0] += 1.0
    with pytest.raises(ConfigError, match="belongs to other weights"):
        load_prepared(tmp_path / "model", restore(again))
    side = tmp_path / "model" / "heat.json"
    side.write_text(side.read_text().replace('"gamma": 0.7', '"gamma": 0.8'))
    with pytest.raises(FileFormatError, match="altered"):
        load_prepared(tmp_path / "model", loaded)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="unknown family 'norm'"):
        PrepareConfig(max_counts={"norm": 3})
    with pytest.raises(ConfigError, match="below its floor"):
        PrepareConfig(max_counts={"softmax_init": 0})
