# SPDX-License-Identifier: Apache-2.0
"""How a bench measures one engine in a process of its own, with an interpreter that may be another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def in_process(python: str, script: str, arguments: list[str], threads: int) -> dict[str, Any] | None:
    """The JSON object that a script prints last; None, with its complaint on stderr, where it does not run."""
    source = str(Path(__file__).parent.parent / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": str(threads)}
    command = [python, script, *arguments, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
