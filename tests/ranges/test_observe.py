# SPDX-License-Identifier: Apache-2.0
"""Observers: ranges equal those computed by hand, streams of any shape, and refusals by name."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heatfhe.errors import DataError, SiteError
from heatfhe.ranges import Range, observe
from heatfhe.sites import prepare
from tests.gpt2_tiny import random_tokens, tiny_gpt2


def by_hand(model: Any, tokens: Tensor) -> dict[str, Any]:
    """Ranges of block 0 in float64, from the model's own tensors."""
    h = model.transformer.h[0]
    x = (model.transformer.wte(tokens) + model.transformer.wpe(torch.arange(tokens.shape[1]))).double()
    centred = x - x.mean(-1, keepdim=True)
    z = centred.square().sum(-1) + x.shape[-1] * h.ln_1.eps
    normed = h.ln_1(x.float())
    q, k, _ = (p.view(*p.shape[:2], 2, -1).transpose(1, 2).double() for p in h.attn.c_attn(normed).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    rows = [scores[b, i, t, : t + 1] for b in range(len(tokens)) for i in range(2) for t in range(tokens.shape[1])]
    return {"z": z, "rows": rows, "stream": centred}


def test_ranges_equal_those_by_hand() -> None:
    model, tokens = tiny_gpt2(3), random_tokens(3)
    with torch.no_grad():
        wanted = by_hand(model, tokens)
    seen = observe(prepare(model), [tokens])
    assert seen.norms["h.0.ln_1"].lo == pytest.approx(float(wanted["z"].min()), rel=1e-5)
    assert seen.norms["h.0.ln_1"].hi == pytest.approx(float(wanted["z"].max()), rel=1e-5)
    assert seen.magnitudes["h.0.in"] == pytest.approx(float(wanted["stream"].abs().max()), rel=1e-5)
    rows = wanted["rows"]
    assert seen.scores["h.0.attn"].lo == pytest.approx(min(float(r.min()) for r in rows), rel=1e-4)
    assert seen.scores["h.0.attn"].hi == pytest.approx(max(float(r.max()) for r in rows), rel=1e-4)
    for tau in (1, 2, 8):
        means = [float(torch.log(torch.exp(r / tau).mean())) for r in rows]
        assert seen.log_means["h.0.attn"][tau].lo == pytest.approx(min(means), abs=1e-4)
        assert seen.log_means["h.0.attn"][tau].hi == pytest.approx(max(means), abs=1e-4)
    for tau in (2, 4):  # z = n sum y^2 of the row that enters the pass, y = softmax(r / tau)
        z = [math.log(len(r) * float(torch.softmax(r / tau, 0).square().sum())) for r in rows]
        assert seen.log_squares["h.0.attn"][tau].hi == pytest.approx(max(z), abs=1e-4)
        assert seen.log_squares["h.0.attn"][tau].lo > -1e-5


def test_rows_are_summed_for_no_more_temperatures_than_asked() -> None:
    prepared, text = prepare(tiny_gpt2(3)), random_tokens(3)
    every, some = observe(prepared, [text]), observe(prepared, [text], deepest=2)
    for name, means in some.log_means.items():
        assert set(means) == {1, 2}
        assert set(some.log_squares[name]) == {2}
        for tau, seen in means.items():
            whole = every.log_means[name][tau]
            assert (seen.lo, seen.hi) == pytest.approx((whole.lo, whole.hi), abs=1e-5)
        assert some.log_squares[name][2].hi == pytest.approx(every.log_squares[name][2].hi, abs=1e-5)


def test_odd_sequences_widen_every_range_and_ask_for_no_accuracy() -> None:
    prepared, text, odd = prepare(tiny_gpt2(3)), random_tokens(3), random_tokens(11)
    alone, both, apart = (observe(prepared, s, odd=o) for s, o in (([text], []), ([text, odd], []), ([text], [odd])))
    assert apart.magnitudes == both.magnitudes
    assert apart.sequences == both.sequences
    lower = 0
    for kind in ("log_means", "log_squares"):
        for name, ranges in getattr(apart, kind).items():
            for tau, found in ranges.items():
                of_both, of_text = getattr(both, kind)[name][tau], getattr(alone, kind)[name][tau]
                assert (found.lo, found.hi, found.least) == (of_both.lo, of_both.hi, of_text.lo)
                lower += found.lo < found.least
    assert lower > 3


def test_streaming_is_one_batch_cut_up() -> None:
    prepared, tokens = prepare(tiny_gpt2()), random_tokens(rows=6)
    whole, parts = observe(prepared, [tokens]), observe(prepared, (row.numpy() for row in tokens))
    assert (whole.sequences, parts.sequences, parts.context) == (6, 6, 16)
    for name in whole.norms:
        assert whole.norms[name].lo == pytest.approx(parts.norms[name].lo, rel=1e-5)
        assert whole.norms[name].hi == pytest.approx(parts.norms[name].hi, rel=1e-5)
    assert whole.magnitudes.keys() == parts.magnitudes.keys()
    assert np.allclose(whole.logit_rows, parts.logit_rows, atol=1e-4)


def test_rows_of_logits_are_kept_evenly_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["heatfhe.ranges.observe"], "_ROWS", 8)
    monkeypatch.setattr(sys.modules["heatfhe.ranges.observe"], "_AT_ENDS", 4)
    prepared = prepare(tiny_gpt2(3))
    batches = [random_tokens(seed) for seed in range(3)]
    every = torch.cat([prepared.logits(b, mode="exact").flatten(0, 1) for b in batches]).detach().double().numpy()
    seen = observe(prepared, batches, temperature=0.0)
    evenly = seen.logit_rows[:-32]  # behind them those furthest out and least far, four each at four powers
    assert 4 <= len(evenly) <= 8
    assert len(every) / seen.logit_stride == pytest.approx(len(evenly), abs=1)
    for i, row in enumerate(evenly):  # in short: the largest entries come first or last, all are the row's own
        own = every[i * seen.logit_stride]
        assert float(np.max(row)) == pytest.approx(float(own.max()), abs=1e-5)


