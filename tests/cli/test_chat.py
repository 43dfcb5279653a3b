# SPDX-License-Identifier: Apache-2.0
"""heat chat and heat models: a conversation from a file, and what lies on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heatfhe.cli import main
from heatfhe.server import ModelSource
from tests.server.serving import ROOT, ServerProcess, save_model, served_circuit


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(source: ModelSource, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(source, tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def chat(server: ServerProcess, keys: Path, *lines: str, tokens: int = 2) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HEATFHE_TOKEN": server.token, "OMP_NUM_THREADS": "1"}
    words = ["chat", "--server", server.url, "--simulate", "--keys", str(keys), "--tokens", str(tokens)]
    command = [sys.executable, "-m", "heatfhe", *words]
    return subprocess.run(
        [*command, "--json"], input="\n".join(lines), capture_output=True, text=True, env=environment, check=True
    )


def test_a_conversation_goes_on_in_one_session_and_leaves_none(server: ServerProcess, tmp_path: Path) -> None:
    circuit = served_circuit()
    turns = json.loads(chat(server, tmp_path, "w1 w2", "w3").stdout)["turns"]
    first = circuit.generate([1, 2], 2).tokens
    second = circuit.generate([1, 2, *first, 3], 2).tokens
    assert [turn["answer"] for turn in turns] == [circuit.decode(first), circuit.decode(second)]
    listed = ["sessions", "--server", server.url, "--keys", str(tmp_path), "--simulate", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HEATFHE_TOKEN": server.token}
    done = subprocess.run(
        [sys.executable, "-m", "heatfhe", *listed], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(done.stdout)["sessions"] == []


def test_a_full_context_goes_on_with_its_last_words(server: ServerProcess, tmp_path: Path) -> None:
    circuit, tokens = served_circuit(), 4
    context = circuit.shape.context
    long = " ".join(f"w{i % 60}" for i in range(context - 5))
    turns = json.loads(chat(server, tmp_path, long, "w3 w4", tokens=tokens).stdout)["turns"]
    history = [*circuit.encode(long), *circuit.generate(circuit.encode(long), tokens).tokens, 3, 4]
    wanted = circuit.generate(history[-(context - tokens + 1) :], tokens).tokens
    assert turns[1]["answer"] == circuit.decode(wanted)


def test_a_line_that_cannot_be_asked_does_not_end_the_talk(server: ServerProcess, tmp_path: Path) -> None:
    long = " ".join(["w1"] * (served_circuit().shape.context + 1))
    done = chat(server, tmp_path, long, "w1 w2")
    assert "shorten the prompt" in done.stderr
    assert [turn["line"] for turn in json.loads(done.stdout)["turns"]] == ["w1 w2"]


def test_models_lists_shows_and_removes(
    server: ServerProcess, source: ModelSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat(server, tmp_path / "keys", "w1")
    place = source.circuit.parent
    (place / "other.json").write_text("{}")
    words = ["models", str(place), "--keys", str(tmp_path / "keys"), "--json"]
    assert main(words) == 0
    rows = {row["kind"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {"circuit", "plan", "keys"}
    assert rows["circuit"]["bytes"] == sum(p.stat().st_size for p in source.circuit.rglob("*") if p.is_file())
    assert rows["plan"]["security"] == "none"
    assert "NO SECURITY" in rows["keys"]["security"]
    assert (rows["keys"]["name"], rows["keys"]["params"]) == ("tiny", "insecure-serving")
    for kind in ("plan", "keys"):
        assert main(["models", "--remove", rows[kind]["path"]]) == 0
        assert not Path(rows[kind]["path"]).exists()
    assert main(["models", "--remove", str(place / "other.json")]) == 1
    assert "nothing was removed" in capsys.readouterr().err
    assert (place / "other.json").exists()
