# SPDX-License-Identifier: Apache-2.0
"""A stranger's architecture, in one file and without a line of src: a decoder that GPT-2 is not.

RMS norms, no biases, queries, keys and values of their own, two heads of keys and values for four of queries, a gate,
a score scale of its own, no positions, and weights stored (out, in). Described, registered, then taken the whole way.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from heatfhe.circuit import Circuit
from heatfhe.client.bundle import Bundle
from heatfhe.errors import ConfigError, PlanError
from heatfhe.lowering import export
from heatfhe.models import ARCHITECTURES, Architecture, describe, register
from heatfhe.planning import Plan, plan
from heatfhe.ranges import calibrate
from heatfhe.server.work.program import make_bundle
from heatfhe.sites import Prepared, RangeBounds, prepare, restore
from heatfhe.stages import (
    Activation,
    Argmax,
    Attention,
    Embed,
    Gate,
    Head,
    Linear,
    Norm,
    Residual,
    Shape,
    Stage,
    sites,
)
from tests.planning.clear_run import clear_params, generate, teacher_forced

KIND = "stranger"
SHAPE = Shape(layers=2, width=16, heads=4, hidden=24, vocabulary=48, context=16)
SHARED, SCALE, EPS = 2, 0.4, 1e-5
SEEDS = [pytest.param(seed, marks=() if seed < 3 else pytest.mark.slow) for seed in range(20)]


# -- the model, as its owner wrote it ----------------------------------------------------------------------------------


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.1 * torch.randn(SHAPE.width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS) * self.weight


def linear(inner: int, outer: int) -> nn.Linear:
    made = nn.Linear(inner, outer, bias=False)
    nn.init.normal_(made.weight, std=0.7 / inner**0.5)
    return made


class SharedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        d, e = SHAPE.width, SHAPE.head_width
        self.query, self.key, self.value = linear(d, d), linear(d, SHARED * e), linear(d, SHARED * e)
        self.out = linear(d, d)

    def forward(self, x: Tensor, **_: Any) -> tuple[Tensor, None]:
        q, k, v = (
            f(x).unflatten(-1, (-1, SHAPE.head_width)).transpose(1, 2) for f in (self.query, self.key, self.value)
        )
        k, v = (part.repeat_interleave(SHAPE.heads // SHARED, dim=1) for part in (k, v))
        scores = SCALE * q @ k.transpose(-1, -2)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        y = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).flatten(-2)), None


class GatedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = linear(SHAPE.width, SHAPE.hidden), linear(SHAPE.width, SHAPE.hidden)
        self.down, self.act = linear(SHAPE.hidden, SHAPE.width), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.between, self.mlp = RmsNorm(), SharedAttention(), RmsNorm(), GatedMlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))[0]
        return x + self.mlp(self.between(x))


class Stranger(nn.Module):
    """Called as Hugging Face's models are."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type=KIND)
        self.words = nn.Embedding(SHAPE.vocabulary, SHAPE.width)
        self.blocks = nn.ModuleList(Block() for _ in range(SHAPE.layers))
        self.last = RmsNorm()
        self.head = linear(SHAPE.width, SHAPE.vocabulary)
        nn.init.normal_(self.head.weight, std=1.0)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        return SimpleNamespace(logits=self.head(self.last(x)))


# -- its description ---------------------------------------------------------------------------------------------------


