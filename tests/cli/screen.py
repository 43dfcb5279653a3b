# SPDX-License-Identifier: Apache-2.0
"""What a person sees: a command run in a pseudo-terminal, its output drawn by a screen emulator."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pyte = pytest.importorskip("pyte", reason="the terminal's tests need a screen emulator")
ROOT = Path(__file__).resolve().parents[2]


class Screen:
    """An emulated terminal of 80 columns that keeps what scrolls away."""

    def __init__(self, lines: int = 24) -> None:
        self._screen = pyte.HistoryScreen(80, lines, history=1000, ratio=0.5)
        self._stream = pyte.Stream(self._screen)

    def feed(self, text: str) -> None:
        """Characters as the terminal gets them."""
        self._stream.feed(text)

    @property
    def lines(self) -> list[str]:
        """Every line that is not empty, those above the window too."""
        above = ["".join(row[x].data for x in range(80)) for row in self._screen.history.top]
        return [line.rstrip() for line in [*above, *self._screen.display] if line.strip()]


class Terminal:
    """A text stream into a screen, as sys.stdout and sys.stderr of one terminal are."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def write(self, text: str) -> int:
        self._screen.feed(text.replace("\n", "\r\n"))
        return len(text)

    def flush(self) -> None:
        return

    def isatty(self) -> bool:
        return True


def run_in_terminal(*arguments: str, **environment: str) -> tuple[int, Screen]:
    """``heat`` with these arguments, with both its outputs on one terminal."""
    ours, theirs = pty.openpty()
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "heatfhe.cli", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=settings
    )
    os.close(theirs)
    screen, data = Screen(), b""
    with contextlib.suppress(OSError):  # the other end is closed when the command ends
        while part := os.read(ours, 65_536):
            data += part
    os.close(ours)
    screen.feed(data.decode(errors="replace"))
    return process.wait(), screen
