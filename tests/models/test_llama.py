# SPDX-License-Identifier: Apache-2.0
"""Llama described: stages, sites, tensors, what is refused by name; and that its positions and groups cost nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.errors import ConfigError
from heatfhe.models import describe
from heatfhe.planning import plan
from heatfhe.sites import prepare
from heatfhe.stages import Attention, Head, Norm, Shape, Stage, sites, stage_from_json, stage_to_json, turns
from tests.gpt2_tiny import worst
from tests.llama_tiny import exported, random_tokens, tiny_llama
from tests.planning.clear_run import clear_params


@pytest.mark.parametrize("seed", range(5))
def test_stages_name_every_tensor_once(seed: int) -> None:
    model = tiny_llama(seed)
    found = describe(model)
    tied = {"lm_head.weight"} if seed % 2 else set()
    assert set(found.tensors.values()) | tied == set(model.state_dict())
    assert found.of(Head)[0].weight == ("embed_tokens.weight" if seed % 2 else "lm_head.weight")
    assert not any(norm.centred for norm in found.of(Norm))
    assert {a.rotary for a in found.of(Attention)} == {10000.0}
    assert [a.shared for a in found.of(Attention)] == 2 * [(3, 4, 1, 3, 1)[seed]]
    assert len(sites(found.stages)) == 2 * (4 + 2) + 2
    for path in found.paths.values():
        assert model.get_submodule(path) is not None


def test_turns_are_those_of_the_model() -> None:
    """Also at positions past the first, with a base of its own, and after a cache."""
    model = tiny_llama(2, rope_parameters={"rope_theta": 500.0, "rope_type": "default"})
    (stage, _) = describe(model).of(Attention)
    assert stage.rotary == 500.0
    cosine, sine = turns(500.0, 6, range(3, 9))
    theirs = model.model.rotary_emb(torch.zeros(1), torch.arange(3, 9)[None])
    assert np.abs(cosine - theirs[0][0].numpy()).max() < 1e-6
    assert np.abs(np.abs(sine) - theirs[1][0].abs().numpy()).max() < 1e-6
    tokens = random_tokens(2, rows=2, length=9)
    with torch.no_grad():
        whole = model(tokens).logits
        prepared = prepare(model)
        first = prepared.model(input_ids=tokens[:, :4], use_cache=True)
        rest = prepared.model(input_ids=tokens[:, 4:], past_key_values=first.past_key_values, use_cache=True)
    assert worst(torch.cat([first.logits, rest.logits], dim=1), whole) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_act": "mish"}, "config.hidden_act: 'mish' has no fit"),
        ({"head_dim": 8}, "config.head_dim: 3 heads of 8 do not make the hidden_size of 12"),
        ({"attention_dropout": 0.1}, "config.attention_dropout: 0.1 is not applied .* set it to 0.0"),
        ({"sliding_window": 8}, "config.sliding_window: attention over the last 8 positions .* set it to None"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
            "config.rope_parameters: rotary scaling 'linear' is not supported; .* set rope_type to 'default'",
        ),
    ],
)
def test_variants_are_refused_by_field_value_and_remedy(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe(tiny_llama(**options))


def test_a_model_without_its_head_and_odd_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="LlamaModel: a Llama with its language-model head"):
        describe(tiny_llama().model)
    (stage, _) = describe(tiny_llama()).of(Attention)
    with pytest.raises(ConfigError, match="rotary positions need an even head width, got 5"):
        stage.needs(Shape(layers=2, width=15, heads=3, hidden=8, vocabulary=8, context=8), (), {})
    with pytest.raises(ConfigError, match="a finite base above 1, got 0"):
        replace(stage, rotary=0.0)
    assert stage_from_json(stage_to_json(stage)) == stage
    assert "rotary" not in stage_to_json(replace(stage, rotary=None))


def test_padding_is_refused() -> None:
    prepared, tokens = prepare(tiny_llama()), random_tokens(rows=1)
    mask = torch.ones_like(tokens)
    mask[0, 0] = 0
    with pytest.raises(Exception, match="cut sequences to one length, do not pad"):
        prepared.model(input_ids=tokens, attention_mask=mask)


@pytest.mark.parametrize("mlp", ["A", "B"])
@pytest.mark.parametrize("levels", [5, 8])
def test_rotary_positions_and_shared_keys_cost_no_bootstrap_and_no_level(mlp: str, levels: int) -> None:
    """Beside the same circuit with neither: the keys and values that heads share are written out for every head."""
    circuit = exported(3)[2]
    folded, weights, stages = circuit.folded, dict(circuit.weights), list[Stage]()
    for stage in circuit.stages:
        if isinstance(stage, Attention):
            for name in stage.reads[1:]:
                norm = circuit.weights[f"{name.rsplit('.', 2)[0]}.input_layernorm.weight"].astype(np.float64)
                weights[f"{name}.weight"] = (folded.linears[name].weight / norm[:, None]).T.copy()
            stage = replace(stage, rotary=None, key_value_heads=None)
        stages.append(stage)
    plain = replace(circuit, stages=tuple(stages), weights=weights)
    found = [plan(c, clear_params(128, levels=levels), mlp=mlp).programs["generate"] for c in (circuit, plain)]
    ours, theirs = ([(s.kind, s.level) for s in p.steps if s.row.refreshes] for p in found)
    assert ours == theirs
    assert len(ours) > 0
    assert found[0].inputs["x"].level == found[1].inputs["x"].level
