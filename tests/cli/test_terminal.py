# SPDX-License-Identifier: Apache-2.0
"""What stays on the screen: streamed answers are never erased by progress, on a terminal as a person has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from heatfhe.cli.console import Console
from tests.cli.screen import Screen, Terminal, run_in_terminal
from tests.server.serving import WORDS, save_model, served_circuit


@pytest.mark.parametrize("lines", [24, 4])
def test_progress_never_erases_streamed_text(lines: int) -> None:
    """Also at the foot of a screen, which scrolls, and where the text is longer than a line."""
    screen = Screen(lines)
    console = Console(out=Terminal(screen), err=Terminal(screen))  # type: ignore[arg-type]
    console.print("before")
    progress, answer = console.reporter, ""
    progress.start("generate", 40)
    for number in range(20):
        progress.advance("generate", unit=number)
        progress._drawn = 0.0  # type: ignore[attr-defined]
        console.stream(piece := f"word{number} ")
        answer += piece
        progress.advance("generate", eta_s=3.0)
        progress._drawn = 0.0  # type: ignore[attr-defined]
        assert screen.lines[-1].startswith("generate "), screen.lines  # progress is there, under the text
        assert answer.replace(" ", "") in "".join(screen.lines).replace(" ", "")
    progress.done("generate")
    console.print()
    console.print("after")
    assert screen.lines[0] == "before"
    assert screen.lines[-1] == "after"
    assert "".join(line.ljust(80) for line in screen.lines[1:-1]).rstrip() == answer.rstrip()


def test_a_warning_does_not_run_into_streamed_text() -> None:
    screen = Screen()
    console = Console(out=Terminal(screen), err=Terminal(screen))  # type: ignore[arg-type]
    progress = console.reporter
    console.stream("an answer")
    progress.advance("generate")
    console.warn("mind the gap")
    assert screen.lines == ["an answer", "warning: mind the gap"]


def test_heat_generate_leaves_its_answer_on_the_terminal(tmp_path: Path) -> None:
    source = save_model(tmp_path / "model")
    arguments = ["generate", "--local", "--circuit", str(source.circuit), "--params", "insecure-native-11"]
    code, screen = run_in_terminal(*arguments, "--simulate", "--keys", str(tmp_path / "keys"), "--tokens", "4", "w1 w2")
    words = " ".join(WORDS[t] for t in served_circuit().generate([1, 2], 4).tokens)
    assert code == 0, screen.lines
    assert screen.lines[-2] == words
    assert screen.lines[-1].startswith("4 tokens in ")
