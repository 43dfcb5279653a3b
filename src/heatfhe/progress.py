# SPDX-License-Identifier: Apache-2.0
"""How long work tells what it is doing: a protocol, and the reporter that says nothing."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives progress. The CLI draws it, a run writes it as JSON lines, tests count it. A base that does nothing."""

    def start(self, task: str, total: int | None = None) -> None:
        """A task begins; total is the number of advances expected, if known."""
        return

    def advance(self, task: str, **facts: float | int | str) -> None:
        """One unit of the task is done; facts are shown beside it."""
        return

    def done(self, task: str) -> None:
        """The task has ended."""
        return


class _Silent(Reporter):
    pass


SILENT: Reporter = _Silent()
