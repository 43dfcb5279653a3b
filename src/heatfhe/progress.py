# SPDX-License-Identifier: Apache-2.0
"""How long work tells what it is doing: a protocol, and the reporter that says nothing."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives progress. The CLI draws it, a run writes it as JSON lines, tests count it."""

    def start(self, task: str, total: int | None = None) -> None:
        """A task begins; total is the number of advances expected, if known."""

    def advance(self, task: str, **facts: float | int | str) -> None:
        """One unit of the task is done; facts are shown beside it."""

    def done(self, task: str) -> None:
        """The task has ended."""


class _Silent:
    def start(self, task: str, total: int | None = None) -> None:
        pass

    def advance(self, task: str, **facts: float | int | str) -> None:
        pass

    def done(self, task: str) -> None:
        pass


SILENT: Reporter = _Silent()