def test_without_an_argmax_no_logits_are_kept() -> None:
    prepared, tokens = prepare(tiny_gpt2()), random_tokens()
    whole, bare = observe(prepared, [tokens]), observe(prepared, [tokens], argmax=False)
    assert (len(whole.logit_rows), len(bare.logit_rows)) == (tokens.numel(), 0)
    assert bare.magnitudes == whole.magnitudes
    assert bare.log_means == whole.log_means


def test_magnitudes_name_every_value_of_a_circuit() -> None:
    prepared = prepare(tiny_gpt2())
    seen = observe(prepared, [random_tokens()])
    wanted = {s.writes for s in prepared.architecture.stages[:-1]} | {
        f"h.{l}.attn/{x}" for l in range(2) for x in "qkv"
    }
    assert wanted <= set(seen.magnitudes)
    assert all(v > 0 for v in seen.magnitudes.values())


def test_watching_changes_nothing_and_is_taken_away() -> None:
    prepared, tokens = prepare(tiny_gpt2()), random_tokens()
    before = prepared.logits(tokens, mode="exact")
    observe(prepared, [tokens])
    assert prepared.switch.tap is None
    assert torch.equal(prepared.logits(tokens, mode="exact"), before)
    assert not prepared.model.transformer.h[0].mlp.c_proj._forward_hooks


def test_empty_and_foreign_sequences_are_refused() -> None:
    prepared = prepare(tiny_gpt2())
    with pytest.raises(DataError, match="saw no sequence"):
        observe(prepared, [])
    with pytest.raises(DataError, match="T >= 1"):
        observe(prepared, [np.zeros(0, dtype=np.int64)])
    with pytest.raises(DataError, match="17 tokens exceeds the model's context of 16"):
        observe(prepared, [np.zeros(17, dtype=np.int64)])
    with pytest.raises(DataError, match="outside the vocabulary of 48"):
        observe(prepared, [[1, 48]])


def test_nan_names_the_first_place_it_shows() -> None:
    model = tiny_gpt2()
    with torch.no_grad():
        model.transformer.h[1].ln_2.bias[0] = float("nan")
    with pytest.raises(SiteError, match=r"h\.1\.mlp\.pre: a value of size nan"):
        observe(prepare(model), [random_tokens()])


def test_an_empty_range_names_its_site() -> None:
    with pytest.raises(SiteError, match="ln_f/newton: nothing was seen"):
        Range().checked("ln_f/newton")
    with pytest.raises(SiteError, match=r"ln_f/newton: values in \[nan, 1\]"):
        Range().add("ln_f/newton", math.nan, 1.0)
