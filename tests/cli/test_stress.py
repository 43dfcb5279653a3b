# SPDX-License-Identifier: Apache-2.0
"""heat stress on the embedded circuits: its table, its JSON, its warning, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heatfhe.assets import default_circuit
from heatfhe.circuit import Circuit
from heatfhe.cli import main
from tests.tiny import narrow_sums


def test_the_table_the_json_and_the_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    narrow_sums(Circuit.load(default_circuit("heat")), 64.0).save(tmp_path / "circuit")
    arguments = ["stress", str(tmp_path / "circuit"), "--windows", "6", "--kinds", "random,repeated"]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    body = json.loads(said.out)
    assert [s["kind"] for s in body["stress"]][:2] == ["random", "repeated"]
    assert all(s["windows"] == 6 and s["positions"] == 128 for s in body["stress"])
    lost, all_of = (sum(s[k] for s in body["stress"]) for k in ("diverged", "windows"))
    assert lost >= 1
    words = " ".join(said.err.split())
    assert f"{lost} windows of {all_of} diverge: on such input the circuit gives nothing of use" in words
    assert "(--also TEXT)" in words


def test_the_embedded_circuit_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", "default", "--windows", "6", "--kinds", "random,repeated", "--json"]) == 0
    said = capsys.readouterr()
    body = json.loads(said.out)
    assert [(s["kind"], s["outside"], s["diverged"]) for s in body["stress"]] == [
        ("random", 0, 0), ("repeated", 0, 0), ("stories", 0, 0),
    ]  # fmt: skip
    assert "diverge" not in said.err


def test_every_kind_and_a_text_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story, ids = tmp_path / "story.txt", tmp_path / "ids.npy"
    story.write_text("Once upon a time there was a little girl who had a red ball. " * 8)
    np.save(ids, np.arange(40) % 1024)
    assert main(["stress", "default-calibrated", str(story), str(ids), "--windows", "3", "--positions", "16"]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [line[:3] for line in shown] == [
        ["random", "3", "0"], ["shuffled", "3", "0"], ["repeated", "3", "0"], ["replaced", "3", "0"],
        ["runs", "3", "0"], ["story.txt", "3", "0"], ["ids.npy", "2", "0"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["short.npy"], "short.npy holds 31 tokens, a window of this stress has 128"),
        (["gone.txt"], "gone.txt: cannot be read as text"),
        (["large.npy"], "large.npy: token 1024 is none of the 1024 of default-heat"),
        (["negative.npy"], "negative.npy: token -1 is none of the 1024"),
        (["square.npy"], "expected one row of integer token ids"),
        (["--kinds", "rude"], "'rude' is no kind of them; have: random, shuffled, repeated, replaced, runs"),
        (["--positions", "129"], "--positions lies between 2 and the circuit's context of 128"),
        (["--windows", "0"], "--windows and --batch are at least 1"),
    ],
)
def test_refusals(more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "short.npy", np.arange(31))
    np.save(tmp_path / "large.npy", np.arange(1025))
    np.save(tmp_path / "negative.npy", np.arange(-1, 400))
    np.save(tmp_path / "square.npy", np.zeros((4, 40)))
    given = [str(tmp_path / part) if part.endswith((".npy", ".txt")) else part for part in more]
    assert main(["stress", "default", *given]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("heat: ")
