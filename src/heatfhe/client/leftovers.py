# SPDX-License-Identifier: Apache-2.0
"""What a killed client leaves on its own disk: half-written files, told apart by the process that wrote them."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_PARTIAL = re.compile(r"\..*\.(\d+)\.(partial|old)")


def runs(pid: int) -> bool:
    """Whether a process of this number is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def sweep(folder: Path) -> None:
    """Remove the half-written files of processes that have ended; other clients may be at work in the same folder."""
    for path in folder.glob(".*"):
        found = _PARTIAL.fullmatch(path.name)
        if found and not runs(int(found[1])):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
