# SPDX-License-Identifier: Apache-2.0
"""A Llama as a user types it: calibrate, export, train, plan, and an answer from a server that only simulates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="heat train needs torch")

from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.planning import Plan
from tests.llama_tiny import tiny_llama

TEXT = "<|endoftext|>".join("the cat sat on the mat and the dog ran to the cat. " * 6 for _ in range(8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import ByteLevelBPETokenizer

    place = tmp_path_factory.mktemp("llama")
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT], vocab_size=280, special_tokens=["<|endoftext|>"], show_progress=False)
    tiny_llama(1, vocab_size=bpe.get_vocab_size(), initializer_range=0.2).save_pretrained(place / "model")
    bpe.save(str(place / "model" / "tokenizer.json"))
    (place / "text.txt").write_text(TEXT)
    return place


def heat(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code = main([*map(str, words), "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    return json.loads(out.out)


@pytest.mark.parametrize("prefix", ["", "on the mat"])
def test_from_a_checkpoint_to_an_answer(folder: Path, capsys: pytest.CaptureFixture[str], prefix: str) -> None:
    model, text, circuit = folder / "model", ("--text", folder / "text.txt"), folder / "circuit"
    text = (*text, "--prefix", prefix)
    heat(capsys, "calibrate", model, *text, "--windows", 16, "-o", folder / "calibration.json")
    heat(capsys, "export", model, "--calibration", folder / "calibration.json", "-o", circuit)
    params = ("--params", "insecure-native-12-r40")
    heat(capsys, "plan", circuit, *params, "-o", folder / "llama.plan")
    assert Plan.load(folder / "llama.plan").circuit == Circuit.load(circuit).digest
    local = ("--local", "--simulate", "--circuit", circuit, *params, "--keys", folder / "keys")
    answer = heat(capsys, "generate", *local, "--tokens", 3, "the cat")
    from tokenizers import Tokenizer

    prompt = Tokenizer.from_file(str(model / "tokenizer.json")).encode("the cat").ids
    found = Circuit.load(circuit)
    assert answer["tokens"] == found.generate(prompt, 3).tokens
    assert (found.room < 16) == bool(prefix)
    assert main(["generate", *map(str, local), "--tokens", str(found.room), "the cat", "--quiet"]) != 0
    assert f"the model's context is {found.room}" in " ".join(capsys.readouterr().err.split())


def test_it_is_trained_by_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--recipe", "tiny", "--share", "0.3", "--context", 12, "--prefix", "on the mat", "-o", folder / "run")
    body = heat(capsys, "train", folder / "model", "--text", folder / "text.txt", *options)
    assert body["updates"] == 2 + 7 + 1
    circuit = Circuit.load(folder / "run" / "circuit")
    assert circuit.calibration.iterations() == body["iterations"]
    assert circuit.room == 12
    assert body["skipped"] == body["diverged"] == 0
    again = heat(capsys, "export", folder / "run" / "model", "--tokenizer", folder / "model", "-o", folder / "again")
    assert again["iterations"] == body["iterations"]
