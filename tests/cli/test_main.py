# SPDX-License-Identifier: Apache-2.0
"""The command itself: a walk through all commands (help, exit codes, errors with advice, JSON, quiet); completion."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import heatfhe
from heatfhe.cli import EXIT_CODES, GROUPS, main
from heatfhe.cli.console import Console, ProgressLine, format_table
from tests.tiny import tiny_circuit

COMMANDS = [name for group in GROUPS.values() for name in group]
PARAMS = "insecure-native-11"
MISTAKES = {
    "prepare": ["./nowhere"],
    "calibrate": ["./nowhere", "-o", "out.json"],
    "train": ["./nowhere", "-o", "out"],
    "compare": ["./nowhere", "-o", "out"],
    "search": ["nowhere", "-o", "out"],
    "sweep": ["./nowhere", "-o", "out", "--vary", "margin=1.1,1.2"],
    "export": ["./nowhere", "-o", "out"],
    "inspect": ["nowhere"],
    "report": ["nowhere", "-o", "page.html"],
    "plan": ["nowhere", "--params", PARAMS],
    "capacity": ["nowhere", "--clients", "1", "--tokens-per-day", "1"],
    "serve": ["nowhere", "--params", PARAMS, "--folder", "served", "--insecure"],
    "bench-engine": ["clear", "--params", "no-such-set"],
    "measure-noise": ["clear", "--params", "no-such-set"],
    "stress": ["nowhere"],
    "evaluate": ["nowhere"],
    "drift": ["nowhere", "--params", PARAMS],
    "lm-eval": ["./nowhere", "--text", "story.txt"],
    "keygen": [],
    "generate": ["--server", "http://127.0.0.1:9", "--token-file", "nowhere", "hello"],
    "sessions": ["--server", "http://127.0.0.1:9"],
    "proxy": ["--server", "http://127.0.0.1:9"],
    "classify": ["--server", "http://127.0.0.1:9", "--token-file", "nowhere", "--digits", "1"],
    "card": ["nowhere", "--params", PARAMS],
    "chat": ["--server", "http://127.0.0.1:9", "--token-file", "nowhere"],
    "models": ["nowhere"],
    "doctor": ["--nonsense"],
}
"""A mistake a person makes with each command."""
ADVICE = r"give|use|install|choose|check|see|make|start"
"""Words by which an error's last clause says what to do."""


