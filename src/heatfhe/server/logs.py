# SPDX-License-Identifier: Apache-2.0
"""The log of a server's processes: JSON lines, set up by whoever starts a process and never by an import."""

from __future__ import annotations

import json
import logging
import sys


def log_to_stderr() -> None:
    """heatfhe's log as JSON lines on this process's standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    root = logging.getLogger("heatfhe")
    root.addHandler(handler)
    root.setLevel(logging.INFO)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        row = {"time": round(record.created, 3), "level": record.levelname, "from": record.name}
        row["said"] = record.getMessage()
        if record.exc_info and record.exc_info[0]:
            row["error"] = self.formatException(record.exc_info)
        return json.dumps(row)
