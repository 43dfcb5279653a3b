# SPDX-License-Identifier: Apache-2.0
"""The command itself: help, exit codes, errors that end with what to do."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from heatfhe.cli import GROUPS, main
from heatfhe.cli.console import Console, ProgressLine, format_table


def test_help_lists_every_command_by_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for role, commands in GROUPS.items():
        assert f"{role}:" in text
        assert all(name in text for name in commands)


@pytest.mark.parametrize("name", [n for g in GROUPS.values() for n in g])
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main([name, "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"heat {name}" in text.split("examples:")[1]


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
        [sys.executable, "-m", "heatfhe.cli", "doctor", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["found"]["numpy"]


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
    line = ProgressLine(stream)
    line.start("work", 1000)
    for i in range(1000):
        line.advance("work", loss=float(i))
    line.done("work")
    assert stream.getvalue().count("\n") <= 10
