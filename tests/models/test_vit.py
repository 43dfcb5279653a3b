# SPDX-License-Identifier: Apache-2.0
"""ViT described: stages, tensors, the names of transformers 4 and 5, patches, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, DataError, PlanError
from heatfhe.lowering import export
from heatfhe.models import describe
from heatfhe.planning import plan
from heatfhe.sites import PrepareConfig, prepare
from heatfhe.stages import Attention, Grid, Head, Linear, Norm, Patches, sites, stage_from_json, stage_to_json
from tests.planning.clear_run import clear_params
from tests.vit_tiny import exported, tiny_vit

OLDER = {  # transformers 4, seen in 4.57
    "layernorm_before": "layernorm_before", "attention": "attention.attention",
    "attention.q_proj": "attention.attention.query", "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value", "attention.o_proj": "attention.output.dense",
    "layernorm_after": "layernorm_after", "mlp.fc1": "intermediate.dense",
    "mlp.activation_fn": "intermediate.intermediate_act_fn", "mlp.fc2": "output.dense",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_stages_name_every_tensor_once(seed: int) -> None:
    model = tiny_vit(seed)
    found = describe(model)
    assert sorted(found.tensors.values()) == sorted(model.state_dict())
    assert len(sites(found.stages)) == 2 * (4 + 2) + 2
    assert not any(stage.causal for stage in found.of(Attention))
    assert all(stage.first and stage.bias == "classifier.bias" for stage in found.of(Head))
    for path in found.paths.values():
        assert model.get_submodule(path) is not None
    for stage in found.stages:
        assert stage_from_json(stage_to_json(stage)) == stage


def test_the_names_of_transformers_4_lead_to_the_same_stages() -> None:
    model = tiny_vit(1)
    new = describe(model)
    older = SimpleNamespace(config=model.config, vit=SimpleNamespace(), classifier=model.classifier)
    if not hasattr(model.vit, "layers"):
        older.vit.layers = ()  # the other way round, where transformers 4 is installed
    old = describe(older)
    assert old.stages == new.stages
    four = old if hasattr(model.vit, "layers") else new
    for layer in range(2):
        for name, path in OLDER.items():
            assert four.paths[f"layers.{layer}.{name}"] == f"vit.encoder.layer.{layer}.{path}"
    for stage in four.stages:
        if isinstance(stage, (Norm, Linear)):
            assert four.tensors[stage.weight] == f"{four.paths[stage.name]}.weight"


def test_patches_are_those_of_the_convolution() -> None:
    model = tiny_vit(3)
    grid = Grid((1, 8, 8), (4, 2))
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    projection = model.vit.embeddings.patch_embeddings.projection
    with torch.no_grad():
        wanted = model.vit.embeddings.patch_embeddings(images) - projection.bias
    matrix = projection.weight.detach().double().numpy().reshape(20, -1).T
    rows = grid.project(images.numpy(), matrix)
    assert rows.shape == (3, 9, 20)
    assert not rows[:, 0].any()
    assert np.abs(rows[:, 1:] - wanted.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden_act": "mish"}, "config.hidden_act: 'mish' has no fit"),
        ({"num_labels": 1}, "num_labels: a classifier tells at least 2 labels apart"),
        ({"attention_probs_dropout_prob": 0.1}, "config.attention_probs_dropout_prob: 0.1"),
        ({"image_size": (7, 6)}, "patches of 2 x 2 pixels do not tile an image of 7 x 6"),
    ],
)
def test_refusals_name_the_field(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        describe(tiny_vit(0, **options))


def test_a_model_without_a_classifier_and_a_prefix_are_refused() -> None:
    with pytest.raises(ConfigError, match="a ViT with its classifier is needed"):
        describe(SimpleNamespace(config=tiny_vit(0).config))
    with pytest.raises(ConfigError, match="an image has no public tokens in front"):
        prepare(tiny_vit(0), PrepareConfig(prefix=(1,)))


def test_what_a_circuit_of_images_refuses() -> None:
    prepared, images, circuit = exported(0)
    with pytest.raises(DataError, match="an image of 1 x 6 x 5, the model takes 1 x 6 x 6"):
        circuit.run(images.numpy()[..., :5])
    with pytest.raises(DataError, match="pixels that are not finite"):
        circuit.run(np.full((1, 6, 6), np.nan))
    with pytest.raises(ConfigError, match="classifies images and generates no text"):
        circuit.generate([1], 1)
    with pytest.raises(ConfigError, match="makes 10 rows, the shape has a context of 9"):
        export(prepared, circuit.calibration, context=9)
    causal = tuple(replace(s, causal=True) if isinstance(s, Attention) else s for s in circuit.stages)
    with pytest.raises(ConfigError, match="causal over a text and over all rows of an image"):
        replace(circuit, stages=causal)
    every = tuple(replace(s, first=False) if isinstance(s, Head) else s for s in circuit.stages)
    with pytest.raises(ConfigError, match="the class token of an image has logits"):
        replace(circuit, stages=every)
    for options in ({"programs": ("generate",)}, {"prefill": 4}, {"context": 5}):
        with pytest.raises(PlanError, match=r"classifies images and has no program|takes all 10 rows at once"):
            plan(circuit, clear_params(64), **options)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="multiply by i"):
        plan(circuit, clear_params(64), halve=False)


def test_a_circuit_of_text_has_no_program_for_images() -> None:
    from tests.tiny import tiny_circuit

    circuit = tiny_circuit()
    assert circuit.grid is None
    with pytest.raises(PlanError, match="continues text and has no program 'classify'"):
        plan(circuit, clear_params(64), programs=("classify",))


def test_after_the_last_keys_one_block_is_left() -> None:
    """Of three blocks of rows, only the class token's reaches the last MLP: fewer refreshes of the activation there."""
    circuit: Circuit = exported(3)[2]
    made = plan(circuit, clear_params(128, levels=9))
    assert made.packing.tokens.blocks == 3
    steps = made.program("classify").steps
    work = [sum(s.name == f"layers.{k}.mlp.activation_fn" and s.row.levels > 0 for s in steps) for k in range(2)]
    assert 0 < 2 * work[1] < work[0]
    assert isinstance(circuit.stages[0], Patches)
