# SPDX-License-Identifier: Apache-2.0
"""How commands talk to a person or a script: plain text, tables, JSON, and a progress line."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from heatfhe.progress import SILENT, Reporter


class Console:
    """Text goes to stdout unless --quiet or --json; JSON goes to stdout alone; progress goes to stderr."""

    def __init__(
        self, *, quiet: bool = False, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.quiet, self.as_json = quiet, as_json
        self._out, self._err = out or sys.stdout, err or sys.stderr
        self.color = self._out.isatty() and not os.environ.get("NO_COLOR")
        self.open = False  # a line of streamed text has begun on the terminal that also shows progress
        self.drawn = False  # the terminal's line is taken by progress

    @property
    def reporter(self) -> Reporter:
        """Draws progress on a terminal, a line per tenth elsewhere, nothing when quiet."""
        return SILENT if self.quiet else ProgressLine(self._err, self)

    def stream(self, piece: str) -> None:
        """Text as it comes, without an end of line. Progress is drawn under it until a line ends it."""
        if piece and not (self.quiet or self.as_json):
            self._out.write(self._cleared() + piece)
            self._out.flush()
            self.open = self._out.isatty() and self._err.isatty() and not piece.endswith("\n")

    def _cleared(self) -> str:
        """What removes the progress from a terminal, under a line of text or from a line of its own."""
        drawn, self.drawn = self.drawn and self._out.isatty(), False
        return "\033[J" if self.open else "\r\033[K" if drawn else ""

    def print(self, text: str = "") -> None:
        """A line for people."""
        if not (self.quiet or self.as_json):
            print(self._cleared() + text, file=self._out, flush=True)
            self.open = False

    def warn(self, text: str) -> None:
        """A line for people that must not be missed."""
        print(self._cleared() + "\n" * self.open + f"warning: {text}", file=self._err, flush=True)
        self.open = False

    def heading(self, text: str) -> None:
        """A line that stands out."""
        self.print(f"\033[1m{text}\033[0m" if self.color else text)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Columns aligned; numbers to the right."""
        self.print(format_table(headers, rows))

    def json(self, value: Any) -> None:
        """The machine's answer, printed only with --json."""
        if self.as_json:
            print(json.dumps(value, indent=1, sort_keys=True, default=_plain), file=self._out, flush=True)


class ProgressLine:
    """One task at a time on one line of a terminal, under any text that is being streamed; elsewhere a line whenever a
    tenth is done."""

    def __init__(self, stream: TextIO, console: Console) -> None:
        self._stream, self._tty, self._console = stream, stream.isatty(), console
        self._tasks: dict[str, tuple[int | None, int, float]] = {}
        self._drawn = 0.0

    def start(self, task: str, total: int | None = None) -> None:
        self._tasks[task] = (total, 0, time.monotonic())

    def advance(self, task: str, **facts: float | int | str) -> None:
        total, count, began = self._tasks.get(task, (None, 0, time.monotonic()))
        count += 1
        self._tasks[task] = (total, count, began)
        now = time.monotonic()
        ended = total is not None and count >= total
        tenth = total is not None and (count * 10 // total) != ((count - 1) * 10 // total)
        if (self._tty and (now - self._drawn > 0.1 or ended)) or (not self._tty and tenth and now - self._drawn > 2.0):
            self._drawn = now
            left = "" if not total else f" {count}/{total}, {_span((now - began) / count * (total - count))} left"
            shown = " ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in facts.items())
            line = f"{task}{left or f' {count}'}  {shown}"
            self._stream.write(self._drawing(line) if self._tty else line + "\n")
            self._stream.flush()

    def _drawing(self, line: str) -> str:
        """The line in place of the last one. Under text: make room, draw there, and leave the cursor in the text."""
        line, self._console.drawn = line[: min(110, shutil.get_terminal_size().columns - 1)], True
        return f"\033D\033[A\0337\033[B\r\033[K{line}\0338" if self._console.open else f"\r\033[K{line}"

    def done(self, task: str) -> None:
        if self._tty and task in self._tasks:
            self._stream.write("\033[J" if self._console.open else "\r\033[K")
            self._console.drawn = False
            self._stream.flush()
        self._tasks.pop(task, None)


def warn_exceeded(console: Console, name: str, count: int) -> None:
    """Say that a simulated run met magnitudes its plan did not expect; it went on, as a real engine would."""
    console.warn(
        f"{name}: {count} refreshes met magnitudes above what the plan expects, inside the parameters' reach. A real "
        "engine goes on there with a little less precision; calibrate on wider text (heat calibrate --text) to avoid it"
    )


def format_table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Plain text columns with a rule under the headers."""
    cells = [[_cell(v) for v in row] for row in rows]
    widths = [max([len(h), *(len(r[i]) for r in cells)]) for i, h in enumerate(headers)]
    right = [all(isinstance(row[i], (int, float)) for row in rows) if rows else False for i in range(len(headers))]

    def line(values: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right)).rstrip()

    return "\n".join([line(headers), "  ".join("-" * w for w in widths), *(line(r) for r in cells)])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _plain(value: Any) -> Any:
    for name in ("as_json", "tolist"):
        if hasattr(value, name):
            return getattr(value, name)()
    return str(value)
