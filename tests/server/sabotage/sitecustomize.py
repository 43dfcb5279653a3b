# SPDX-License-Identifier: Apache-2.0
"""Faults inside a server or worker process: Python imports this at its start where this folder is on the path.

HEATFHE_SABOTAGE is JSON: {"mark": file, "clock": seconds, "rules": [{"call", "path", "nth", "act", "holds", "in"}]}.
The nth ``call`` (replace, fsync, mkdir, write, read; change is any but the last) on a path that contains ``path`` does
``act``: kill, kill-after, or an errno's name, which then stays. ``holds`` is a text the file must contain, ``in`` a
word of the program's name.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import signal
import sys
import time
from typing import Any

_PLAN = json.loads(os.environ.get("HEATFHE_SABOTAGE", "{}"))


def _strike() -> None:
    with open(os.open(_PLAN["mark"], os.O_WRONLY | os.O_CREAT, 0o600), "wb", closefd=True):
        pass


def _due(rule: dict[str, Any], call: str, path: str, source: str) -> bool:
    meant = rule["call"] == call or (rule["call"] == "change" and call != "read")
    if not meant or rule["path"] not in path or rule.get("in", "") not in sys.argv[0]:
        return False
    if "holds" in rule:
        with _open(source, "rb") as f:
            if rule["holds"].encode() not in f.read():
                return False
    rule["seen"] = rule.get("seen", 0) + 1
    return rule["seen"] == rule["nth"] or (rule["seen"] > rule["nth"] and not rule["act"].startswith("kill"))


def _guarded(call: str, real: Any, place: Any) -> Any:
    def act(*args: Any, **options: Any) -> Any:
        source, path = place(*args, **options)
        for rule in _PLAN.get("rules", []):
            if path and _due(rule, call, path, source):
                _strike()
                if rule["act"] == "kill-after":
                    real(*args, **options)
                if rule["act"].startswith("kill"):
                    os.kill(os.getpid(), signal.SIGKILL)
                number = getattr(errno, rule["act"])
                raise OSError(number, os.strerror(number), path)
        return real(*args, **options)

    return act


def _named(path: Any, *_args: Any, **_options: Any) -> tuple[str, str]:
    name = os.fspath(path) if not isinstance(path, int) else ""
    return (name.decode() if isinstance(name, bytes) else name,) * 2


def _opened(kind: str) -> Any:
    def place(path: Any, mode: str = "r", *_args: Any, **_options: Any) -> tuple[str, str]:
        return _named(path) if any(c in mode for c in "wax+") == (kind == "write") else ("", "")

    return place


_open = io.open
if _PLAN:
    _now, _skew = time.time, float(_PLAN.get("clock", 0.0))
    time.time = lambda: _now() + _skew
    os.replace = _guarded("replace", os.replace, lambda a, b, **_o: (os.fspath(a), os.fspath(b)))
    os.fsync = _guarded("fsync", os.fsync, lambda fd: (os.readlink(f"/proc/self/fd/{fd}"),) * 2)
    os.mkdir = _guarded("mkdir", os.mkdir, _named)
    io.open = builtins.open = _guarded("read", _guarded("write", _open, _opened("write")), _opened("read"))
