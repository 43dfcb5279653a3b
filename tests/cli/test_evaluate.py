# SPDX-License-Identifier: Apache-2.0
"""heat evaluate on the clear engine: results, resumption, figures, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

import heatfhe.cli.evaluate
from heatfhe.circuit import Circuit
from heatfhe.cli import main
from heatfhe.engine.noise import NoiseTable, PeriodNoise
from heatfhe.files import read_json
from tests.tiny import narrowed, tiny_circuit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("circuit") / "tiny"
    tiny_circuit(layers=1, width=16, vocabulary=32, context=16).save(path)
    return path


def test_teacher_forced_and_free_running(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["evaluate", str(folder), "--params", "insecure-openfhe-11", "--windows", "2", "--positions", "3"]
    assert main([*arguments, "--free", "2", "--prompt", "3,7", "--out", str(out), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["evaluations"][0]["fidelity"]["top1"] == 1.0
    assert body["evaluations"][0]["largest_error"] < 1e-8
    ((got, wanted),) = body["free_running"]["tiny-0"]
    assert got == wanted
    assert read_json(out / "evaluation.json", "heatfhe-evaluation", (1,)) == body
    assert main([*arguments, "--out", str(out)]) == 0  # finished windows are read, not run
    assert "operator" in capsys.readouterr().out


def test_a_plan_with_a_precision_is_another_plan(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says the same without noise, and finished windows of a plan without it are not taken for its own."""
    arguments = ["evaluate", str(folder), "--params", "insecure-openfhe-11", "--positions", "3", "-o", str(tmp_path)]
    found = []
    for bits, refused in (("5", 0), ("none", 1)):  # 5 is what is asked where nothing is said
        capsys.readouterr()
        assert main([*arguments, "--json", "--precision", bits]) == refused
        found.append(capsys.readouterr())
    assert "another plan" in found[1].err
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(found[0].out)
    assert main([*arguments[:-1], str(tmp_path / "loose"), "--precision", "none", "--json"]) == 0
    for text in (capsys.readouterr().out, found[0].out):
        (body,) = json.loads(text)["evaluations"]
        assert body["largest_error"] < 1e-8
        assert body["fidelity"]["top1"] == 1.0


def test_ordinary_text_above_the_planned_bound_is_counted_and_not_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = heatfhe.cli.evaluate.plan
    monkeypatch.setattr(heatfhe.cli.evaluate, "plan", lambda *a, **k: narrowed(own(*a, **k), 0.05))
    Tokenizer(models.WordLevel({f"w{i}": i for i in range(32)}, unk_token="w0")).save(str(tmp_path / "tokenizer.json"))
    words = (tmp_path / "tokenizer.json").read_bytes()
    replace(Circuit.load(folder), tokenizer={"tokenizer.json": words}).save(tmp_path / "circuit")
    (tmp_path / "story.txt").write_text("w5")
    np.save(tmp_path / "story.npy", np.arange(9) % 32)
    arguments = ["evaluate", str(tmp_path / "circuit"), "--params", "insecure-openfhe-11", "--positions", "3"]
    assert main([*arguments, "--text", str(tmp_path / "story.npy"), "--free", "1", "--prompt", "w7", "--json"]) == 0
    said = capsys.readouterr()
    body = json.loads(said.out)
    assert body["exceeded"]["tiny-0"] > 0
    assert f"{body['exceeded']['tiny-0']} refreshes met magnitudes above what the plan expects" in said.err
    assert body["evaluations"][0]["fidelity"]["top1"] == 1.0
    assert main([*arguments, "--text", str(tmp_path / "story.txt")]) == 1
    assert "holds 1 tokens" in capsys.readouterr().err
    assert main([*arguments, "--text", "a.txt", "--tokens", "b.npy"]) == 1
    assert "give one" in capsys.readouterr().err


def test_measured_noise_is_injected(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = NoiseTable(
        name="n", engine="openfhe", params="insecure-openfhe-11", hardware="h", samples=1,
        sigma={1.0: 1e-4, 100.0: 1e-2}, constant={1.0: 0.0, 100.0: 0.0}, largest={1.0: 0.0, 100.0: 0.0},
        periods={1024: PeriodNoise(1e-4, 0.0)},
    )  # fmt: skip
    table.save(tmp_path / "noise.json")
    arguments = ["evaluate", str(folder), "--params", "insecure-openfhe-11", "--windows", "3", "--positions", "3"]
    arguments += ["--json", "-o", str(tmp_path / "out")]
    noisy = [*arguments, "--noise", str(tmp_path / "noise.json")]
    assert main(noisy) == 0
    whole = json.loads(capsys.readouterr().out)["evaluations"][0]
    assert whole["largest_error"] > 1e-5
    for kept in (tmp_path / "out").glob("*/window-00[02].npz"):
        kept.unlink()
    assert main(noisy) == 0  # two windows again: the noise of each is its own, so nothing changes
    again = json.loads(capsys.readouterr().out)["evaluations"][0]
    assert again["fidelity"] == whole["fidelity"]
    for other in (arguments, [*noisy, "--seed", "1"]):  # no noise, or another: not this folder's windows
        assert main(other) == 1
        assert "another plan, engine, noise or window" in capsys.readouterr().err
    assert main([*noisy, "--params", "insecure-openfhe-12"]) == 1
    assert "was measured on insecure-openfhe-11, the plan is for insecure-openfhe-12" in capsys.readouterr().err


def test_a_figure(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "kl.png"
    arguments = ["evaluate", str(folder), "--params", "insecure-openfhe-11", "--positions", "2", "--quiet"]
    assert main([*arguments, "--figure", str(picture)]) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "extra",
    [
        ["--engine", "native", "--noise", "x.json"],
        ["--windows", "0"],
        ["--free", "1", "--prompt", "a"],
        ["--params", "x"],
    ],
)
def test_wrong_arguments_are_one_good_line(folder: Path, extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(folder), *extra]) == 1
    assert capsys.readouterr().err.startswith("heat: ConfigError: ")
