# SPDX-License-Identifier: Apache-2.0
"""README's way for one's own model, on checkpoints of several context lengths, and what is refused before it starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="heat train needs torch")

from heatfhe import training
from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.client.local import local_server
from heatfhe.planning import Plan
from tests.gpt2_tiny import tiny_gpt2

TEXT = "<|endoftext|>".join("the cat sat on the mat and the dog ran to the cat. " * 60 for _ in range(16))


def own_model(folder: Path, context: int, width: int = 36) -> Path:
    """A checkpoint as its owner has it: three heads, a width that is no power of two, its tokenizer beside it."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT], vocab_size=270, special_tokens=["<|endoftext|>"], show_progress=False)
    tiny_gpt2(1, layers=1, width=width, heads=3, n_positions=context, vocab_size=bpe.get_vocab_size()).save_pretrained(
        folder / "my-gpt2"
    )
    bpe.save(str(folder / "my-gpt2" / "tokenizer.json"))
    (folder / "corpus.txt").write_text(TEXT)
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    code = main([*map(str, words), "--json"])
    out = capsys.readouterr()
    assert code == 0, out.err
    return json.loads(out.out)


@pytest.mark.parametrize(
    ("context", "trained"),
    [(64, 64), pytest.param(128, 128, marks=pytest.mark.slow), pytest.param(1024, 128, marks=pytest.mark.slow)],
)
def test_readme_path(context: int, trained: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train, plan, serve and ask as README shows; only the parameter set, the share and the simulation differ."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = own_model(tmp_path, context)
    model, mine = place / "my-gpt2", place / "out" / "mine"
    said(capsys, "train", model, "--text", place / "corpus.txt", "-o", mine, "--share", 0.004, "--batch", 2)
    circuit = Circuit.load(mine / "circuit")
    assert circuit.shape.context == trained
    params = "insecure-native-11" if trained <= 64 else "insecure-native-12"
    planned = said(capsys, "plan", mine / "circuit", "--params", params, "-o", place / "mine.plan")
    assert planned["plan"] == Plan.load(place / "mine.plan").digest
    options = ["--plan", str(place / "mine.plan"), "--folder", str(place / "served"), "--simulate", "--insecure"]
    with local_server([str(mine / "circuit"), *options]) as server:
        (place / "token.txt").write_text(server.token)
        asked = ["--server", server.url, "--token-file", place / "token.txt", "--keys", place / "keys", "--simulate"]
        answer = said(capsys, "generate", *asked, "--tokens", 2, "the cat sat")
    assert answer["tokens"] == circuit.generate(circuit.encode("the cat sat"), 2).tokens
    # What training leaves is a checkpoint like any other: it has its tokenizer, exports, and trains on.
    ids = AutoTokenizer.from_pretrained(mine / "model")("the cat sat on the mat")["input_ids"]
    assert ids == AutoTokenizer.from_pretrained(model)("the cat sat on the mat")["input_ids"]
    assert len(ids) > 3
    assert AutoModelForCausalLM.from_pretrained(mine / "model").config.n_positions == context
    said(capsys, "export", mine / "model", "-o", place / "again")
    assert Circuit.load(place / "again").tokenizer == circuit.tokenizer
    assert Circuit.load(place / "again").shape == circuit.shape


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_model(tmp_path_factory.mktemp("own"), 64)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The line that ``heat train`` ends with before any training."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("training started")

    monkeypatch.setattr(training, "train", never)
    assert main(["train", *map(str, words)]) == 1
    line = capsys.readouterr().err
    assert line.startswith("heat: ")
    assert line.count("\n") == 1
    return line


def test_a_checkpoint_without_tokenizer_is_refused_before_training(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "my-gpt2", tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    words = (tmp_path / "bare", "--text", place / "corpus.txt", "-o", tmp_path / "out")
    assert "holds no tokenizer" in refused(monkeypatch, capsys, *words)


def test_contexts_are_refused_before_training_with_their_option(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (place / "my-gpt2", "--text", place / "corpus.txt", "-o", tmp_path / "out")
    assert "(--context)" in refused(monkeypatch, capsys, *words, "--context", 65)
    thin = own_model(tmp_path / "narrow", 128, width=24)  # heads of width 8: no plan holds more than 64 positions
    narrow = (thin / "my-gpt2", "--text", place / "corpus.txt", "-o", tmp_path / "out")
    assert "ask for a context of at most 64 (--context)\n" in refused(monkeypatch, capsys, *narrow)
    (tmp_path / "short.txt").write_text("the cat")
    short = (place / "my-gpt2", "--text", tmp_path / "short.txt", "-o", tmp_path / "out")
    assert "shorter --context" in refused(monkeypatch, capsys, *short)
    (tmp_path / "file").write_text("")
    words = (place / "my-gpt2", "--text", place / "corpus.txt", "-o", tmp_path / "file")
    assert "give a folder" in refused(monkeypatch, capsys, *words)


def test_a_run_that_ends_with_more_iterations_than_it_began_with_says_so(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = training.train

    def short(*args: Any, **options: Any) -> training.Trained:
        from dataclasses import replace

        made = own(*args, **options)
        return replace(made, seed_iterations=dict.fromkeys(made.iterations, 1))

    monkeypatch.setattr(training, "train", short)
    words = ["train", str(place / "my-gpt2"), "--text", str(place / "corpus.txt"), "-o", str(tmp_path / "out")]
    assert main([*words, "--recipe", "tiny", "--share", "0.2"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "iterations were learned, more than the" in told
    assert "(--share, --updates)" in told


def test_python_takes_names_and_any_text(place: Path, tmp_path: Path) -> None:
    """A file, a list of strings and a dataset give the same windows; model, recipe and folder are named."""
    import datasets

    import heatfhe
    from heatfhe.errors import ConfigError, DataError

    documents = [d for d in TEXT.split("<|endoftext|>") if d]
    rows = datasets.Dataset.from_dict({"text": documents})
    found = []
    for text in (str(place / "corpus.txt"), documents, rows):
        prepared = heatfhe.prepare(str(place / "my-gpt2"))
        quick = training.recipe("tiny").adjusted(context=32, updates=4, batch=2)
        trained = heatfhe.train(prepared, text, quick, folder=str(tmp_path / f"run{len(found)}"))
        circuit = heatfhe.export(prepared, trained.calibration, str(tmp_path / f"circuit{len(found)}"))
        assert circuit.encode("the cat")  # its tokenizer came along
        assert circuit.shape.context == 32
        assert len(repr(trained)) < 1000
        assert trained._repr_html_().count("<tr>") == len(trained.iterations) + 5
        assert repr(prepared).startswith("Prepared(gpt2, 8 sites, ")
        assert "\n" not in repr(prepared)
        found.append(circuit.digest)
    assert len(set(found)) == 1
    prepared = heatfhe.prepare(str(place / "my-gpt2"))
    with pytest.raises(ConfigError, match="unknown recipe 'large'"):
        heatfhe.train(prepared, documents, "large")
    with pytest.raises(DataError, match="document 1: expected a string"):
        heatfhe.train(prepared, ["a", 3], "tiny")
    with pytest.raises(DataError, match=r"several splits \(train\)"):
        heatfhe.train(prepared, datasets.DatasetDict(train=rows), "tiny")
    with pytest.raises(ConfigError, match="give tokenizer="):
        heatfhe.train(heatfhe.prepare(tiny_gpt2(1)), documents, "tiny")


def test_a_recipe_is_adjusted_in_its_own_proportions() -> None:
    base = training.recipe("default-model")
    made = base.adjusted(context=64, updates=1440, lr=1e-3, batch=8)
    assert made.context == 64
    assert made.updates == 2 * base.updates == 1440
    assert [p.updates for p in made.phases.values()] == [180, 560, 700]
    assert {p.tokens_per_update for p in made.phases.values()} == {8 * 64}
    assert [p.lr / q.lr for p, q in zip(made.phases.values(), base.phases.values())] == pytest.approx([5.0] * 3)
    assert base.adjusted(context=100).squeeze.tokens_per_update == 41 * 100  # as near 4096 as whole windows allow
    assert base.adjusted() == base
