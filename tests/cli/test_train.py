# SPDX-License-Identifier: Apache-2.0
"""heat train and heat compare on a two-layer model and a few hundred words: results, resumption, refusals."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="heat train needs torch")

from heatfhe import training
from heatfhe.circuit import Circuit
from heatfhe.cli import comparison, main
from heatfhe.cli.compare import PRESETS
from heatfhe.cli.comparison_jobs import make_jobs
from heatfhe.files import read_json
from heatfhe.training import read_log, recipe
from tests.gpt2_tiny import tiny_gpt2

ROOT = Path(__file__).parent.parent.parent
TEXT = "<|endoftext|>".join("the cat sat on the mat and the dog ran to the cat. " * 6 for _ in range(8))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("model") / "tiny"
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT], vocab_size=280, special_tokens=["<|endoftext|>"], show_progress=False)
    tiny_gpt2(1, width=32, vocab_size=bpe.get_vocab_size()).save_pretrained(folder)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "text.txt").write_text(TEXT)
    return folder


def train(model: Path, out: Path, *more: str) -> list[str]:
    text = str(model / "text.txt")
    return ["train", str(model), "--text", text, "--recipe", "tiny", "--share", "0.3", "-o", str(out), "--json", *more]


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_train_writes_a_run_and_goes_on_from_it(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(train(model, out)) == 0
    body = answer(capsys)
    assert body["updates"] == 2 + 7 + 1
    assert body["skipped"] == 0
    assert sum(body["calibrated"].values()) > 0
    assert sorted(p.name for p in out.iterdir() if p.name != "tensorboard") == [
        "checkpoint",
        "circuit",
        "log.jsonl",
        "model",
        "run.json",
    ]
    made_from = read_json(out / "run.json", "heatfhe-run", (1,))
    assert made_from["command"].startswith(f"heat train {model}")
    assert made_from["recipe"]["seed"] == 0
    assert made_from["corpus"]["context"] == 16
    assert re.fullmatch(r"[0-9a-f]{40}\+?", made_from["commit"] or "0" * 40)
    (parent,) = (x["loss"] for x in read_log(out) if x["kind"] == "parent")
    assert 0 < parent < 2 * math.log(Circuit.load(out / "circuit").shape.vocabulary)
    circuit = Circuit.load(out / "circuit")
    assert circuit.digest == body["digest"]
    assert circuit.name == "tiny-heat"  # no path in it
    assert circuit.calibration.iterations() == body["iterations"]
    kinds = ["random", "shuffled", "repeated", "replaced", "runs"]
    assert [(s["kind"], s["windows"], s["positions"]) for s in body["stress"]] == [(kind, 8, 16) for kind in kinds]
    card = circuit.notes["stress"]
    assert {k: card[k]["diverged"] for k in kinds} == {s["kind"]: s["diverged"] for s in body["stress"]}
    assert (out / "model" / "heat.json").exists()
    assert [x["step"] for x in read_log(out) if x["kind"] == "update"] == list(range(1, 11))
    assert main(train(model, out)) == 0  # finished: the same circuit again
    assert answer(capsys)["digest"] == body["digest"]


def test_held_out_windows_that_diverge_are_said_with_the_site_and_a_way_out(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = training.train

    def diverging(*args: Any, **options: Any) -> training.Trained:
        return replace(own(*args, **options), diverged=2, left="h.0.attn/init: input 9 lies outside its domain [0, 8]")

    monkeypatch.setattr(training, "train", diverging)
    assert main(train(model, tmp_path / "run", "--margin", "1.4")) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["diverged"] == 2
    words = " ".join(said.err.split())
    assert "2 held-out windows diverge once the guards are gone. In the first, h.0.attn/init: input 9 lies" in words
    assert "--margin 1.5, into another folder" in words


def test_other_text_is_mixed_in_as_odd_windows(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("dog " * 400)
    own, given = training.train, []

    def watched(prepared: Any, windows: training.Windows, *rest: Any, **options: Any) -> training.Trained:
        given.append(windows)
        return own(prepared, windows, *rest, **options)

    monkeypatch.setattr(training, "train", watched)
    assert main(train(model, tmp_path / "plain")) == 0
    assert main(train(model, tmp_path / "more", "--also", str(other), "--also-share", "0.25", "--odd", "0")) == 0
    plain, more = given
    assert plain.odd is None  # the recipe's own are mixed in by train
    assert np.array_equal(more.rows[~more.odd], plain.rows)
    assert 0.2 < more.odd.mean() < 0.3
    assert 0 < int(np.flatnonzero(more.odd)[0]) < 4
    assert len(np.unique(more.rows[more.odd])) < 8
    capsys.readouterr()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--preset", "luck"], "unknown preset 'luck'"),
        (["--recipe", "large"], "unknown recipe 'large'"),
        (["--text", "gone.txt"], "gone.txt: no such text file"),
        (["--text", "EMPTY"], "empty.txt holds no text"),
        (["--text", "SHORT"], "short.txt holds 2 tokens, a window needs 17"),
        (["--share", "0"], "share lies in"),
        (["--noise", "-1"], "noise and push must be at least 0"),
        (["--margin", "0.9"], "margin lies in (1, 10], got 0.9"),
        (["--odd", "0.7"], "odd_share is the share of such windows among all, in [0, 0.5]; got 0.7"),
        (["--also", "SHORT"], "short.txt holds 2 tokens, a window needs 17"),
        (["--also", "gone.txt"], "gone.txt: no such text file"),
        (["--also", "TEXT", "--also-share", "-1"], "--also-share is the share of such windows among all"),
        (["--micro-tokens", "4"], "micro_tokens 4 holds no whole window of 16"),
        (["--context", "128"], "context 128 exceeds the model's own of 16; give at most that (--context)"),
        (["--context", "1"], "context is at least 2"),
        (["--updates", "0"], "at least one update"),
        (["--lr", "-1"], "a learning rate is a number above 0"),
        (["--batch", "0"], "batch at least 1"),
    ],
)
def test_wrong_arguments_are_one_good_line(
    model: Path, tmp_path: Path, change: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("the")
    places = {
        "EMPTY": str(tmp_path / "empty.txt"),
        "SHORT": str(tmp_path / "short.txt"),
        "TEXT": str(model / "text.txt"),
    }
    assert main([*train(model, tmp_path / "run"), *(places.get(part, part) for part in change)]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("heat: ")
    assert said.count("\n") == 1


def test_a_model_without_text_and_no_model(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(model), "-o", str(tmp_path / "run"), "--recipe", "tiny"]) == 1
    assert "no text: give --text" in capsys.readouterr().err
    assert main(["train", str(tmp_path), "-o", str(tmp_path / "run")]) == 1
    assert "config.json is missing" in capsys.readouterr().err


def test_an_unsupported_nonlinearity_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "mish"
    tiny_gpt2(1, width=32, vocab_size=280, activation_function="mish").save_pretrained(other)
    (other / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (other / "text.txt").write_text(TEXT)
    assert main(train(other, tmp_path / "run")) == 1
    assert "mish" in capsys.readouterr().err


def test_compare_makes_every_row_once(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "compare"
    arguments = ["compare", str(model), "--text", str(model / "text.txt"), "--recipe", "tiny", "--share", "0.2"]
    presets = ("heat", "squeezed", "depth-only", "fixed-counts", "transplant", "control")
    arguments += ["--windows", "3", "-o", str(out), "--json", "--presets", ",".join(presets), "--stress", "1"]
    arguments += ["--rules", "per-site"]
    assert main(arguments) == 0
    body = answer(capsys)
    rows = {row["name"]: row for row in body["rows"]}
    names, totals = list(rows), {name: sum(row["iterations"].values()) for name, row in rows.items()}
    calibrated = [f"calibrated 1e-0{k} plain" for k in (1, 2, 3, 4)]
    made = [*presets[:4], "transplant-squeezed", "transplant-calibrated", "control"]
    assert names == ["plaintext", *calibrated, *(f"{p} plain seed 0" for p in made)]
    assert [totals[name] for name in calibrated] == sorted({totals[name] for name in calibrated})  # tighter takes more
    heat, moved = rows["heat plain seed 0"], rows["transplant-squeezed plain seed 0"]
    assert totals["fixed-counts plain seed 0"] <= totals["heat plain seed 0"]  # its own calibration, cut to HEAT's
    learned, onto = (
        Circuit.load(out / f"{name}-plain-seed-0" / "circuit").calibration for name in ("heat", "transplant-squeezed")
    )
    assert onto.counts() == learned.counts()  # its counts, other weights
    assert moved["perplexity"] != heat["perplexity"]
    assert all(row["windows"] == 3 and row["perplexity"] > 1 for row in body["rows"] if row["perplexity"])
    assert (rows["plaintext"]["kl"], rows["plaintext"]["stressed"], totals["plaintext"]) == (None, None, 0)
    assert all(rows[name]["stressed"] == 5 for name in names[1:])
    assert read_json(out / "compare.json", "heatfhe-comparison", (2,)) == body
    assert rows["plaintext"]["perplexity"] == pytest.approx(rows[calibrated[3]]["perplexity"], rel=1e-2)
    assert (out / "compare.md").read_text().count("\n") == 2 + len(names)
    page = tmp_path / "page.html"
    assert main(["report", str(out), "-o", str(page), "--quiet"]) == 0
    assert "transplant-calibrated plain" in page.read_text()
    before = {p: p.stat().st_mtime_ns for p in out.rglob("circuit.json")}
    assert len(before) == len(names) - 1  # the parent itself has none
    assert main(arguments) == 0
    assert answer(capsys) == body
    assert {p: p.stat().st_mtime_ns for p in out.rglob("circuit.json")} == before
    assert main([*arguments, "--share", "0.3"]) == 1  # the same folder, another recipe
    assert "another model, text or recipe" in capsys.readouterr().err


def test_compare_has_every_row_of_the_papers_table() -> None:
    jobs = make_jobs(lambda solver: recipe("tiny", solver), PRESETS.split(","), [0, 1])
    names = [job.name for job in jobs]
    assert len(names) == len(set(names))
    assert names[:3] == ["plaintext", "calibrated 1e-01 plain", "calibrated 1e-02 plain"]
    assert {f"calibrated 1e-0{k} {s}{r}" for k in (1, 4) for s in ("plain", "relaxed") for r in ("", " joint")} < {
        *names
    }
    assert sum(job.kind == "calibrated" for job in jobs) == 16
    by_name = {job.name: job for job in jobs}
    assert by_name["transplant-squeezed plain seed 1"].after == ("heat plain seed 1", "squeezed plain seed 1")
    assert by_name["transplant-calibrated plain seed 1"].after == ("heat plain seed 1", "calibrated 1e-04 plain")
    assert by_name["fixed-counts plain seed 1"].after == ("heat plain seed 1",)
    aware, plain = by_name["plan-aware plain seed 0"].recipe, by_name["heat plain seed 0"].recipe
    assert aware is not None
    assert plain is not None
    assert (aware.price_share, plain.price_share) == (0.8, 0.0)


def test_calibrations_of_a_comparison_see_odd_windows_where_trained_circuits_do(model: Path, tmp_path: Path) -> None:
    base = recipe("tiny")
    text = comparison.Comparison(
        model=str(model), out=tmp_path, base=replace(base, odd_share=0.0), text=str(model / "text.txt"), windows=3
    )
    both = replace(text, base=base)
    alone, seen = text.seen, both.seen
    assert (seen.sequences - alone.sequences, base.odd_calibration) == (16, 16)
    ranges = [(alone.scores[name], seen.scores[name]) for name in alone.scores]
    assert all(a.lo >= b.lo and a.hi <= b.hi for a, b in ranges)
    assert any(a.hi < b.hi for a, b in ranges)
    assert text.identity != both.identity


def test_compare_searches_the_counts_of_the_calibrated_circuit(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compare", str(model), "--text", str(model / "text.txt"), "--recipe", "tiny", "--share", "0.02"]
    arguments += ["--windows", "3", "-o", str(tmp_path), "--json", "--stress", "0", "--rules", "per-site"]
    arguments += ["--presets", "atlas,atlas-noisy", "--seeds", "1"]
    assert main(arguments) == 1
    assert "atlas plain seed 1: a search needs" in capsys.readouterr().err
    monkeypatch.setattr(comparison, "SEARCH_TOKENS", (48, 48))
    assert main(arguments) == 0
    body = answer(capsys)
    rows = {row["name"]: row for row in body["rows"]}
    assert list(rows)[-2:] == ["atlas plain seed 1", "atlas-noisy plain seed 1"]
    parent = Circuit.load(tmp_path / "calibrated-1e-04-plain" / "circuit")
    for name, noise in (("atlas", 0.0), ("atlas-noisy", 1.7e-4)):
        found = Circuit.load(tmp_path / f"{name}-plain-seed-1" / "circuit")
        assert all(np.array_equal(found.weights[name], given) for name, given in parent.weights.items())
        card = found.notes["search"]
        assert (card["settings"]["sigma"], card["settings"]["seed"], card["candidates"]) == (noise, 1, 48 * 2 + 96 * 5)
        assert 0 < rows[f"{name} plain seed 1"]["levels"] <= rows["calibrated 1e-04 plain"]["levels"]
    assert main(arguments) == 0  # nothing is searched again
    assert answer(capsys) == body


@pytest.mark.slow
def test_compare_plans_every_row_and_prices_one(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(model), "--text", str(model / "text.txt"), "--recipe", "tiny", "--share", "0.2"]
    arguments += ["--windows", "3", "-o", str(tmp_path), "--json", "--presets", "plan-aware", "--stress", "0"]
    assert main([*arguments, "--params", "insecure-native-11"]) == 0
    for row in answer(capsys)["rows"][1:]:
        assert row["token_bootstraps"] > row["bootstraps"] > 0  # the argmax has its own
        assert row["token_seconds"] > row["transformer_seconds"] > 0


@pytest.mark.parametrize(
    "change",
    [
        ["--presets", "heat,luck"],
        ["--presets", "heat:quick"],
        ["--presets", "heat,transplant"],
        ["--rules", "jointly"],
        ["--stress", "-1"],
        ["--seeds", "0,x"],
        ["--params", "insecure-native-12,x"],
        ["--processes", "0"],
    ],
)
def test_compare_finds_wrong_names_before_it_trains(
    model: Path, tmp_path: Path, change: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(model / "text.txt")
    assert main(["compare", str(model), "--text", text, "--recipe", "tiny", "-o", str(tmp_path / "c"), *change]) == 1
    assert capsys.readouterr().err.startswith("heat: ConfigError: ")
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_processes_change_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for processes in ("1", "3"):
        arguments = ["compare", str(model), "--text", str(model / "text.txt"), "--recipe", "tiny"]
        arguments += ["--presets", "heat,fixed-counts,heat:relaxed", "--seeds", "0,1", "--windows", "3", "--json"]
        assert main([*arguments, "-o", str(tmp_path / processes), "--processes", processes]) == 0
        found.append(answer(capsys)["rows"])
    assert [row["name"] for row in found[0]] == [row["name"] for row in found[1]]
    assert len(found[0]) == 1 + 16 + 6
    for alone, together in zip(*found):
        assert alone["iterations"] == together["iterations"]
        assert alone["perplexity"] == pytest.approx(together["perplexity"], rel=1e-5)
    totals = {row["name"]: sum(row["iterations"].values()) for row in found[0]}
    for seed in (0, 1):
        assert totals[f"fixed-counts plain seed {seed}"] == totals[f"heat plain seed {seed}"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_comparison_that_was_ended(model: Path, tmp_path: Path, how: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    seeds = ",".join(map(str, range(200)))
    command = [sys.executable, "-m", "heatfhe.cli", "compare", str(model), "--text", str(model / "text.txt")]
    command += ["--recipe", "tiny", "--presets", "heat", "--seeds", seeds, "--processes", "2", "-o", str(tmp_path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
    while process.poll() is None and not list(tmp_path.glob("*/checkpoint")):
        time.sleep(0.05)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    else:
        process.send_signal(how)
    process.communicate(timeout=20)  # its output ends when the last process that writes to it is gone
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_killed_for_real_goes_on(model: Path, tmp_path: Path, how: signal.Signals, capsys: Any) -> None:
    assert main(train(model, tmp_path / "straight")) == 0
    wanted = answer(capsys)["digest"]
    out = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heatfhe.cli", *train(model, out)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while process.poll() is None and not (out / "checkpoint" / "state.json").exists():
        time.sleep(0.02)
    process.send_signal(how)
    process.communicate(timeout=120)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=True)
    assert json.loads(done.stdout)["digest"] == wanted


@pytest.mark.slow
def test_killed_at_random_moments_until_it_is_done(model: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(train(model, tmp_path / "straight")) == 0
    wanted = answer(capsys)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "heatfhe.cli", *train(model, tmp_path / "killed")]
    rng, kills = random.Random(9), 0
    for _ in range(12):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            process.communicate(timeout=rng.uniform(2.0, 9.0))
        except subprocess.TimeoutExpired:
            kills += 1
            process.kill()
            process.communicate()
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=True)
    got = json.loads(done.stdout)
    assert kills >= 3
    for key in ("digest", "iterations", "validation", "updates", "skipped"):
        assert got[key] == wanted[key], key
