# SPDX-License-Identifier: Apache-2.0
"""Many changed files through their readers, in a process of its own: python -m tests.mutations.storm COUNT SEED.

Prints one JSON object: cases and refusals by format, everything that went wrong with the number that makes it again,
and the largest memory before and after. A case may take five seconds of processor time, however busy the machine is.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

from tests.mutations.formats import every_format
from tests.mutations.law import Format, refused

SECONDS = 5.0


class Hang(BaseException):
    """Five seconds of processor time in one case; no reader catches it."""


def _late(number: int, frame: FrameType | None) -> None:
    raise Hang


def storm(formats: list[Format], count: int, seed: int) -> dict[str, Any]:
    """Run ``count`` cases, spread over the formats by their shares."""
    turns = [f for f in formats for _ in range(f.share)]
    rows = {f.name: [0, 0] for f in formats}
    wrong: list[list[Any]] = []
    usual = signal.signal(signal.SIGPROF, _late)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for f in formats:  # every kind of work a few times, before memory is measured
                for number in range(3):
                    _one(f, f"warm {seed} {f.name} {number}")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(count):
                f = turns[number % len(turns)]
                said = _one(f, f"{seed} {f.name} {number}")
                rows[f.name][0] += 1
                rows[f.name][1] += said == "refused"
                if said not in ("refused", "accepted"):
                    wrong.append([f.name, number, said])
    finally:
        signal.signal(signal.SIGPROF, usual)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"formats": rows, "wrong": wrong, "memory": [before, after]}


def _one(format: Format, name: str) -> str:
    case = format.change(random.Random(name))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        return "refused" if refused(format, case) else "accepted"
    except Hang:
        return f"hang: over {SECONDS:g} s of processor time"
    except Exception as err:
        return f"{type(err).__name__}: {str(err)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        json.dump(storm(every_format(Path(made)), int(sys.argv[1]), int(sys.argv[2])), sys.stdout)
