# SPDX-License-Identifier: Apache-2.0
"""GPT-2 described: stages, sites, tensors, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heatfhe.errors import ConfigError, SiteError
from heatfhe.models import describe, fingerprint
from heatfhe.ranges import calibrate
from heatfhe.sites import prepare
from heatfhe.stages import Attention, Head, Norm, sites
from tests.gpt2_tiny import random_tokens, tiny_gpt2


def test_stages_name_every_tensor_once() -> None:
    model = tiny_gpt2(layers=3, width=32)
    found = describe(model)
    s = found.shape
    assert (s.layers, s.width, s.heads, s.hidden) == (3, 32, 2, 128)
    state = dict(model.state_dict())
    assert set(found.tensors.values()) | {"lm_head.weight"} == set(state)
    assert [n.name for n in found.of(Norm)] == [f"h.{l}.{n}" for l in range(3) for n in ("ln_1", "ln_2")] + ["ln_f"]
    written = [stage.writes for stage in found.stages]
    assert len(written) == len(set(written))
    assert len(found.paths) == 3 * 8 + 1
    for path in [*found.paths.values(), *found.dropouts.values()]:
        assert model.get_submodule(path) is not None


def test_gpt2_small_has_74_sites() -> None:
    with torch.device("meta"):
        from transformers import GPT2Config, GPT2LMHeadModel

        found = sites(describe(GPT2LMHeadModel(GPT2Config())).stages)
    by_family = [
        sum(s.family == f for s in found) for f in ("norm_goldschmidt", "norm_newton", "softmax_init", "softmax_refine")
    ]
    assert (len(found), by_family) == (74, [25, 25, 12, 12])
    assert found[0].name == "h.0.ln_1/goldschmidt"
    assert found[-1].name == "ln_f/newton"
    assert [s.layer for s in found] == sorted(s.layer for s in found)


def test_max_counts_only_rise() -> None:
    found = sites(describe(tiny_gpt2()).stages, {"softmax_init": 20, "norm_newton": 1})
    tops = {s.family: s.max_count for s in found}
    assert tops == {"norm_goldschmidt": 13, "norm_newton": 3, "softmax_init": 20, "softmax_refine": 12}


def test_untied_head_is_its_own_tensor() -> None:
    model = tiny_gpt2(tie_word_embeddings=False)
    found = describe(model)
    assert found.tensors["lm_head.weight"] == "lm_head.weight"
    assert found.of(Head)[0].weight == "lm_head.weight"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_function": "mish"}, "activation 'mish' has no fit; have: gelu, .*quick_gelu, relu, silu"),
        ({"add_cross_attention": True}, "cross attention is not supported"),
    ],
)
def test_variants_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe(tiny_gpt2(**options))


def test_scales_of_scores_are_numbers_of_a_layer() -> None:
    by_index, both = {"scale_attn_by_inverse_layer_idx": True}, {"reorder_and_upcast_attn": True}
    for options, wanted in [
        ({}, [None, None]),
        (both, [None, None]),
        ({"scale_attn_weights": False}, [1.0, 1.0]),
        (by_index, [8**-0.5, 8**-0.5 / 2]),
        ({"scale_attn_weights": False, **by_index, **both}, [1.0, 0.5]),
    ]:
        found = describe(tiny_gpt2(**options)).of(Attention)
        assert [stage.scale for stage in found] == [None if w is None else pytest.approx(w) for w in wanted]


def test_relu_is_fitted_or_refused_with_the_error_it_reaches() -> None:
    prepared, tokens = prepare(tiny_gpt2(activation_function="relu")), random_tokens(1, rows=8)
    with pytest.raises(
        SiteError, match=r"h\.0\.mlp: relu on \|x\| <= .* reaches .* not 1e-05; .*--activation-tolerance"
    ):
        calibrate(prepared, [tokens], 1e-2, activation_tolerance=1e-5, argmax=False)
    found = calibrate(prepared, [tokens], 1e-2, activation_tolerance=2e-2, argmax=False)
    assert all(c.fit.function == "relu" and c.fit.error <= 2e-2 for c in found.activations.values())


def test_unknown_architecture_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown architecture 'mamba'; have: gpt2"):
        describe(SimpleNamespace(config=SimpleNamespace(model_type="mamba")))
    with pytest.raises(ConfigError, match="unknown architecture 'Linear'"):
        describe(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="GPT2Model: a GPT-2 with its language-model head"):
        describe(tiny_gpt2().transformer)


def test_fingerprint_follows_the_weights() -> None:
    model = tiny_gpt2()
    before = fingerprint(model, describe(model))
    assert fingerprint(tiny_gpt2(), describe(model)) == before
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.bias[3] += 1e-3
    assert fingerprint(model, describe(model)) != before
