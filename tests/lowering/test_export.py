# SPDX-License-Identifier: Apache-2.0
"""export: stages, tensors, files, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from heatfhe.circuit import Circuit
from heatfhe.errors import ConfigError, FileFormatError
from heatfhe.lowering import export, tokenizer_files
from heatfhe.ranges import calibrate
from heatfhe.records import Calibration
from heatfhe.sites import Prepared, prepare
from heatfhe.stages import Linear, Norm
from tests.gpt2_tiny import random_tokens, tiny_gpt2, worst


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(tiny_gpt2(1))


@pytest.fixture(scope="module")
def calibration(prepared: Prepared) -> Calibration:
    return calibrate(prepared, [random_tokens(1)], 1e-3)


def test_stages_follow_the_model(prepared: Prepared, calibration: Calibration) -> None:
    circuit = export(prepared, calibration, name="tiny")
    assert len(circuit.stages) == 1 + 10 * 2 + 3
    first = circuit.stages[1]
    assert isinstance(first, Norm)
    assert (first.name, first.reads, first.writes, first.eps) == ("h.0.ln_1", "h.0.in", "h.0.ln_1", 1e-5)
    assert [s.name for s in circuit.stages if isinstance(s, Linear) and s.residual] == [
        f"h.{l}.{n}.c_proj" for l in range(2) for n in ("attn", "mlp")
    ]
    assert circuit.stages[-1].writes == "token"
    assert np.array_equal(circuit.weights["wte.weight"], prepared.model.transformer.wte.weight.detach().numpy())


def test_tensors_keep_their_dtype(prepared: Prepared, calibration: Calibration) -> None:
    circuit = export(prepared, calibration)
    assert {w.dtype for w in circuit.weights.values()} == {np.dtype("float32")}
    for dtype, kept in ((torch.float16, np.float16), (torch.bfloat16, np.float32)):
        narrow = prepare(tiny_gpt2(1).to(dtype))
        own = calibrate(narrow, [random_tokens(1)], 1e-2)
        assert {w.dtype for w in export(narrow, own).weights.values()} == {np.dtype(kept)}


def test_directory_round_trip(prepared: Prepared, calibration: Calibration, tmp_path: Path) -> None:
    made = export(
        prepared, calibration, tmp_path / "c", tokenizer={"tokenizer.json": b"{}"}, name="tiny", notes={"seed": 1}
    )
    loaded = Circuit.load(tmp_path / "c")
    tokens = random_tokens(1).numpy()
    assert loaded.digest == made.digest
    assert np.array_equal(loaded.run(tokens), made.run(tokens))
    assert (loaded.tokenizer, loaded.notes) == ({"tokenizer.json": b"{}"}, {"seed": 1})


def test_altered_and_truncated_circuits_are_refused(
    prepared: Prepared, calibration: Calibration, tmp_path: Path
) -> None:
    for name, change in (
        ("weights.safetensors", lambda b: b[:-100]),
        ("calibration.json", lambda b: b.replace(b'"tolerance": 0.001', b'"tolerance": 0.002')),
        ("circuit.json", lambda b: b[: len(b) // 2]),
    ):
        export(prepared, calibration, tmp_path / "c")
        path = tmp_path / "c" / name
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(FileFormatError, match=name.replace(".", r"\.")):
            Circuit.load(tmp_path / "c")


def test_nothing_half_written_is_left_behind(prepared: Prepared, calibration: Calibration, tmp_path: Path) -> None:
    class Full(dict):  # type: ignore[type-arg]
        def items(self):  # type: ignore[no-untyped-def]
            raise OSError("no space left on device")

    export(prepared, calibration, tmp_path / "c", name="before")
    circuit = export(prepared, calibration, name="after")
    object.__setattr__(circuit, "tokenizer", Full())
    with pytest.raises(OSError, match="no space"):
        circuit.save(tmp_path / "c")
    assert Circuit.load(tmp_path / "c").name == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_other_weights_are_refused(calibration: Calibration) -> None:
    with pytest.raises(ConfigError, match="belongs to other weights"):
        export(prepare(tiny_gpt2(2)), calibration)
    with pytest.raises(ConfigError, match="export needs a calibration"):
        export(prepare(tiny_gpt2(1)))


def test_short_windows_do_not_cover_the_context(prepared: Prepared) -> None:
    short = calibrate(prepared, [random_tokens(1, length=8)], 1e-3)
    with pytest.raises(ConfigError, match=r"windows of 8 tokens, not of 16; .* at most 8 \(--context\)"):
        export(prepared, short, context=16)
    cut = export(prepared, short)
    assert cut.weights["wpe.weight"].shape == (8, 16)
    tokens = random_tokens(1, length=8)
    prepared.adopt(short)
    assert worst(prepared.logits(tokens, "float64"), cut.run(tokens.numpy())) < 1e-9


def test_adopted_counts_are_exported_by_default(calibration: Calibration) -> None:
    prepared = prepare(tiny_gpt2(1))
    prepared.adopt(calibration)
    prepared.set_counts({"h.1.attn/refine": 7})
    assert export(prepared).calibration.counts()["h.1.attn/refine"] == 7


def test_an_untied_head_is_exported() -> None:
    prepared = prepare(tiny_gpt2(4, tie_word_embeddings=False))
    tokens = random_tokens(4)
    calibration = calibrate(prepared, [tokens], 1e-3)
    prepared.adopt(calibration)
    circuit = export(prepared, calibration)
    assert not np.array_equal(circuit.weights["lm_head.weight"], circuit.weights["wte.weight"])
    assert worst(prepared.logits(tokens, "float64"), circuit.run(tokens.numpy())) < 1e-9


def test_tokenizer_from_vocabulary_and_merges(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    letters = {"a": 0, "b": 1, "c": 2, "ab": 3, "<|endoftext|>": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    files = tokenizer_files(tmp_path)
    made = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert made.encode("abc").ids == [3, 2]
    assert made.encode("<|endoftext|>").ids == [4]
    assert tokenizer_files(files) == files
    with pytest.raises(ConfigError, match=r"holds no tokenizer \(neither"):
        tokenizer_files(tmp_path / "nowhere")