def describe_stranger(model: Stranger) -> Architecture:
    stages: list[Stage] = [Embed(writes="s0", token="words.weight")]

    def norm(path: str, reads: str) -> str:
        stages.append(Norm(name=path, reads=reads, writes=f"{path}.y", weight=f"{path}.weight", eps=EPS, centred=False))
        return f"{path}.y"

    def product(path: str, reads: str, residual: bool = False) -> str:
        weight, writes = f"{path}.weight", f"{path}.y"
        stages.append(
            Linear(name=path, reads=reads, writes=writes, weight=weight, transposed=True, residual=residual)
        )  # fmt: skip
        return writes

    stream = "s0"
    for k in range(SHAPE.layers):
        block = f"blocks.{k}"
        y = norm(f"{block}.before", stream)
        q, k_, v = (product(f"{block}.attention.{part}", y) for part in ("query", "key", "value"))
        name = f"{block}.attention"
        stages.append(
            Attention(
                name=name, reads=(q, k_, v), writes=f"{name}.y", heads=SHAPE.heads, key_value_heads=SHARED, scale=SCALE
            )
        )  # fmt: skip
        branch = product(f"{name}.out", f"{name}.y", residual=True)
        stages.append(Residual(reads=stream, branch=branch, writes=f"{block}.mid"))
        y = norm(f"{block}.between", f"{block}.mid")
        gate, up = product(f"{block}.mlp.gate", y), product(f"{block}.mlp.up", y)
        act = f"{block}.mlp.act"
        stages.append(Activation(name=act, reads=gate, writes=f"{act}.y", function="silu"))
        stages.append(Gate(reads=f"{act}.y", by=up, writes=f"{block}.gated"))
        branch = product(f"{block}.mlp.down", f"{block}.gated", residual=True)
        stream = f"s{k + 1}"
        stages.append(Residual(reads=f"{block}.mid", branch=branch, writes=stream))
    stages += [
        Head(reads=norm("last", stream), writes="logits", weight="head.weight"),
        Argmax(reads="logits", writes="token"),
    ]
    names = [s.name for s in stages if isinstance(s, (Norm, Linear, Attention, Activation))]
    tensors = {name: name for stage in stages for name in stage.tensors}
    paths = {name: name for name in names}  # named after their modules
    return Architecture(kind=KIND, shape=SHAPE, stages=tuple(stages), paths=paths, tensors=tensors)


@pytest.fixture(autouse=True, scope="module")
def registered() -> Any:
    register(KIND, describe_stranger)
    yield
    del ARCHITECTURES[KIND]


# -- the whole way -----------------------------------------------------------------------------------------------------


def stranger(seed: int) -> tuple[Stranger, Tensor]:
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Stranger().eval(), torch.randint(0, SHAPE.vocabulary, (64, SHAPE.context))


@lru_cache(maxsize=4)
def exported(seed: int) -> tuple[Prepared, Tensor, Circuit]:
    model, tokens = stranger(seed)
    prepared = prepare(model)
    calibration = calibrate(prepared, [tokens], 1e-3, margin=1.3, activation_tolerance=1e-2)
    prepared.adopt(calibration)
    return prepared, tokens, export(prepared, calibration, name=f"{KIND}-{seed}")


def worst(a: Any, b: Any) -> float:
    x, y = (torch.as_tensor(v, dtype=torch.float64) for v in (a, b))
    return float(((x - y).abs().amax(dim=-1) / y.abs().amax(dim=-1)).max())


def test_it_is_described_by_its_stages() -> None:
    found = sites(describe(stranger(0)[0]).stages)
    assert [s.layer for s in found] == [0] * 6 + [1] * 6 + [2] * 2
    assert (found[0].name, found[2].name, found[-1].name) == (
        "blocks.0.before/goldschmidt", "blocks.0.attention/init", "last/newton",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="already described"):
        register("gpt2", describe_stranger)


@pytest.mark.parametrize("seed", SEEDS)
def test_law_1_restored_is_the_original(seed: int) -> None:
    model, tokens = stranger(seed)
    kinds = [type(m) for m in model.modules()]
    with torch.no_grad():
        before = model(tokens).logits
        state = {k: v.clone() for k, v in model.state_dict().items()}
        prepared = prepare(model)
        assert worst(prepared(tokens), before) < 1e-5
        assert list(model.state_dict()) == list(state)
        assert restore(prepared) is model
        assert torch.equal(model(tokens).logits, before)
    assert [type(m) for m in model.modules()] == kinds
    assert all(torch.equal(model.state_dict()[k], state[k]) for k in state)


