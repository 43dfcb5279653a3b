# SPDX-License-Identifier: Apache-2.0
"""What a log may say of an unexpected error: its kind and where it happened, never its message.

Messages of the system hold paths, and paths hold clients' names and the ids of their sessions and jobs.
"""

from __future__ import annotations

import errno
import logging
import traceback
from pathlib import Path

from heatfhe.errors import WireError
from heatfhe.wire import Refusal, TooLargeError

_DEEPEST, _LONGEST_CHAIN = 12, 5


def describe_fault(err: BaseException) -> str:
    """Kinds and places of an error and of its causes: ``OSError ENOENT at keys.py:91 status < routes.py:104 act``."""
    parts: list[str] = []
    seen: set[int] = set()
    fault: BaseException | None = err
    while fault is not None and id(fault) not in seen and len(parts) < _LONGEST_CHAIN:
        seen.add(id(fault))
        kind = type(fault).__name__
        if isinstance(fault, OSError) and fault.errno is not None:
            kind += f" {errno.errorcode.get(fault.errno, fault.errno)}"
        frames = traceback.extract_tb(fault.__traceback__)[-_DEEPEST:]
        places = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
        parts.append(f"{kind} at {places or 'no known place'}")
        fault = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
    return "; from ".join(parts)


def log_fault(logger: logging.Logger, what: str, err: BaseException) -> None:
    """One line at level ERROR about an unexpected error."""
    logger.error("%s: %s", what, describe_fault(err))


def as_refusal(err: WireError) -> Refusal:
    """What a message that cannot be read is answered with."""
    if isinstance(err, Refusal):
        return err
    return Refusal("too_large" if isinstance(err, TooLargeError) else "bad_message", str(err), "")