def test_help_lists_every_command_by_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for role, commands in GROUPS.items():
        assert f"{role}:" in text
        assert all(name in text for name in commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([name, "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"heat {name}" in text.split("examples:")[1]
    assert "--json" in text
    assert "--quiet" in text


def test_there_is_a_mistake_for_every_command() -> None:
    assert sorted(MISTAKES) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_mistake_is_one_line_that_ends_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEATFHE_TOKEN", raising=False)
    if name == "serve":  # closes its process to anything that can hold a secret key, so it gets one of its own
        environment = {**os.environ, "PYTHONPATH": str(Path(heatfhe.__file__).parents[1])}
        command = [sys.executable, "-m", "heatfhe.cli", name, *MISTAKES[name], "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        try:
            code = main([name, *MISTAKES[name], "--json"])
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = capsys.readouterr()
    documented = [int(n) for n in re.findall(r"^ +(\d+) ", EXIT_CODES, flags=re.M)]
    assert code in documented
    assert code != 0
    assert out == ""  # scripts never read half an answer
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert re.search(rf"\b({ADVICE})\b", re.split(r"[;:(]", lines[0], maxsplit=2)[-1]), lines[0]


def test_json_and_quiet_of_every_command_without_server_or_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json stdout is one JSON value; with --quiet it is empty; neither holds a colour."""
    monkeypatch.chdir(tmp_path)
    tiny_circuit().save(tmp_path / "tiny")
    np.save(tmp_path / "tokens.npy", np.arange(12) % 8)
    good = {
        "inspect": ["tiny"],
        "report": ["tiny", "--params", "none", "-o", "page.html"],
        "plan": ["tiny", "--params", PARAMS, "--costs", "unit"],
        "stress": ["tiny", "--windows", "1", "--positions", "4"],
        "evaluate": ["tiny", "--params", PARAMS, "--positions", "1", "--costs", "unit"],
        "drift": ["tiny", "--params", PARAMS, "--windows", "1", "--positions", "2"],
        "lm-eval": ["tiny", "--text", "tokens.npy", "--window", "4"],
        "bench-engine": ["clear", "--params", PARAMS, "--repeats", "1", "--levels", "1"],
        "measure-noise": ["clear", "--params", PARAMS, "--repeats", "1", "--magnitudes", "1"],
    }
    if importlib.util.find_spec("fastapi") is not None:
        good["serve"] = ["--folder", "served", "--add-client", "alice"]
    for name, arguments in good.items():
        assert main([name, *arguments, "--json"]) == 0, name
        json.loads(capsys.readouterr().out)
        assert main([name, *arguments, "--quiet"]) == 0, name
        said = capsys.readouterr()
        assert said.out == "", name
        assert "\033" not in said.err, name


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def heading() -> str:
        out = Terminal()
        Console(out=out, err=out).heading("words")
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[1m" in heading()
    monkeypatch.setenv("NO_COLOR", "")  # the convention: set and not empty
    assert "\033[1m" in heading()
    monkeypatch.setenv("NO_COLOR", "1")
    assert heading() == "words\n"


def completion(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "heat.bash").write_text(completion("bash", capsys))
    for words, wanted in (
        ("heat pla", "plan"),
        ("heat plan --para", "--params"),
        ("heat evaluate --engine cl", "clear"),
    ):
        line = words.split()
        code = f"source {tmp_path}/heat.bash; COMP_WORDS=({words}); COMP_CWORD={len(line) - 1}; _heat"
        code += "; echo ${COMPREPLY[@]}"
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [wanted]


def test_fish_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = completion("fish", capsys)
    assert text.count("__fish_use_subcommand") == len(COMMANDS)
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    (tmp_path / "heat.fish").write_text(text)
    for words, wanted in (
        ("heat pla", "plan"),
        ("heat plan --para", "--params"),
        ("heat evaluate --engine cl", "clear"),
    ):
        code = f'source {tmp_path}/heat.fish; complete -C "{words}"'
        done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split("\t")[0] == wanted


def test_zsh_script_is_sound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = completion("zsh", capsys)
    assert all(f"'{name}:" in text for name in COMMANDS)
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "heat.zsh").write_text(text)
    defined = "compdef() { print compdef $*; }; source $1; functions _heat | grep -c compadd"
    done = subprocess.run(
        ["zsh", "-f", "-c", defined, "-", str(tmp_path / "heat.zsh")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[:3] == ["compdef", "_heat", "heat"]
    assert int(done.stdout.split()[3]) >= len(COMMANDS)


def test_unknown_shells_are_refused_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "use heat completion bash, zsh or fish" in capsys.readouterr().err


def test_unknown_commands_exit_2() -> None:
    with pytest.raises(SystemExit) as done:
        main(["nonsense"])
    assert done.value.code == 2


def test_errors_are_one_line_with_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "no-such-circuit"]) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("heat: FileFormatError: no-such-circuit")
    assert "\n" not in error


def test_doctor_speaks_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "heatfhe.cli", "doctor", "--json", "--quiet"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["found"]["numpy"]
    assert done.stderr == ""


def test_tables_align() -> None:
    assert format_table(("a", "b"), [("x", 1), ("yy", 20)]) == "a    b\n--  --\nx    1\nyy  20"


def test_json_replaces_text() -> None:
    out = io.StringIO()
    console = Console(as_json=True, out=out, err=io.StringIO())
    console.print("text")
    console.json({"a": 1})
    assert json.loads(out.getvalue()) == {"a": 1}


def test_progress_elsewhere_than_a_terminal_is_sparse() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, Console(err=stream))
    line.start("work", 1000)
    for i in range(1000):
        line.advance("work", loss=float(i))
    line.done("work")
    assert stream.getvalue().count("\n") <= 10