def test_a_client_carries_the_stream_as_the_circuit_does(tmp_path: Path) -> None:
    circuit = exported(0)[2]
    circuit.save(tmp_path / "c")
    again = Circuit.load(tmp_path / "c")
    assert (again.stages, again.digest) == (circuit.stages, circuit.digest)
    data = make_bundle(cast(Any, SimpleNamespace(digest="0" * 64)), again)
    config = SimpleNamespace(bundle=hashlib.sha256(data).hexdigest(), vocabulary=SHAPE.vocabulary)
    rows = Bundle.read(data, cast(Any, config)).rows(range(SHAPE.vocabulary))
    assert np.array_equal(rows, circuit.folded.token)
    assert np.abs(rows.mean(axis=-1)).max() > 0.1  # so that a mean taken away would show


@pytest.mark.parametrize("seed", SEEDS)
def test_law_2_deployed_is_the_circuit(seed: int) -> None:
    prepared, tokens, circuit = exported(seed)
    found = circuit.run(tokens.numpy())
    assert worst(prepared.logits(tokens, "float64"), found) < 1e-9
    assert worst(prepared.logits(tokens, "float32"), found) < 1e-4
    assert worst(prepared.logits(tokens, "float64", mode="exact"), found) < 0.05  # and it still is the model


def test_it_learns_weights_and_counts() -> None:
    prepared, tokens, _ = exported(0)
    prepared.set_mode("training", bounds=RangeBounds(activation=0.1, score=0.1, denominator=0.1, variance=0.1))
    try:
        prepared(tokens[:2]).square().mean().add(sum(prepared.range_terms().values())).backward()
        slopes = {name: float(p.grad.abs().max()) for name, p in prepared.named_parameters() if p.grad is not None}
        assert slopes.keys() == {name for name, _ in prepared.named_parameters()}
        assert all(0.0 < slope < 1e6 for slope in slopes.values()), slopes
    finally:
        prepared.zero_grad()
        prepared.set_mode("exact")


@pytest.mark.parametrize("mlp", ["A", "B"])
@pytest.mark.parametrize("seed", SEEDS)
def test_law_4_the_circuit_is_its_plan_on_the_clear_engine(seed: int, mlp: str) -> None:
    """Prompt, free running and windows, past the wrap of the cache: a copy holds four positions."""
    _, tokens, circuit = exported(seed)
    made = plan(circuit, clear_params(64), programs=("generate", "prompt", "logits"), mlp=mlp)
    assert made.packing.t == 4
    expected = circuit.generate([3, 1, 4], 8)
    run = generate(made, circuit, [3, 1, 4], 8)
    assert max(np.abs(a - b).max() for a, b in zip(run.one_hots, expected.one_hots, strict=True)) < 1e-8
    close_to_the_circuit(made, circuit, tokens[:3].numpy())


@pytest.mark.parametrize("halve", [True, False])
def test_law_4_holds_where_several_ciphertexts_hold_the_hidden_vector(halve: bool) -> None:
    _, tokens, circuit = exported(0)
    made = plan(circuit, clear_params(16), programs=("logits",), context=4, halve=halve)
    assert made.packing.hidden_parts == 2
    close_to_the_circuit(made, circuit, tokens[:3, :4].numpy())


def close_to_the_circuit(made: Plan, circuit: Circuit, windows: np.ndarray) -> None:
    wanted = circuit.run(windows)
    found = teacher_forced(made, circuit, windows, strict=False)
    assert np.abs(found - wanted).max() < 1e-8 * np.abs(wanted).max()


def test_a_plan_of_it_survives_its_file(tmp_path: Path) -> None:
    made = plan(exported(0)[2], clear_params(64))
    made.save(tmp_path / "stranger.plan")
    assert Plan.load(tmp_path / "stranger.plan") == made


def test_what_no_layout_is_known_for_is_refused_by_name() -> None:
    circuit = exported(0)[2]
    swapped = [replace(s, reads=s.by, by=s.reads) if isinstance(s, Gate) else s for s in circuit.stages]
    with pytest.raises(
        PlanError, match="gate: no layout of slots is known for it where it reads linear and activation"
    ):
        plan(replace(circuit, stages=tuple(swapped)), clear_params(64))
