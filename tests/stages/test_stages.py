# SPDX-License-Identifier: Apache-2.0
"""Stages know what they read, need and write; lists of them know their layers and sites."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.models import gpt2_stages
from heatfhe.stages import (
    Attention,
    Embed,
    Gate,
    Linear,
    Norm,
    Residual,
    Shape,
    Stage,
    centred,
    layers,
    of,
    readers,
    solved,
    stage_from_json,
    stage_to_json,
    writers,
)
from tests.tiny import tiny_circuit

SHAPE = Shape(layers=2, width=16, heads=4, hidden=64, vocabulary=64, context=16)
OWN = Attention(name="a", reads=("q", "k", "v"), writes="y", heads=4, key_value_heads=2, scale=0.5)


def test_a_stage_names_what_it_reads_and_needs() -> None:
    assert OWN.inputs == ("q", "k", "v")
    assert OWN.needs(SHAPE, (16, 8, 8), {}).inputs == (16, 8, 8)
    joined = Attention(name="a", reads="qkv", writes="y", heads=4, key_value_heads=2)
    assert joined.needs(SHAPE, (32,), {}).inputs == (32,)
    assert (OWN.divisor(4), joined.divisor(4)) == (2.0, 2.0)
    assert Gate(reads="a", by="b", writes="c").inputs == ("a", "b")
    assert Residual(reads="a", branch="b", writes="c").inputs == ("a", "b")
    assert Embed(writes="x", token="t").tensors == ("t",)
    row = Linear(name="l", reads="x", writes="y", weight="w", bias="b", transposed=True)
    needs = row.needs(SHAPE, (16,), {"w": (24, 16)})
    assert (dict(needs.tensors), needs.width) == ({"w": (24, 16), "b": (24,)}, 24)


@pytest.mark.parametrize(
    ("stage", "keys"),
    [
        (Embed(writes="x", token="t"), {"stage", "writes", "token"}),
        (
            Norm(name="n", reads="x", writes="y", weight="w", eps=1e-5),
            {"stage", "name", "reads", "writes", "weight", "eps"},
        ),
        (
            Norm(name="n", reads="x", writes="y", weight="w", eps=1e-5, centred=False),
            {"stage", "name", "reads", "writes", "weight", "eps", "centred"},
        ),
        (
            Linear(name="l", reads="x", writes="y", weight="w"),
            {"stage", "name", "reads", "writes", "weight", "residual"},
        ),
        (OWN, {"stage", "name", "reads", "writes", "heads", "key_value_heads", "scale"}),
    ],
)
def test_defaults_are_not_written(stage: Stage, keys: set[str]) -> None:
    body = stage_to_json(stage)
    assert set(body) == keys
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in body.items()}
    assert stage_from_json(plain) == stage


def test_unknown_and_bent_stages_are_refused() -> None:
    with pytest.raises(FileFormatError, match="unknown stage 'rotary'"):
        stage_from_json({"stage": "rotary"})
    with pytest.raises(FileFormatError, match="wrong fields"):
        stage_from_json({"stage": "argmax", "reads": "x", "writes": "y", "surprise": 1})
    with pytest.raises(ConfigError, match="4 heads cannot share 3 keys and values"):
        replace(OWN, key_value_heads=3)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="scale of scores"):
            replace(OWN, scale=scale)
    with pytest.raises(ConfigError, match="has 4 heads, the shape says 2"):
        OWN.needs(replace(SHAPE, heads=2), (16, 8, 8), {})


def test_a_list_of_stages_is_a_graph() -> None:
    stages = gpt2_stages(SHAPE)
    assert layers(stages) == {
        "h.0.ln_1": 0, "h.0.attn": 0, "h.0.ln_2": 0, "h.0.mlp": 0, "h.1.ln_1": 1, "h.1.attn": 1, "h.1.ln_2": 1,
        "h.1.mlp": 1, "ln_f": 2,
    }  # fmt: skip
    assert writers(stages)["h.0.attn.qkv"].label == "h.0.attn.c_attn"
    assert [s.label for s in readers(stages, "h.0.mid")] == ["h.0.ln_2", "residual"]
    noisy = (
        "ln_1/z",
        "ln_1/root",
        "attn/scores",
        "attn/sum",
        "attn/sum2",
        "attn/inverse",
        "ln_2/z",
        "ln_2/root",
        "mlp/in",
    )
    assert solved(stages) == {f"h.{l}.{name}" for l in range(2) for name in noisy} | {"ln_f/z", "ln_f/root"}
    assert centred(stages)
    bare = tuple(replace(s, centred=False) if isinstance(s, Norm) else s for s in stages)
    assert not centred(bare)
    with pytest.raises(ConfigError, match="all subtract the mean or none"):
        centred((*bare[:1], stages[1], *bare[2:]))


def attending(circuit: Circuit, change: Any, weights: dict[str, Any]) -> Circuit:
    """The circuit with its attentions, and the linears before them, changed."""
    stages: list[Stage] = []
    for stage in circuit.stages:
        stages += change(stage)
    kept = {name: w for name, w in circuit.weights.items() if any(name in s.tensors for s in stages)}
    return replace(circuit, stages=tuple(stages), weights=kept | weights)


def test_shared_keys_and_values_are_repeated_by_folding() -> None:
    """Joined with shared heads, and each of its own: the same numbers as a model that holds every head."""
    whole = tiny_circuit(heads=4)
    joined_weights, own_weights, whole_weights = {}, {}, {}
    for stage in of(whole.stages, Attention):
        name = f"{stage.name}.c_attn"
        for part in ("weight", "bias"):
            q, k, v = np.split(whole.weights[f"{name}.{part}"], 3, axis=-1)
            few = [x.reshape(*x.shape[:-1], 4, -1)[..., ::2, :] for x in (k, v)]  # heads 0 and 2 serve two each
            k, v = (x.reshape(*x.shape[:-2], -1) for x in few)
            joined_weights[f"{name}.{part}"] = np.concatenate([q, k, v], axis=-1)
            for kind, x in zip("qkv", (q, k, v)):
                own_weights[f"{name}.{kind}.{part}"] = x if part == "bias" else x.T
            k, v = (x.repeat(2, axis=-2).reshape(*x.shape[:-2], -1) for x in few)
            whole_weights[f"{name}.{part}"] = np.concatenate([q, k, v], axis=-1)

    def share(stage: Stage) -> list[Stage]:
        return [replace(stage, key_value_heads=2) if isinstance(stage, Attention) else stage]

    def part(stage: Stage) -> list[Stage]:
        if isinstance(stage, Attention):
            return [replace(stage, key_value_heads=2, reads=tuple(f"{stage.reads}.{kind}" for kind in "qkv"))]
        if isinstance(stage, Linear) and f"{stage.name}.q.weight" in own_weights:
            return [
                Linear(
                    name=f"{stage.name}.{kind}", reads=stage.reads, writes=f"{stage.writes}.{kind}", transposed=True,
                    weight=f"{stage.name}.{kind}.weight", bias=f"{stage.name}.{kind}.bias",
                )
                for kind in "qkv"
            ]  # fmt: skip
        return [stage]

    wanted = attending(whole, lambda s: [s], whole_weights).run([1, 2, 3])
    for found in (attending(whole, share, joined_weights), attending(whole, part, own_weights)):
        np.testing.assert_allclose(found.run([1, 2, 3]), wanted, rtol=1e-12, atol=1e-12)


def test_a_branch_that_is_not_said_to_be_one_is_refused() -> None:
    """It would be written into a centred stream with its mean."""
    circuit = tiny_circuit()
    stages = [replace(s, residual=False) if isinstance(s, Linear) else s for s in circuit.stages]
    with pytest.raises(ConfigError, match=r"h\.0\.attn\.c_proj: residual is False, but the stages say otherwise"):
        replace(circuit, stages=tuple(stages))


@pytest.mark.parametrize("name", ["h.0.mlp.2", "a:b", "a/b", "x~", ""])
def test_names_that_plans_could_not_tell_apart_are_refused(name: str) -> None:
    circuit = tiny_circuit()
    stages = [replace(s, name=name) if s.label == "h.0.attn.c_proj" else s for s in circuit.stages]  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="a stage's name"):
        replace(circuit, stages=tuple(stages))
